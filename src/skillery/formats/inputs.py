"""`[inputs]` of a manifest, and the check of a run's arguments against these declarations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from skillery.formats.json_values import kind_of, same
from skillery.formats.wording import did_you_mean, one_line, printable, quoted

InputType: TypeAlias = Literal["string", "integer", "number", "boolean", "object", "array", "blob", "any"]
INPUT_TYPES: tuple[InputType, ...] = get_args(InputType)
MOST_TEXT, MOST_COMPACT, MOST_CALL = 1000, 300, 250
"""Limits of the characters of a message, of the compact inputs in it, and of the call in it."""
CORRECT_CALL = "\nA correct call: "
"""The text before the call at the end of a message. The call is a JSON object with `name` and `args`."""
SAMPLE_BLOB = "blob:ID"
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
    """Raised if the arguments of a run do not fit the skill's `[inputs]`. The message has one line for each wrong
    argument, with its name and the expected value.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("\n".join(problems.values()))
        self.problems = problems
        """The line of each wrong argument, by its name."""


def inputs_in(table: Mapping[str, Any]) -> dict[str, Input]:
    """Return the inputs of a table `[inputs]`, or of the parameters of a tool. Declarations that are not tables are
    left out.
    """
    inputs = {}
    for name, declaration in table.items():
        try:
            inputs[name] = msgspec.convert(_known(declaration if isinstance(declaration, Mapping) else {}), Input)
        except msgspec.ValidationError:
            continue
    return inputs


