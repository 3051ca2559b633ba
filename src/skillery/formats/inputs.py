"""`[inputs]` of a manifest, and the check of a run's arguments against these declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, get_args

import msgspec

from skillery.formats.json_values import kind_of, same
from skillery.formats.wording import did_you_mean, printable, quoted

InputType: TypeAlias = Literal["string", "integer", "number", "boolean", "object", "array", "blob", "any"]
INPUT_TYPES: tuple[InputType, ...] = get_args(InputType)
MOST_WARNINGS = 10
"""The maximum number of undeclared arguments with a separate warning. One more warning counts the others."""


class Input(msgspec.Struct, frozen=True):
    """One declared argument of a run. `default` counts only if `has_default` is true."""

    type: InputType
    description: str = ""
    enum: tuple[object, ...] | None = None
    default: object = None
    has_default: bool = False
    required: bool = False


class InputInvalid(ValueError):
    """Raised if the arguments of a run do not fit the skill's `[inputs]`. The message names the argument, and says
    what is expected.
    """


def apply_inputs(inputs: Mapping[str, Input], args: Mapping[str, object], *, strict: bool = False) -> dict[str, object]:
    """Return the arguments of a run: the given arguments in their order, then the defaults of the omitted ones.

    For an input of type integer, `1.0` becomes `1`. Raise InputInvalid if an argument does not fit its declaration, if
    a required argument is missing, or, with `strict`, if an argument is not declared.
    """
    if strict:
        _refuse_undeclared(inputs, args)
    for name, declared in inputs.items():
        if name in args:
            _check(name, declared, args[name])
        elif declared.required and not declared.has_default:
            raise InputInvalid(f"Missing argument {quoted(name)}: it is required ({_declaration(declared)}).")
    defaults = {name: each.default for name, each in inputs.items() if each.has_default and name not in args}
    return {name: _plain(inputs.get(name), value) for name, value in args.items()} | defaults


def undeclared_args(inputs: Mapping[str, Input], args: Mapping[str, object]) -> list[str]:
    """Return warnings about the arguments that a skill with declared inputs does not declare."""
    if not inputs:
        return []
    names = [name for name in args if name not in inputs]
    warnings = [
        f"Argument {quoted(name)} is not declared{did_you_mean(name, inputs)}. The skill may ignore it."
        for name in names[:MOST_WARNINGS]
    ]
    more = len(names) - MOST_WARNINGS
    return [*warnings, f"{more} more arguments are not declared."] if more > 0 else warnings


def blob_args(inputs: Mapping[str, Input], args: Mapping[str, object]) -> list[str]:
    """Return the blob ids in the arguments: the values of inputs with `type = "blob"`."""
    declared = (name for name, each in inputs.items() if each.type == "blob")
    return [value for name in declared if isinstance(value := args.get(name), str)]


def fits(type_: InputType, value: object) -> bool:
    """Return whether a JSON value has a declared type.

    A boolean is not a number, null only fits `any`, and `1.0` is an integer as in JSON Schema.
    """
    return _FITS[type_](value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return _is_number(value) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))


def _is_string(value: object) -> bool:
    return isinstance(value, str)


_FITS: dict[InputType, Callable[[object], bool]] = {
    "string": _is_string,
    "integer": _is_integer,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "blob": _is_string,
    "any": lambda _: True,
}


def _check(name: str, declared: Input, value: object) -> None:
    if not fits(declared.type, value):
        shown = "" if value is None else f" ({_shown(value)})"
        raise InputInvalid(f"Argument {quoted(name)} is {kind_of(value)}{shown}, expected {_declaration(declared)}.")
    if declared.enum is not None and not any(same(value, allowed) for allowed in declared.enum):
        allowed = ", ".join(_shown(each) for each in declared.enum[:20])
        raise InputInvalid(f"Argument {quoted(name)} is {_shown(value)}, allowed are: {allowed}.")


def _refuse_undeclared(inputs: Mapping[str, Input], args: Mapping[str, object]) -> None:
    unknown = next((name for name in args if name not in inputs), None)
    if unknown is not None:
        declared = ", ".join(map(quoted, list(inputs)[:20])) or "none"
        raise InputInvalid(
            f"Argument {quoted(unknown)} is not declared{did_you_mean(unknown, inputs)}. The skill accepts only "
            f"declared arguments: {declared}."
        )


def _plain(declared: Input | None, value: object) -> object:
    is_integer = declared is not None and declared.type == "integer"
    return int(value) if is_integer and isinstance(value, float) else value


def _declaration(declared: Input) -> str:
    what = f"type {declared.type}"
    return f"{what}: {printable(declared.description, 120)}" if declared.description else what


def _shown(value: object) -> str:
    return printable(msgspec.json.encode(value).decode(), 60)
