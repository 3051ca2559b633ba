"""Writes the generated modules of skillery.client. `make client` runs this module.

The modules of methods and results are made from METHODS. The synchronous client is made from the asynchronous client.
This module imports no module of the client, so that it can replace a broken client.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from skillery.formats.manifest import Kind
from skillery.identity import tokens
from skillery.method import Method, Params, annotated_params
from skillery.methods.table import FOR_MODELS, METHODS, TOOLS
from skillery.registry import version_rows
from skillery.runs import results

# -- Write the results of the client: a TypedDict for the result of each method ----------------------------------------


NAMED = {"Kind": Kind, "IdentityKind": tokens.Kind, "Status": version_rows.Status, "RunStatus": results.Status}
"""Literal types in results, by the names that they have in the client."""
_AS_JSON: dict[Any, str] = {
    **dict.fromkeys((str, date, datetime), "str"),
    int: "int",
    float: "float",
    bool: "bool",
    type(None): "None",
    Any: "Any",
    object: "Any",
    msgspec.Raw: "Any",
}


class Field(typing.NamedTuple):
    """A member of the JSON object of a result."""

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
    """Return the structs in `roots` and all structs inside them, once each, inner structs before outer structs."""
    structs: dict[str, type[msgspec.Struct]] = {}
    for root in roots:
        _collect(root, structs)
    return iter(structs.values())


def fields_of(struct: type[msgspec.Struct]) -> Iterator[Field]:
    """Yield the members of the JSON object as which a struct is encoded."""
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        kind = hints[field.name]
        may_be_omitted = not field.required and (
            struct.__struct_config__.omit_defaults or field.default is msgspec.UNSET
        )
        is_null_omitted = may_be_omitted and field.default is None
        yield Field(field.encode_name, _json_type(kind, without_null=is_null_omitted), _about(kind), not may_be_omitted)


def _collect(kind: Any, structs: dict[str, type[msgspec.Struct]]) -> None:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        for argument in typing.get_args(kind):
            _collect(argument, structs)
        return
    if structs.get(kind.__name__, kind) is not kind:
        raise LookupError(f"two structs of results are named {kind.__name__}: rename one of them")
    for hint in typing.get_type_hints(kind).values():
        _collect(hint, structs)
    structs[kind.__name__] = kind


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
    """Return, as source text, the type of a value after it was encoded as JSON and decoded again."""
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


def _about(kind: Any) -> str:
    metas = kind.__metadata__ if typing.get_origin(kind) is typing.Annotated else ()
    return next((meta.description for meta in metas if isinstance(meta, msgspec.Meta) and meta.description), "")


CLIENT = Path(__file__).parents[1] / "client"
DOC = '"""Made by `make client`: do not edit."""\n\n'
# The module has no postponed annotations, because `__required_keys__` cannot read NotRequired in them.
HEAD = f"""{DOC}from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from skillery.client.stubs import awaited, batched, blocking, params_of

if TYPE_CHECKING:
    from skillery.client.batches import Pending
    from skillery.client.blobs import Source

