"""Declarations of methods: the base of params, annotations of params, and the row of a method.

A method is a function `(part, identity, params) -> result`. Its annotations name the part of the core that the method
uses, its params and its result, so that the row repeats none of them.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, Union

import msgspec
from msgspec import Meta

from skillery.backends import Scope
from skillery.formats.json_pieces import JsonPieces

T = TypeVar("T")
R_co = TypeVar("R_co", bound=msgspec.Struct, covariant=True)
Handler = Callable[[Any, Any, Any], Awaitable[Any]]
"""A part of the core, an Identity and decoded params. The result is a struct, or `Json` of a struct."""


def or_none(value: T | msgspec.UnsetType) -> T | None:
    """Return the value of a param, or None if the caller omits the param."""
    return None if value is msgspec.UNSET else value


def about(description: str, **schema: Any) -> Meta:
    """Return the part of a param that tool schemas show: its description, and further keys of its JSON Schema."""
    return Meta(description=description, extra_json_schema=schema)


HIDDEN = Meta(extra={"hidden": True})
"""A param with this annotation is accepted, and is not part of the tool schemas of the Skills Protocol."""
PageLimit = Annotated[int, Meta(ge=1, le=1000), about("Maximum number of results", default=50)]
Cursor = Annotated[str, about("Pagination cursor from previous response")]
Given = Annotated[str, Meta(min_length=1)]
"""A param that limits what a call permits. An empty text, such as an unset variable of a shell, is not the same as no
limit.
"""

SkillName = Annotated[str, about("Skill name")]
ExactVersion = Annotated[str, about("Exact version")]
Sentence = Annotated[str, Meta(min_length=1, max_length=2000)]
"""A text for people: a reason, a note or a message."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all params. Params are passed by name, and unknown names are refused."""


def annotated_params(params: type[msgspec.Struct]) -> list[tuple[msgspec.structs.FieldInfo, Any]]:
    """Return the fields of params with their annotations. Hidden params follow the others."""
    hints = typing.get_type_hints(params, include_extras=True)
    fields = [(field, hints[field.name]) for field in msgspec.structs.fields(params)]
    return sorted(fields, key=lambda field: is_hidden(field[1]))


def is_hidden(annotation: Any) -> bool:
    return HIDDEN in getattr(annotation, "__metadata__", ())


class Json(NamedTuple, Generic[R_co]):
    """A result that is encoded already: the JSON text of a struct of type R."""

    text: msgspec.Raw | JsonPieces


@dataclass(frozen=True)
class Method:
    """The row of a method."""

    call: Handler
    needs: Scope | None
    """The scope that a caller needs. None means that every authenticated caller may call the method."""
    _: KW_ONLY
    audits: str
    """The param that names the subject in the audit trail. Each change and each refused change leaves an entry.

    "" if a call needs no such entry: the method changes nothing, or starts runs or creates blobs (their rows name the
    caller), or changes only memory, or records its own entry.
    """
    once: bool = False
    """Whether the method honours an Idempotency-Key. Such a method has a second effect if a call is repeated without
    a key.
    """
    for_auditors: bool = False
    """Whether the scope `audit` suffices too. The method then shows auditors the records of all identities."""
    develops: bool = False
    """Whether the caller's development versions replace the published ones in this method."""

    @cached_property
    def part(self) -> type:
        """Type of the part of the core that the method gets."""
        part: type = self._annotations[0]
        return part

    @cached_property
    def params(self) -> type[Params]:
        params: type[Params] = self._annotations[2]
        return params

    @cached_property
    def result(self) -> type[msgspec.Struct]:
        """Struct of the result. OpenRPC, MCP tools, skillery.client and the docs are generated from this struct."""
        annotation = self._annotations[-1]
        kinds = typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,)
        structs = {typing.get_args(kind)[0] if typing.get_origin(kind) is Json else kind for kind in kinds}
        if len(structs) != 1:
            raise TypeError(f"the method {self.call.__name__} has several results: {annotation}")
        result: type[msgspec.Struct] = structs.pop()
        return result

    @cached_property
    def _annotations(self) -> list[Any]:
        return list(typing.get_type_hints(self.call).values())


_UNIONS = (Union, types.UnionType)


def rows(*methods: Method, first: Sequence[str] = ()) -> dict[str, Method]:
    """Return the methods by name, those of `first` before the others. A method has the name of its function.

    Raise ValueError if two methods have the same name.
    """
    table = {method.call.__name__: method for method in methods}
    if len(table) != len(methods):
        raise ValueError("two methods have the same name")
    return {name: table[name] for name in (*first, *table)}
