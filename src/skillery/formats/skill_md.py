"""SKILL.md: Markdown after YAML frontmatter.

Frontmatter is untrusted input, and YAML has many features that no SKILL.md needs. This reader therefore uses only the
events of the YAML parser: it resolves no tags, limits what aliases repeat, and refuses deep nesting before it builds a
value.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

import msgspec
import yaml

from skillery.errors import InvalidBundle
from skillery.formats.json_values import text_problem
from skillery.formats.wording import Problem, quoted, raise_problems

FILE = "SKILL.md"
MAX_FRONTMATTER_BYTES = 64 * 1024
MAX_DEPTH = 8
MOST_REPEATED = 256 * 1024
"""Limit of the characters that the aliases of a frontmatter repeat. Each value counts 16 more."""
HEAD_CHARACTERS = 1024 * 1024
"""The maximum number of characters that are searched for frontmatter: a list of short lines needs many times the
memory of the text.
"""

_PIECE = 64 * 1024
_FENCE = "---"
_LONGEST_SHOWN = 300
_HINT = "Frontmatter is between two lines of '---' and is a YAML mapping of plain values, e.g. 'name: My skill'."


class SkillMd(msgspec.Struct, frozen=True):
    """A parsed SKILL.md. `body` is the text after the frontmatter, with its original line ends.

    Every scalar of `frontmatter` is a string as written in the file (`1.10` stays `1.10`). `frontmatter` is {} if the
    file has none.
    """

    frontmatter: dict[str, object]
    body: str
    warnings: tuple[str, ...] = ()
    typed: dict[str, object] = {}
    """The frontmatter with the types of YAML: see `typed_value`."""

    @classmethod
    def of(cls, built: dict[str, Any], body: str, warnings: tuple[str, ...] = ()) -> SkillMd:
        """Return a SkillMd from the frontmatter that a Builder has built."""
        return cls(_texts(built), body, warnings, typed_value(built))


class Plain(str):
    """A scalar without quotes, which YAML may read as a number, a boolean or null."""

    __slots__ = ()


_CONSTANTS = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?")
_TEXT_KEYS = frozenset(
    {"name", "short_description", "description", "license", "compatibility", "tags", "allowed-tools", "version", "id"}
)


def _texts(value: Any) -> Any:
    """Return a value of frontmatter with all scalars as strings."""
    if isinstance(value, dict):
        return {name: _texts(inner) for name, inner in value.items()}
    return [_texts(inner) for inner in value] if isinstance(value, list) else str(value)


def typed_value(value: object, key: str = "") -> Any:
    """Return a value of the frontmatter key `key` with JSON types, by the core schema of YAML 1.2.

    These values stay text: quoted values; the values of `_TEXT_KEYS`; numbers that a number in JSON would change
    (`1.10`, `007`, `+1`, `1e3`, `0x1f`, more than 15 digits, infinity). Dates have no type in this schema.
    """
    if isinstance(value, dict):
        return {name: typed_value(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [typed_value(inner, key) for inner in value]
    if not isinstance(value, Plain) or key in _TEXT_KEYS:
        return str(value)
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    if not _NUMBER.fullmatch(value):
        return str(value)
    number = float(value) if "." in value else int(value)
    return number if str(number) == value else str(value)


def parse_skill_md(text: str) -> SkillMd:
    """Return the parsed SKILL.md. A byte order mark and CRLF are permitted.

    Raise InvalidBundle if the frontmatter is invalid or the text has characters that cannot be stored. The error names
    the file, and the line if the line is known.
    """
    problem = text_problem(text)
    if problem:
        _refuse(problem, None)
    lines, rest = head_of(text)
    end = _end_of_frontmatter(lines)
    if end == 0:
        return SkillMd({}, without_mark(text))
    if end is None and not rest:
        _refuse("has frontmatter without an end (a second line of '---')", 1)
    source = "".join(lines[1:end])
    if len(source.encode()) > MAX_FRONTMATTER_BYTES or end is None:
        _refuse(f"has more than {MAX_FRONTMATTER_BYTES} bytes of frontmatter", 1)
    frontmatter = _frontmatter(source)
    return SkillMd.of(frontmatter, "".join([*lines[end + 1 :], rest]), tuple(_warnings(frontmatter)))


def body_of(text: str) -> str:
    """Return the text after the frontmatter, without parsing the frontmatter. Publishing has checked it before."""
    lines, rest = head_of(text)
    end = _end_of_frontmatter(lines)
    return "".join([*lines[end + 1 :], rest]) if end else without_mark(text)


def text_of(data: bytes) -> str:
    """Return the text of a SKILL.md. Imported files may contain any bytes.

    The encoding is UTF-16 if the file has a UTF-16 byte order mark, else UTF-8. Invalid bytes become U+FFFD.
    """
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return _replaced(data, encoding)


def _replaced(data: bytes, encoding: str) -> str:
    """Return the decoded text. The data is decoded in pieces: invalid bytes are slow, and other threads run between
    pieces.
    """
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    pieces = [decoder.decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def without_mark(text: str) -> str:
    return text.removeprefix("\ufeff")


def head_of(text: str, most: int = HEAD_CHARACTERS) -> tuple[list[str], str]:
    """Return the lines at the start that may contain frontmatter, with their line ends, and the remaining text.

    Only a line feed ends a line. The lines have about `most` characters together. The last one is cut if it continues
    for more than MAX_FRONTMATTER_BYTES beyond `most`.
    """
    text_without_mark = without_mark(text)
    end = text_without_mark.find("\n", most, most + MAX_FRONTMATTER_BYTES) + 1 or most
    return io.StringIO(text_without_mark[:end], newline="\n").readlines(), text_without_mark[end:]


def _end_of_frontmatter(lines: list[str]) -> int | None:
    """Return the index of the closing fence, 0 if the file has no frontmatter, or None if the frontmatter is not
    closed.
    """
    if not lines or lines[0].rstrip() != _FENCE:
        return 0
    return next((i for i, line in enumerate(lines) if i and line.rstrip() == _FENCE), None)


def _frontmatter(source: str) -> dict[str, object]:
    """Return the values of the YAML text. Raise InvalidBundle, with the line in SKILL.md, if it is not valid."""
    try:
        return Builder(source).mapping()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        text = _remedy(source, mark) or error.problem or error.context
        _refuse(f"has broken frontmatter: {text}", mark.line + 2 if mark else None)
    except yaml.reader.ReaderError as error:
        line = source.count("\n", 0, error.position) + 2
        _refuse("has a character in its frontmatter that YAML does not allow", line)
    except (ValueError, OverflowError):  # an escape such as "\UFFFFFFFF" is not a character
        _refuse("has an escape in its frontmatter that names no character", None)


def _remedy(source: str, mark: yaml.Mark | None) -> str:
    """Return what to change at the line where the text is not YAML, if it is a usual mistake, else ""."""
    line = next(islice(io.StringIO(source), mark.line, None), "").rstrip("\n") if mark else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "YAML has no tabs: indent the line with spaces"
    key, colon, value = line.strip().partition(":")
    if not colon or len(line) > _LONGEST_SHOWN or value.strip()[:1] in {"", "'", '"'}:
        return ""
    if ": " in value or value.rstrip().endswith(":") or value.strip()[0] in "@`%&*!|>[]{}":
        return f"the value needs quotes: {key}: {json.dumps(value.strip(), ensure_ascii=False)}"
    return ""


class Builder:
    """Builds strings, lists and dicts from the events of the YAML parser, and refuses all other features of YAML."""

    def __init__(self, source: str) -> None:
        self.events: Iterator[yaml.Event] = yaml.parse(source, Loader=yaml.BaseLoader)
        self._anchors: dict[str, tuple[object, int]] = {}
        self._built = 0
        self._repeated = 0

    def mapping(self) -> dict[str, object]:
        """Return the mapping that is the only document of the text, or {} if the text is empty."""
        next(self.events)  # the stream's start
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return {}
        root = next(self.events)
        empty = isinstance(root, yaml.ScalarEvent) and root.value == "" and root.style is None
        value = {} if empty else self.value(root, 1)
        if not isinstance(value, dict):
            _refuse("has frontmatter that is not a mapping of keys to values", 2)
        next(self.events)  # the document's end
        if not isinstance(next(self.events), yaml.StreamEndEvent):
            _refuse("has more than one document in its frontmatter", None)
        return value

    def value(self, event: yaml.Event, depth: int) -> object:
        """Return the value that begins with `event`. `depth` counts its nesting from 1."""
        if isinstance(event, yaml.AliasEvent):
            return self.repeated(event, depth)
        values_before, anchor = self._built, getattr(event, "anchor", None)
        value = self.anchored(event, depth)
        self._built += 16 + (len(value) if isinstance(value, str) else 0)
        if anchor is not None:
            self._anchors[anchor] = value, self._built - values_before
        return value

    def repeated(self, alias: yaml.AliasEvent, depth: int) -> object:
        """Return the value that an alias repeats. Raise InvalidBundle if the copies become too many or too deep."""
        line = _line(alias)
        if alias.anchor not in self._anchors:
            _refuse(f"has the alias {quoted(f'*{alias.anchor}')} in its frontmatter, but no anchor of this name", line)
        value, size = self._anchors[alias.anchor]
        self._built += size
        self._repeated += size
        if self._repeated > MOST_REPEATED:
            _refuse("has aliases in its frontmatter that repeat too much", line)
        if depth + _height(value) > MAX_DEPTH:
            _refuse(f"has frontmatter nested deeper than {MAX_DEPTH} levels", line)
        return value

    def anchored(self, event: yaml.Event, depth: int) -> object:
        """Return the value of an event that is not an alias."""
        line = _line(event)
        if getattr(event, "tag", None) is not None:
            _refuse("has a YAML tag in its frontmatter; write the value without it", line)
        if depth > MAX_DEPTH:
            _refuse(f"has frontmatter nested deeper than {MAX_DEPTH} levels", line)
        if isinstance(event, yaml.MappingStartEvent):
            return self.items(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.entries(depth)
        if not isinstance(event, yaml.ScalarEvent):
            return ""
        text = _checked(event.value, line)
        return Plain(text) if event.style is None else text

    def items(self, depth: int) -> dict[str, object]:
        """Return the mapping of the following events. Raise InvalidBundle if a key is not text or occurs twice."""
        items: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.value(event, depth + 1)
            line = _line(event)
            if not isinstance(key, str):
                _refuse("has a key in its frontmatter that is not text", line)
            if key in items:
                _refuse(f"has the key {quoted(key)} twice in its frontmatter", line)
            items[str(key)] = self.value(next(self.events), depth + 1)
        return items

    def entries(self, depth: int) -> list[object]:
        entries: list[object] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            entries.append(self.value(event, depth + 1))
        return entries


def _height(value: object) -> int:
    """Return the number of levels below a value."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((1 + _height(child) for child in children), default=0)


def _line(event: yaml.Event) -> int | None:
    return event.start_mark.line + 2 if event.start_mark else None  # after the fence, counted from 1


def _checked(text: str, line: int | None) -> str:
    problem = text_problem(text)
    if problem:
        _refuse(f"has frontmatter that {problem}", line)
    return text


def _warnings(frontmatter: dict[str, object]) -> Iterator[str]:
    for key in ("name", "short_description", "description"):
        if not isinstance(frontmatter.get(key, ""), str):
            yield f"{FILE}: {quoted(key)} in the frontmatter should be text"


def _refuse(message: str, line: int | None) -> NoReturn:
    where = f" (line {line})" if line else ""
    problem = Problem(f"{FILE} {message}{where}", path=FILE, file=FILE, line=line)
    raise_problems(InvalidBundle, [problem], hint=_HINT)
