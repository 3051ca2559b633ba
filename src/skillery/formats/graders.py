"""Graders: the rules that decide whether a case of an evaluation passed.

A grader is a table with a `type`: in `grade` of an example in skill.toml, and in `graders` of a case in evals.json.
Patterns and schemas are foreign: a server calls `grade` in a worker process.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from skillery.formats.json_values import join, kind_of, same
from skillery.formats.wording import near_words, one_line, printable, quoted

MAX_GRADERS = 64
MAX_PATTERN = 2_000
"""The maximum number of characters of a pattern."""
_Pattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN)]
_Path = Annotated[str, Meta(min_length=1, max_length=255)]


class Exact(msgspec.Struct, frozen=True, tag="exact", forbid_unknown_fields=True):
    """Passes if the answer is this JSON value."""

    value: Any


class Subset(msgspec.Struct, frozen=True, tag="subset", forbid_unknown_fields=True):
    """Passes if the answer contains the members of this JSON value."""

    value: Any


class FitsSchema(msgspec.Struct, frozen=True, tag="schema", forbid_unknown_fields=True):
    """Passes if the answer is valid for a JSON Schema: `schema` itself, or the one in the bundle file `file`."""

    schema: dict[str, Any] | None = None
    file: _Path | None = None

    def __post_init__(self) -> None:
        if (self.schema is None) == (self.file is None):
            raise ValueError("it has either `schema` or `file`")


class Contains(msgspec.Struct, frozen=True, tag="contains", forbid_unknown_fields=True, rename={"place": "in"}):
    """Passes if a text contains the pattern, letter by letter."""

    pattern: _Pattern
    place: _Path = "answer"
    """`answer`, `log`, or a glob of files."""


class ContainsNot(msgspec.Struct, frozen=True, tag="not_contains", forbid_unknown_fields=True, rename={"place": "in"}):
    """Passes if no text contains the pattern."""

    pattern: _Pattern
    place: _Path = "answer"


class Matches(msgspec.Struct, frozen=True, tag="regex", forbid_unknown_fields=True, rename={"place": "in"}):
    """Passes if a regular expression of Python matches somewhere in a text, or nowhere with `absent`."""

    pattern: _Pattern
    place: _Path = "answer"
    absent: bool = False


class HasFile(msgspec.Struct, frozen=True, tag="file", forbid_unknown_fields=True):
    """Passes if `count` or more files match the glob `path`, each of the media type `kind` and of `min_bytes`."""

    path: _Path
    kind: str = ""
    min_bytes: Annotated[int, Meta(ge=0)] = 1
    count: Annotated[int, Meta(ge=1)] = 1


class Code(msgspec.Struct, frozen=True, tag="python", forbid_unknown_fields=True):
    """Passes if `grade(answer, files, transcript)` of a Python file of the bundle says so."""

    file: _Path


class Rubric(msgspec.Struct, frozen=True, tag="rubric", forbid_unknown_fields=True):
    """A sentence that a model judges."""

    text: Annotated[str, Meta(min_length=1, max_length=8_000)]
    weight: Annotated[float, Meta(gt=0)] = 1.0


Grader = Exact | Subset | FitsSchema | Contains | ContainsNot | Matches | HasFile | Code | Rubric
RunGrader = Exact | Subset | FitsSchema | Contains | ContainsNot | Matches
OF_RUNS = get_args(RunGrader)
"""The graders of one run, without a model and without files."""
TYPES = ("exact", "subset", "schema", "contains", "not_contains", "regex", "file", "python", "rubric")


def parse_grader(table: object) -> Grader:
    """Return the grader of a table. Raise ValueError with the reason if the table is not one."""
    kind = table.get("type") if isinstance(table, Mapping) else None
    if kind not in TYPES:
        near = near_words(kind, TYPES)[:1] if isinstance(kind, str) else []
        suggestion = f"; did you mean {near[0]}?" if near else f"; a grader has one of the types {', '.join(TYPES)}"
        shown = quoted(kind) if isinstance(kind, str) else "missing"
        raise ValueError(f"has a grader whose type is {shown}{suggestion}")
    try:
        return msgspec.convert(table, Grader)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise ValueError(f"has a grader of the type {kind} that is not valid: {error}") from None


# -- Whether an answer passes ------------------------------------------------------------------------------------------


_MOST_REASON = 200


class Answer(msgspec.Struct, frozen=True):
    """What a run returned, as JSON, and its log."""

    result: bytes
    log: str = ""

    @property
    def value(self) -> object:
        return msgspec.json.decode(self.result or b"null")

    def text(self, place: str) -> str:
        """Return the log, or the result as text: a string itself, and other values as JSON."""
        if place == "log":
            return self.log
        value = self.value
        return value if isinstance(value, str) else self.result.decode()


def grade(graders: Sequence[Grader], answer: Answer, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return, for each grader, why the answer does not pass, or "" if it passes. `files` are the schemas in the bundle,
    by path. Blocking: a pattern may take long.
    """
    return tuple(_why_not(grader, answer, files) for grader in graders)


Grade = Callable[[str, Sequence[Grader], Answer, Mapping[str, bytes]], Awaitable[tuple[str, ...]]]
"""`grade` in a worker process, or in this process. The first argument is the name of the caller."""


async def grade_here(
    _caller: str, graders: Sequence[Grader], answer: Answer, files: Mapping[str, bytes]
) -> tuple[str, ...]:
    """`grade` in this process, for the author of the graders."""
    return grade(graders, answer, files)


