"""Repairs: deviations of foreign files that a lenient reader accepted. Each repair is listed for the user."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import msgspec
import yaml

from skillery.errors import InvalidBundle
from skillery.formats.skill_md import FILE, MAX_DEPTH, Builder, Plain
from skillery.formats.wording import quoted

MAX_LISTED = 50
"""The maximum number of listed repairs of one skill. A file can need thousands."""
HARMLESS = frozenset({"collection", "unknown_keys", "odd_metadata", "odd_compatibility", "nfc"})
"""Codes of notes that are not real repairs: the reader kept the value unchanged."""


class Repair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A mistake in a foreign file, and how the reader understood it. The stored bytes are not changed.

    `code` is a stable snake_case word. The message has the value in the file and its interpretation. `line` counts from
    1.
    """

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    harmless: bool = False
    """True for a note about a value that is kept unchanged. A skill that has only such notes does not count as
    repaired.
    """


class Repairs:
    """Collects repairs without duplicates. Further repairs after the first MAX_LISTED are only counted."""

    def __init__(self) -> None:
        self.listed: list[Repair] = []
        self.more = 0

    def note(self, code: str, message: str, line: int | None = None, file: str | None = None) -> None:
        repair = Repair(code, message, file, line, code in HARMLESS)
        if repair in self.listed:
            return
        if len(self.listed) == MAX_LISTED:
            self.more += 1
            return
        self.listed.append(repair)

    def has(self, code: str) -> bool:
        return any(repair.code == code for repair in self.listed)

    def all(self) -> tuple[Repair, ...]:
        if not self.more:
            return tuple(self.listed)
        return (*self.listed, Repair("more", f"{self.more} more repairs are not listed"))


# YAML of foreign frontmatter. Features that the strict reader refuses are noted, and quotes are added to values
# that need them.


ENTRY = re.compile(
    r"(?P<indent>[ ]*(?:-[ ]+)?)(?P<key>[A-Za-z0-9_][A-Za-z0-9_ .-]{0,127}?):[ ]+(?P<value>\S[^\n]*)(?P<end>\n?)"
)
"""A `key: value` line. The value includes trailing blanks, which `_value_of` removes.

An expression without the trailing blanks would take quadratic time and hold the interpreter lock, so that other threads
would wait.
"""
_BLOCK_STARTS = re.compile(r"[|>][-+0-9]*\s*(?:#.*)?")


class SkillMdRepairs(Repairs):
    """Collects repairs of SKILL.md: `note` uses SKILL.md as the file."""

    def note(self, code: str, message: str, line: int | None = None, file: str | None = FILE) -> None:
        super().note(code, message, line, file)


class NotYaml(NamedTuple):
    """The reason why a text is not a YAML mapping, and the line of the fault in the file, or None if unknown."""

    why: str
    line: int | None


