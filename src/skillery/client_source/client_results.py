"""Write the results of the client: a TypedDict for the result of each method."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from skillery.formats.manifest import Kind
from skillery.identity import tokens
from skillery.registry import version_rows
from skillery.runs import results

NAMED = {"Kind": Kind, "IdentityKind": tokens.Kind, "Status": version_rows.Status, "RunStatus": results.Status}
"""Literal types of results, by the names that the client gives them."""
_AS_JSON: dict[Any, str] = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    type(None): "None",
    datetime: "str",
    Any: "Any",
    object: "Any",
    msgspec.Raw: "Any",
}


class Field(typing.NamedTuple):
    name: str
    type: str
    """The type as source code of the client, for example `list[SkillRow]`."""
    description: str
    is_always_there: bool


def result_source(roots: Sequence[type[msgspec.Struct]]) -> tuple[str, list[str]]:
    """Return the source of a TypedDict for each struct in `roots` and for the structs inside them, and all names."""
    structs = list(parts_of(roots))
    words = "".join(f"{name} = {_json_type(kind)}\n" for name, kind in NAMED.items())
    return words + "\n\n" + "\n\n".join(map(_typed_dict, structs)), sorted(
        [*NAMED, *(struct.__name__ for struct in structs)]
    )


def parts_of(roots: Iterable[type[msgspec.Struct]]) -> Iterator[type[msgspec.Struct]]:
    """Return the structs in `roots` and all structs inside them, each once. An inner struct comes before its outer
    struct.
    """
    found: dict[str, type[msgspec.Struct]] = {}
    for root in roots:
        _collect(root, found)
    return iter(found.values())


def fields_of(struct: type[msgspec.Struct]) -> Iterator[Field]:
    """Yield the members of the JSON object that a struct is encoded as."""
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        kind = hints[field.name]
        may_be_omitted = not field.required and (
            struct.__struct_config__.omit_defaults or field.default is msgspec.UNSET
        )
        is_null_omitted = may_be_omitted and field.default is None
        yield Field(field.encode_name, _json_type(kind, without_null=is_null_omitted), _said(kind), not may_be_omitted)


def _collect(kind: Any, found: dict[str, type[msgspec.Struct]]) -> None:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        for argument in typing.get_args(kind):
            _collect(argument, found)
        return
    if found.get(kind.__name__, kind) is not kind:
        raise LookupError(f"two structs of results are named {kind.__name__}: rename one of them")
    for hint in typing.get_type_hints(kind).values():
        _collect(hint, found)
    found[kind.__name__] = kind


def _typed_dict(struct: type[msgspec.Struct]) -> str:
    lines = [f"class {struct.__name__}(TypedDict):"]
    text = " ".join(inspect.cleandoc(struct.__doc__ or "").split())
    if text and not text.startswith(f"{struct.__name__}("):
        lines.append(f'    """{text}"""\n')
    for field in fields_of(struct):
        lines.append(f"    {field.name}: {field.type if field.is_always_there else f'NotRequired[{field.type}]'}")
        lines += [f"    {_quoted(field.description)}"] if field.description else []
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    closed = text if text.endswith(".") else f"{text}."
    return f'"""{closed}"""'


def _json_type(kind: Any, *, without_null: bool = False) -> str:
    """Return the type that a value of type `kind` has after it was encoded as JSON and decoded again, as source
    text.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _json_type(arguments[0], without_null=without_null)
    if origin in {typing.Union, types.UnionType}:
        left_out = {msgspec.UnsetType, *({type(None)} if without_null else ())}
        return " | ".join(_json_type(argument) for argument in arguments if argument not in left_out)
    if origin is Literal:
        return f"Literal[{', '.join(repr(argument) for argument in arguments)}]"
    if origin is dict:
        return f"dict[{_json_type(arguments[0])}, {_json_type(arguments[1])}]"
    if origin in {list, tuple, Sequence}:
        return f"list[{_json_type(arguments[0])}]"
    return kind.__name__ if kind not in _AS_JSON and issubclass(kind, msgspec.Struct) else _AS_JSON[kind]


def _said(kind: Any) -> str:
    metas = kind.__metadata__ if typing.get_origin(kind) is typing.Annotated else ()
    return next((meta.description for meta in metas if isinstance(meta, msgspec.Meta) and meta.description), "")