def _why_not(grader: Grader, answer: Answer, files: Mapping[str, bytes]) -> str:
    try:
        return _problem(grader, answer, files)
    except re.error as error:
        return f"a pattern is not valid: {error}"
    except RecursionError:
        return "nested too deep"


def load_validator() -> None:
    """Import what `grade` needs. A worker process cannot do so later."""
    import jsonschema

    jsonschema.Draft202012Validator.check_schema({})


def schema_files(graders: Sequence[Grader]) -> Iterator[str]:
    """Yield the paths of the files that `grade` needs."""
    yield from (grader.file for grader in graders if isinstance(grader, FitsSchema) and grader.file)


def _problem(grader: Grader, answer: Answer, files: Mapping[str, bytes]) -> str:
    match grader:
        case Exact(value) | Subset(value):
            return "; ".join(differences(value, answer.value, subset=isinstance(grader, Subset)))
        case FitsSchema():
            return _schema_problem(grader, answer.value, files)
        case Contains(pattern, place):
            return "" if pattern in answer.text(place) else _mismatch(answer, place, "does not contain", pattern)
        case ContainsNot(pattern, place):
            return _mismatch(answer, place, "contains", pattern) if pattern in answer.text(place) else ""
        case Matches(pattern, place, absent):
            matches = re.search(pattern, answer.text(place), re.MULTILINE)
            verb = "matches" if absent else "does not match"
            return "" if bool(matches) != absent else _mismatch(answer, place, verb, pattern)
    raise TypeError(f"{type(grader).__name__} does not grade a run")


def _mismatch(answer: Answer, place: str, verb: str, pattern: str) -> str:
    return f"the {place} {verb} {quoted(pattern)}: it is {shown_value(answer.log if place == 'log' else answer.value)}"


def _schema_problem(grader: FitsSchema, value: object, files: Mapping[str, bytes]) -> str:
    import jsonschema  # takes 60 ms, and few graders need it
    import referencing

    schema: Any = grader.schema
    try:
        if grader.file is not None:
            schema = msgspec.json.decode(files[grader.file])
        jsonschema.Draft202012Validator.check_schema(schema)
        # With a registry of its own, no $ref is fetched.
        errors = jsonschema.Draft202012Validator(schema, registry=referencing.Registry()).iter_errors(value)
        first = next(errors, None)
    except jsonschema.SchemaError as error:
        return f"the schema is not valid: {one_line(error.message, _MOST_REASON)}"
    except (msgspec.DecodeError, referencing.exceptions.Unresolvable) as error:
        return f"the schema is not valid: {one_line(str(error), _MOST_REASON)}"
    return "" if first is None else one_line(f"output{first.json_path[1:]}: {first.message}", _MOST_REASON)


# -- The comparison of an output with the expected one ---------------------------------------------------------------


MOST_SHOWN = 10
"""The maximum number of differences that one comparison returns."""
_SHOWN_CHARACTERS = 80


def differences(expected: object, output: object, *, subset: bool) -> list[str]:
    """Return one line for each difference, for example `output.rows: expected 3, got 4`, at most MOST_SHOWN lines.

    With `subset`, objects may have more keys than expected, except inside arrays: objects there must have exactly the
    expected keys. `1` equals `1.0` and differs from `true`.
    """
    return list(islice(_differences(expected, output, "output", subset), MOST_SHOWN))


def _differences(expected: object, output: object, path: str, subset: bool) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(output, Mapping):
        yield from _in_objects(expected, output, path, subset)
    elif isinstance(expected, list) and isinstance(output, list):
        yield from _in_arrays(expected, output, path)
    elif not same(expected, output):
        yield f"{path}: expected {shown_value(expected)}, got {shown_value(output)}"


def _in_objects(expected: Mapping[str, object], output: Mapping[str, object], path: str, subset: bool) -> Iterator[str]:
    for key, value in expected.items():
        if key in output:
            yield from _differences(value, output[key], join(path, key), subset)
        else:
            yield f"{join(path, key)}: expected {shown_value(value)}, got nothing"
    for key in output if not subset else ():
        if key not in expected:
            yield f"{join(path, key)}: expected nothing, got {shown_value(output[key])}"


def _in_arrays(expected: list[object], output: list[object], path: str) -> Iterator[str]:
    if len(expected) != len(output):
        yield f"{path}: expected {_items(len(expected))}, got {_items(len(output))}"
    for index, (expected_item, output_item) in enumerate(zip(expected, output, strict=False)):
        yield from _differences(expected_item, output_item, f"{path}[{index}]", False)


def shown_value(value: object) -> str:
    """Return a JSON value on one line: a short value as JSON, a long value cut, or described by kind and size."""
    if isinstance(value, Mapping) and len(value) > _SHOWN_CHARACTERS:
        return f"{kind_of(value)} with {len(value)} keys"
    if isinstance(value, list) and len(value) > _SHOWN_CHARACTERS:
        return _items(len(value))
    if isinstance(value, str):
        return printable(msgspec.json.encode(value[: 2 * _SHOWN_CHARACTERS]).decode(), _SHOWN_CHARACTERS)
    try:
        text = msgspec.json.encode(value).decode()
    except RecursionError:
        return kind_of(value)
    return printable(text[: 2 * _SHOWN_CHARACTERS], _SHOWN_CHARACTERS)


def _items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"