"""
ABOUT_MODELS = "The defaults of params in tool calls of models, if they differ from those of the method."
AWAITED = {"asynchronous.py": "synchronous.py", "async_transfers.py": "transfers.py"}
"""Modules with coroutines, and the module that is generated from each: the same code without coroutines."""
AS_ANSWERED = {"LockEntry": "Locked"}
"""Structs of params that the client replaces by a struct of results, because callers pass a part of a result."""
UPLOADED = "Sequence[RunFile]"
"""A parameter type. Except in a batch, callers may also pass a mapping of contents by path, which are uploaded."""
_SIMPLE = {str: "str", int: "int", float: "float", bool: "bool", Any: "Any"}
_WITHOUT_AWAITING = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b(\w+)_async\b", r"\1"),
    (r"\bclient\.async_transfers\b", "client.transfers"),
    (r"\bAsync(Client|Methods|Transfers|OpenBlob|Batch|Iterator)\b", r"\1"),
    (r"\bAsyncGenerator\[([\w.]+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\banext\(", "next("),
    (r"\bhttpx\.Async", "httpx."),
    (r"\bAsyncBaseTransport\b", "BaseTransport"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\ba(close|read)\b", r"\1"),
    (r"\baiter_(raw|bytes)\b", r"iter_\1"),
    (r'\A"""(\w[^"]*?) `([\w/]+\.py)`\s+is\s+made[^"]*"""', r'"""\1 Made by `make client`: do not edit."""'),
)


def sources() -> dict[Path, str]:
    """Return the source text of each generated module, by path."""
    source_by_path = {CLIENT / "generated.py": _generated()}
    for awaited, plain in AWAITED.items():
        source_by_path[CLIENT / plain] = _synchronous((CLIENT / awaited).read_text("utf-8"))
    return {path: _formatted(path, source) for path, source in source_by_path.items()}


def main() -> None:
    for path, source in sources().items():
        path.write_text(source, "utf-8")


def _formatted(path: Path, source: str) -> str:
    for command in (["check", "--select=I", "--fix", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


def _synchronous(source: str) -> str:
    """Return the source of an asynchronous module without coroutines."""
    for pattern, replacement in _WITHOUT_AWAITING:
        source = re.sub(pattern, replacement, source)
    return source


# -- tables ------------------------------------------------------------------------------------------------------


def tables() -> dict[str, tuple[str, list[str]]]:
    """Return the names of methods that a client treats differently, with a description, by the name of the list."""
    once = [name for name, method in METHODS.items() if method.once]
    harmless = [name for name, method in METHODS.items() if not method.once and _is_harmless(method)]
    return {
        "ONCE": ("Methods that the server executes once for each Idempotency-Key.", once),
        "REPEATABLE": (
            "Further methods that a client may call twice without harm: most of them change nothing.",
            harmless,
        ),
        "TOOLS": ("The tools of the protocol.", list(TOOLS)),
    }


def _is_harmless(method: Method) -> bool:
    return method.needs == "read" or method.audits == ""


# -- the module ------------------------------------------------------------------------------------------------------


def _generated() -> str:
    """Return the source of `generated.py`."""
    structs = _structs()
    stubs = "\n\n".join(_stub(name, method) for name, method in METHODS.items())
    results, names = result_source([method.result for method in METHODS.values()])
    return (
        f"{HEAD}__all__ = {names!r}\n\n{_constants()}\n{results}\n\n{''.join(map(_value, structs))}\n\n{stubs}\n\n"
        + _class(
            "Methods",
            "Every method of the server.",
            "def call({}, *, idempotency_key: str | None = None) -> Any",
            "blocking",
        )
        + _class(
            "AsyncMethods",
            "Every method of the server, awaited.",
            "async def call({}, *, idempotency_key: str | None = None) -> Any",
            "awaited",
        )
        + _class("BatchMethods", "Every method, in a batch.", 'def call({}) -> "Pending[Any]"', "batched")
    )


def _constants() -> str:
    lines = [
        f'{name} = {repr(tuple(names)) if name == "TOOLS" else f"frozenset({names!r})"}\n"""{description}"""\n'
        for name, (description, names) in tables().items()
    ]
    return "".join(lines) + f'FOR_MODELS: dict[str, dict[str, Any]] = {FOR_MODELS!r}\n"""{ABOUT_MODELS}"""\n'


def _class(name: str, description: str, call: str, flavour: str) -> str:
    signature = call.format("self, method: str, params: Mapping[str, Any] | None = None")
    methods = "".join(f"    {method} = {flavour}({method})\n" for method in METHODS)
    return (
        f'class {name}:\n    """{description}"""\n\n'
        f"    {signature}:\n        raise NotImplementedError\n\n{methods}\n\n"
    )


def _stub(name: str, method: Method) -> str:
    """Return the source of the stub for a method."""
    fields = list(_fields(method.params))
    optional = [f"{field}: {_optional(kind)} = None" for field, kind, _, is_required in fields if not is_required]
    optional += ["idempotency_key: str | None = None"] if method.once else []
    parameters = ["self: Any", *(f"{field}: {kind}" for field, kind, _, is_required in fields if is_required)]
    parameters += ["*", *optional] if optional else []
    return (
        f"def {name}({', '.join(parameters)}) -> {method.result.__name__}:\n"
        f'    """{_documentation(method.params, keyed=method.once)}"""\n'
        "    return params_of(locals())\n"
    )


def _optional(kind: str) -> str:
    """Return the type of an optional parameter of a method."""
    return f'"{UPLOADED} | Mapping[str, Source] | None"' if kind == UPLOADED else f"{kind} | None"


def _documentation(struct: type[Params], *, keyed: bool) -> str:
    lines = [" ".join(inspect.cleandoc(struct.__doc__ or "").split())]
    message = [f"{field}: {description}" for field, _, description, _ in _fields(struct) if description]
    key = "idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)"
    message += [key] * keyed
    return "\n\n    ".join([*lines, "\n    ".join(message)]).rstrip() + ("\n    " if message else "")


# -- params ------------------------------------------------------------------------------------------------------


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the name, the type and the description of each field, and whether the field is required. The description is
    "" if the field has none.
    """
    for field, kind in annotated_params(struct):
        metas = typing.get_args(kind)[1:] if typing.get_origin(kind) is typing.Annotated else ()
        described = [meta.description for meta in metas if isinstance(meta, msgspec.Meta) and meta.description]
        yield field.encode_name, _type(kind), described[0] if described else "", field.required


def _type(kind: Any) -> str:
    """Return the type of a parameter in the client, as source text. The client accepts any Mapping for an object, and
    any Sequence for a list of objects.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in {typing.Union, types.UnionType}:
        (only,) = (argument for argument in arguments if argument is not msgspec.UnsetType)
        return _type(only)
    if origin is Literal:
        return f"Literal[{', '.join(repr(argument) for argument in arguments)}]"
    if origin is list:
        return f"{'Sequence' if _is_struct(arguments[0]) else 'list'}[{_type(arguments[0])}]"
    if origin is dict:
        return f"Mapping[{_type(arguments[0])}, {_type(arguments[1])}]"
    return AS_ANSWERED.get(kind.__name__, kind.__name__) if _is_struct(kind) else _SIMPLE[kind]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _structs() -> list[type[msgspec.Struct]]:
    """Return the structs inside params, except for the structs that AS_ANSWERED replaces."""
    structs: dict[str, type[msgspec.Struct]] = {}
    for method in METHODS.values():
        for hint in typing.get_type_hints(method.params).values():
            structs |= {arg.__name__: arg for arg in typing.get_args(hint) if _is_struct(arg)}
    for name in AS_ANSWERED:
        structs.pop(name, None)
    return list(structs.values())


def _value(struct: type[msgspec.Struct]) -> str:
    fields = "".join(
        f"    {name}: {kind if is_required else f'NotRequired[{kind}]'}\n"
        for name, kind, _, is_required in _fields(struct)
    )
    return f'class {struct.__name__}(TypedDict):\n    """{struct.__doc__}"""\n\n{fields}\n\n'


if __name__ == "__main__":
    main()