def _known(declaration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an input. An unknown type is `any`, as in a run."""
    fields = {key: declaration[key] for key in Input.__struct_fields__ if key in declaration}
    return fields | {
        "type": fields["type"] if fields.get("type") in INPUT_TYPES else "any",
        "has_default": "default" in declaration,
    }


def apply_inputs(inputs: Mapping[str, Input], args: Mapping[str, object], *, strict: bool = False) -> dict[str, object]:
    """Return the given arguments in their order, followed by the defaults of the omitted inputs.

    For an input of type integer, `1.0` becomes `1`. Raise InputInvalid if an argument does not fit its declaration, if
    a required argument is missing, or, with `strict`, if an argument is not declared.
    """
    problems = {name: problem for name, declared in inputs.items() if (problem := _problem(name, declared, args))}
    if strict:
        # Only so many, because a search for similar names takes a millisecond, and callers choose the names.
        unknown = itertools.islice((name for name in args if name not in inputs), MOST_WARNINGS)
        problems |= {name: _undeclared(name, inputs) for name in unknown}
    if problems:
        raise InputInvalid(problems)
    defaults = {
        name: declared.default for name, declared in inputs.items() if declared.has_default and name not in args
    }
    return {name: _plain(inputs.get(name), value) for name, value in args.items()} | defaults


def undeclared_args(inputs: Mapping[str, Input], args: Mapping[str, object]) -> list[str]:
    """Return a warning for each argument that the skill does not declare. A skill without `[inputs]` gets none."""
    if not inputs:
        return []
    names = [name for name in args if name not in inputs]
    warnings = [
        f"Argument {quoted(name)} is not declared{did_you_mean(name, inputs)}. The skill may ignore it."
        for name in names[:MOST_WARNINGS]
    ]
    unnamed_count = len(names) - MOST_WARNINGS
    return [*warnings, f"{unnamed_count} more arguments are not declared."] if unnamed_count > 0 else warnings


def blob_args(inputs: Mapping[str, Input], args: Mapping[str, object]) -> list[str]:
    """Return the blob ids in the arguments: the values of inputs with `type = "blob"`."""
    declared = (name for name, declared_input in inputs.items() if declared_input.type == "blob")
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


_SAMPLES: dict[InputType, object] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "object": {},
    "array": [],
    "blob": SAMPLE_BLOB,
    "any": "value",
}


def _problem(name: str, declared: Input, args: Mapping[str, object]) -> str:
    """Return the problem of one argument, or ""."""
    if name not in args:
        is_missing = declared.required and not declared.has_default
        return f"Missing argument {quoted(name)}: it is required ({_declaration(declared)})." if is_missing else ""
    value = args[name]
    if not fits(declared.type, value):
        shown = "" if value is None else f" ({_shown(value)})"
        return f"Argument {quoted(name)} is {kind_of(value)}{shown}, expected {_declaration(declared)}."
    if declared.enum is not None and not any(same(value, allowed) for allowed in declared.enum):
        allowed = ", ".join(_shown(allowed_value) for allowed_value in declared.enum[:20])
        return f"Argument {quoted(name)} is {_shown(value)}, allowed are: {allowed}."
    return ""


def _undeclared(name: str, inputs: Mapping[str, Input]) -> str:
    declared = ", ".join(map(quoted, list(inputs)[:20])) or "none"
    return (
        f"Argument {quoted(name)} is not declared{did_you_mean(name, inputs)}. The skill accepts only declared "
        f"arguments: {declared}."
    )


# -- texts for callers -------------------------------------------------------------------------------------------------


def with_usage(error: InputInvalid, name: str, inputs: Mapping[str, Input], args: Mapping[str, object]) -> str:
    """Return a message with all problems of a call of `name`, a skill or a tool: the problems, undeclared arguments,
    the inputs, and one correct call.

    The correct call has the given arguments that fit, and sample values for the wrong and missing ones. The message has
    at most MOST_TEXT characters.
    """
    call = _correct_call(name, inputs, args, error.problems)
    usage = f"\nInputs: {compact_inputs(inputs) or 'none'}{CORRECT_CALL}{call}"
    fitting_args = {key: value for key, value in args.items() if key not in error.problems}
    lines = [*error.problems.values(), *undeclared_args(inputs, fitting_args)]
    return f"{printed_lines(lines, MOST_TEXT - len(usage))}{usage}"


def printed_lines(lines: Collection[str], most: int) -> str:
    """Return the lines that fit into `most` characters, at least a part of the first line. A last line states the
    number of omitted lines.
    """
    most -= len("\n100000 more problems.")  # keep space for the last line
    text = ""
    for number, line in enumerate(lines):
        if number and len(text) + len(line) >= most:
            return f"{text}\n{len(lines) - number} more problems."
        text = f"{text}\n{line}" if text else line[:most]
    return text


def compact_inputs(inputs: Mapping[str, Input]) -> str:
    """Return the inputs as one text, required ones first: `text: string, top?: integer = 5, mode?: "a"|"b"`. A question
    mark means optional.
    """
    return _joined([_compact(name, inputs[name]) for name in _by_need(inputs)], MOST_COMPACT)


def signature_of(inputs: Mapping[str, Input], limit: int) -> str:
    """Return the names of the required inputs: `text, top …`. The dots stand for optional inputs."""
    required = _joined([one_line(name, 40) for name in inputs if not _is_optional(inputs[name])], limit)
    has_more = any(map(_is_optional, inputs.values())) and not required.endswith("…")
    return f"{required} …".lstrip() if has_more else required


def _by_need(inputs: Mapping[str, Input]) -> list[str]:
    """Return the names of the inputs, required ones first."""
    return sorted(inputs, key=lambda name: _is_optional(inputs[name]))


def _is_optional(declared: Input) -> bool:
    return not declared.required or declared.has_default


def _compact(name: str, declared: Input) -> str:
    kind = "|".join(map(_shown, declared.enum[:8])) if declared.enum else declared.type
    default = f" = {_shown(declared.default)}" if declared.has_default else ""
    return f"{one_line(name, 40)}{'?' * _is_optional(declared)}: {kind}{default if len(default) < 24 else ''}"


def _joined(parts: Sequence[str], most: int) -> str:
    """Return the parts that fit into `most` characters, joined with commas."""
    text = ""
    for number, part in enumerate(parts):
        if len(text) + len(part) > most:
            return f"{text}, and {len(parts) - number} more" if text else part[:most]
        text = f"{text}, {part}" if text else part
    return text


def _correct_call(name: str, inputs: Mapping[str, Input], args: Mapping[str, object], problems: Collection[str]) -> str:
    """Return a correct call as JSON: the given arguments that fit, and samples for the inputs in `problems`.

    If this text has more than MOST_CALL characters, the call has only samples for the required inputs.
    """
    given_args = {key: args[key] for key in args if key in inputs and key not in problems}
    sample_args = {key: sample_of(inputs[key]) for key in inputs if key in problems}
    call = {"name": name, "args": {**given_args, **sample_args}}
    if len(text := _json(call)) > MOST_CALL:
        required = {
            key: sample_of(declared)
            for key, declared in inputs.items()
            if declared.required and not declared.has_default
        }
        text = _json({"name": name, "args": required})
    return text if len(text) <= MOST_CALL else f"{text[: MOST_CALL - 1]}…"


def sample_of(declared: Input) -> object:
    """Return a value that the input accepts: its default, its first allowed value, or a value of its type."""
    if declared.has_default:
        return declared.default
    return declared.enum[0] if declared.enum else _SAMPLES[declared.type]


def _plain(declared: Input | None, value: object) -> object:
    is_integer = declared is not None and declared.type == "integer"
    return int(value) if is_integer and isinstance(value, float) else value


def _declaration(declared: Input) -> str:
    kind = f"type {declared.type}"
    return f"{kind}: {printable(declared.description, 120)}" if declared.description else kind


def _shown(value: object) -> str:
    return printable(_json(value), 60)


def _json(value: object) -> str:
    """Return the value as JSON text. Control characters and characters that reorder text are escaped."""
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    # They are only in strings, where an escape means the same.
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)