def read_yaml(source: str, first_line: int, repairs: Repairs) -> dict[str, object] | NotYaml:
    """Return the mapping in a YAML text, or NotYaml if the text is not a mapping. `first_line` is its line in the file.

    Repairs are added to `repairs` only if the text can be parsed.
    """
    builder = _LenientBuilder(source, first_line)
    try:
        mapping = builder.mapping()
    except InvalidBundle as error:
        return NotYaml(error.message, error.data.get("line"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return NotYaml(str(error.problem or error.context), mark.line + first_line if mark else None)
    except (yaml.YAMLError, ValueError, OverflowError, IndexError, RecursionError) as error:
        return NotYaml(type(error).__name__, None)
    for repair in builder.repairs.listed:
        repairs.note(repair.code, repair.message, repair.line)
    return mapping


class _LenientBuilder(Builder):
    """Builds values from YAML events. Features that the strict Builder refuses are noted as repairs, except deep
    nesting.
    """

    def __init__(self, source: str, first_line: int) -> None:
        super().__init__(source)
        self.first_line = first_line
        self.repairs = SkillMdRepairs()

    def repeated(self, alias: yaml.AliasEvent, depth: int) -> object:
        """Return the value that an alias repeats. If the strict Builder refuses it, return the alias as text, with a
        repair.
        """
        try:
            return super().repeated(alias, depth)
        except InvalidBundle:
            name = f"*{alias.anchor}"
            self.repairs.note("yaml_alias", f"the alias {quoted(name)} is read as text", self.line(alias))
            return name

    def anchored(self, event: yaml.Event, depth: int) -> object:
        """Return the value of an event that is not an alias. Tags are ignored with a repair."""
        line = self.line(event)
        # An untagged value has tag None; "!" on a scalar only marks it as text.
        if getattr(event, "tag", None) is not None:
            self.repairs.note("yaml_tag", f"the YAML tag {quoted(str(getattr(event, 'tag', '')))} is ignored", line)
        if depth > MAX_DEPTH:
            # Deeper levels are not scanned, because scanning them would take quadratic time.
            self.refuse(f"is nested deeper than {MAX_DEPTH} levels", line)
        if isinstance(event, yaml.MappingStartEvent):
            return self.items(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.entries(depth)
        return _text_of_scalar(event)

    def items(self, depth: int) -> dict[str, object]:
        """Return a mapping. Keys that are not strings become JSON; the last value of a repeated key counts."""
        items: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key, line = self.value(event, depth + 1), self.line(event)
            if not isinstance(key, str):
                self.repairs.note("odd_key", "a key is not a string; it is read as JSON", line)
                key = json.dumps(key, ensure_ascii=False)
            if key in items:
                self.repairs.note("duplicate_key", f"the key {quoted(key)} occurs twice; the last value is used", line)
            items[key] = self.value(next(self.events), depth + 1)
        return items

    def line(self, event: yaml.Event) -> int | None:
        return event.start_mark.line + self.first_line if event.start_mark else None

    def refuse(self, message: str, line: int | None) -> NoReturn:
        raise InvalidBundle(message, line=line)


def _text_of_scalar(event: yaml.Event) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        return ""
    text = re.sub("[\x00\ud800-\udfff]", "\ufffd", event.value)
    return Plain(text) if event.style is None else text


def with_quotes(lines: list[str]) -> Iterator[str]:
    """Yield the lines, with quotes added around values that YAML cannot parse. Block values (`|` and `>`) stay
    unchanged.
    """
    block: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if block is not None and (not line.strip() or indent > block):
            yield line
            continue
        block = None
        match = ENTRY.fullmatch(line)
        if match and _BLOCK_STARTS.fullmatch(_value_of(match)):
            block = indent
        yield _quoted_line(match) if match and _needs_quotes(_value_of(match)) else line


def _value_of(match: re.Match[str]) -> str:
    return match["value"].rstrip(" \r")


def _quoted_line(match: re.Match[str]) -> str:
    return f"{match['indent']}{match['key']}: {json.dumps(_value_of(match), ensure_ascii=False)}{match['end']}"


def _needs_quotes(value: str) -> bool:
    """Return whether YAML cannot parse the value as text without quotes."""
    if _BLOCK_STARTS.fullmatch(value):
        return False
    if value[0] in "\"'":
        return not _closes(value)
    if value[0] in "[{":
        return value[-1] not in "]}" or not _is_flow(value)
    return (
        value[0] in "@`%&*!|>]},?" or value.startswith("- ") or ": " in value or value.endswith(":") or ":\t" in value
    )


def _closes(value: str) -> bool:
    """Return whether a quoted value ends at its closing quote, or has no closing quote and may continue on the next
    line.
    """
    quote = value[0]
    body = r"(?:[^\"\\]|\\.)*+\"" if quote == '"' else r"(?:[^']|'')*+'"
    return bool(re.fullmatch(rf"{quote}{body}\s*(?:#.*)?", value)) or quote not in value[1:]


def _is_flow(value: str) -> bool:
    return isinstance(read_yaml(f"x: {value}\n", 1, Repairs()), dict)
