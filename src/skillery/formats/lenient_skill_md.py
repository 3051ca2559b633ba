"""Read a foreign SKILL.md as far as possible, and list all repairs.

Frontmatter that the strict reader (`skillery.formats.skill_md`) accepts is read unchanged. For other frontmatter, three
ways are tried in turn: the whole frontmatter as YAML without the strict rules; the same with quotes added around values
that need quotes; each top-level key separately, with invalid values as text. No bytes cause an error, and the time is
linear in the number of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from skillery.errors import InvalidBundle
from skillery.formats.json_values import text_problem
from skillery.formats.repairs import ENTRY, NotYaml, Repair, Repairs, SkillMdRepairs, read_yaml, with_quotes
from skillery.formats.skill_md import (
    MAX_FRONTMATTER_BYTES,
    SkillMd,
    head_of,
    parse_skill_md,
    text_of,
    without_mark,
)
from skillery.formats.wording import has_surrogate, printable, quoted

MAX_LEADING_LINES = 20
"""The frontmatter must begin within this many lines. Blank lines and code fences before it are skipped."""
_FENCE = re.compile(r"-{3,}")
_END = re.compile(r"-{3,}|\.\.\.")
_KEY = re.compile(r"(?P<key>[^\s#:\-\[\]{},&*!|>'\"%@`][^:\n]{0,127}?|\"[^\"\n]{1,127}\"|'[^'\n]{1,127}')\s*:(?=\s|$)")
_UNREADABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Matches a character that YAML never allows."""
_FENCED = re.compile(r"(?:`{3,}|~{3,})\s*[A-Za-z]*")


class ReadSkillMd(NamedTuple):
    """A parsed SKILL.md, its whole text, and the repairs that were needed."""

    skill_md: SkillMd
    text: str
    repairs: tuple[Repair, ...]


def read_skill_md(data: bytes) -> ReadSkillMd:
    """Return the parsed file. No content raises an error.

    All scalars of the frontmatter are strings as written in the file, as in the strict reader.
    """
    repairs = SkillMdRepairs()
    text = _text(data, repairs)
    if "\r" in text[: MAX_FRONTMATTER_BYTES * 2]:
        repairs.note("line_ends", "the lines end in CR LF; they are read as LF")
    try:
        skill_md = parse_skill_md(text)
    except InvalidBundle:
        return ReadSkillMd(_repaired(text, repairs), text, repairs.all())
    if not skill_md.frontmatter:
        skill_md = _repaired(text, repairs)
    return ReadSkillMd(skill_md, text, repairs.all())


# -- bytes to text ---------------------------------------------------------------------------------------------------


def _text(data: bytes, repairs: Repairs) -> str:
    """Return the text of the file. Bytes and characters that cannot be stored become U+FFFD, each
    kind with one repair.
    """
    text = text_of(data)
    if data.startswith(b"\xef\xbb\xbf"):
        repairs.note("byte_order_mark", "it begins with a byte order mark, which is ignored", 1)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        repairs.note("encoding", "it is UTF-16, not UTF-8; it is read as UTF-16")
    elif "\ufffd" in text and not _is_utf8(data):
        line = data.count(b"\n", 0, _first_bad(data)) + 1
        repairs.note("encoding", "it contains bytes that are not UTF-8; they are read as \ufffd", line)
    problem = text_problem(text)
    if problem:
        line = text.count("\n", 0, max(text.find("\x00"), 0)) + 1
        repairs.note("bad_characters", f"it {problem}; it is read as \ufffd", line)
        text = text.replace("\x00", "\ufffd")
        # Substitute only if there are surrogates: re.sub over a text of NULs holds the interpreter lock for a second.
        text = re.sub("[\ud800-\udfff]", "\ufffd", text) if has_surrogate(text) else text
    return text


def _is_utf8(data: bytes) -> bool:
    return _first_bad(data) == len(data)


def _first_bad(data: bytes) -> int:
    """Return the position of the first byte that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


# -- position of the frontmatter -------------------------------------------------------------------------------------


def _repaired(text: str, repairs: Repairs) -> SkillMd:
    """Return the parsed text. Note a repair for each part that the strict reader refuses."""
    lines, rest = head_of(text)
    start = _start(lines, repairs)
    if start is None:
        repairs.note("missing_frontmatter", "it has no frontmatter; the whole file is the body", 1)
        return SkillMd({}, without_mark(text))
    end, body_start = _end(lines, start, repairs)
    if not any(line.strip() for line in lines[start:end]):
        repairs.note("empty_frontmatter", "the frontmatter is empty", start)
    return SkillMd.of(_frontmatter(lines[start:end], start + 1, repairs), "".join([*lines[body_start:], rest]))


def _start(lines: list[str], repairs: Repairs) -> int | None:
    """Return the index of the first line of the frontmatter, or None if the file has no frontmatter."""
    for number, line in enumerate(lines[:MAX_LEADING_LINES]):
        stripped = line.strip()
        if _FENCE.fullmatch(stripped):
            if number:
                repairs.note("leading_lines", "there are lines before the frontmatter", number + 1)
            if stripped != "---" or line.rstrip() != stripped:
                repairs.note("fence", f"the frontmatter begins with {quoted(line.rstrip())}, not '---'", number + 1)
            return number + 1 if _looks_like_frontmatter(lines, number + 1) else None
        if stripped and not _FENCED.fullmatch(stripped):
            return None
    return None


def _looks_like_frontmatter(lines: list[str], start: int) -> bool:
    """Return whether the lines after `start` look like frontmatter: a key, another start of YAML, or the closing fence.

    A Markdown page may begin with a rule of hyphens instead.
    """
    first_line = next((line for line in lines[start : start + MAX_LEADING_LINES] if line.strip()), None)
    if first_line is None:
        return False
    stripped = first_line.strip()
    return (
        bool(_KEY.match(stripped))
        or bool(_END.fullmatch(stripped))
        or stripped.startswith(("{", "[", "&", "!", "%", "-", '"'))
    )


def _end(lines: list[str], start: int, repairs: Repairs) -> tuple[int, int]:
    """Return the index of the line after the last line of the frontmatter, and the index of the
    first line of the body.
    """
    for number in range(start, len(lines)):
        if lines[number].rstrip() == "---":
            return number, number + 1
    for number in range(start, len(lines)):
        if _END.fullmatch(lines[number].strip()):
            repairs.note("fence", f"the frontmatter ends with {quoted(lines[number].rstrip())}, not '---'", number + 1)
            return number, number + 1
    number = start
    while number < len(lines) and lines[number].strip() and not lines[number].startswith("#"):
        number += 1
    repairs.note("unclosed_frontmatter", "the frontmatter has no end; it is read up to the first blank line", start)
    return number, number


# -- the frontmatter -------------------------------------------------------------------------------------------------


def _frontmatter(lines: list[str], first_line: int, repairs: Repairs) -> dict[str, object]:
    """Return the frontmatter. `first_line` is the number of its first line in the file, counted from 1."""
    lines = _cut(_readable(lines, first_line, repairs), first_line, repairs)
    frontmatter = read_yaml("".join(lines), first_line, repairs)
    if isinstance(frontmatter, dict):
        return frontmatter
    quoted_lines = list(with_quotes(lines))
    quote_repairs = SkillMdRepairs()
    frontmatter_with_quotes = (
        read_yaml("".join(quoted_lines), first_line, quote_repairs) if quoted_lines != lines else None
    )
    if not isinstance(frontmatter_with_quotes, dict):
        return _key_by_key(lines, first_line, repairs)
    for number, (line, quoted_line) in enumerate(zip(lines, quoted_lines, strict=True)):
        if line != quoted_line:
            _note_quoted(line, first_line + number, repairs)
    for repair in quote_repairs.listed:
        repairs.note(repair.code, repair.message, repair.line)
    return frontmatter_with_quotes


def _note_quoted(line: str, number: int, repairs: Repairs) -> None:
    match = ENTRY.fullmatch(line)
    key = match["key"] if match else ""
    repairs.note("unquoted_value", f"the value of {quoted(key)} needs quotes in YAML; it is read as written", number)


def _readable(lines: list[str], first_line: int, repairs: Repairs) -> list[str]:
    r"""Return the lines with spaces instead of leading tabs, and with `\ufffd` instead of characters that YAML never
    allows.
    """
    repaired = []
    for number, line in enumerate(lines, first_line):
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        if "\t" in indent and line.strip():
            repairs.note(
                "tabs", "a line is indented with a tab, which YAML does not allow; it is read as two spaces", number
            )
            line = indent.replace("\t", "  ") + line[len(indent) :]  # noqa: PLW2901
        if _UNREADABLE.search(line):
            repairs.note(
                "bad_characters", "it contains a character that YAML does not allow; it is read as \ufffd", number
            )
            line = _UNREADABLE.sub("\ufffd", line)  # noqa: PLW2901
        repaired.append(line)
    return repaired


def _cut(lines: list[str], first_line: int, repairs: Repairs) -> list[str]:
    """Return the lines up to the size limit of a frontmatter. The omitted lines are a repair."""
    size = 0
    for number, line in enumerate(lines):
        size += len(line.encode())
        if size > MAX_FRONTMATTER_BYTES:
            message = f"the frontmatter has more than {MAX_FRONTMATTER_BYTES} bytes; the rest is not read"
            repairs.note("too_large", message, first_line + number)
            return lines[:number]
    return lines


# -- key by key ------------------------------------------------------------------------------------------------------


def _key_by_key(lines: list[str], first_line: int, repairs: Repairs) -> dict[str, object]:
    """Return the frontmatter, with each top-level key parsed separately: an invalid value affects no other key."""
    frontmatter: dict[str, object] = {}
    fault = read_yaml("".join(lines), first_line, SkillMdRepairs())
    fault_line = fault.line if isinstance(fault, NotYaml) else None
    repairs.note("broken_yaml", f"the frontmatter is not YAML ({_why(fault)}); it is read key by key", fault_line)
    for number, block in _blocks(lines):
        line = first_line + number
        match = _KEY.match(block[0])
        if match is None:
            if any(text.strip() and not text.lstrip().startswith("#") for text in block):
                repairs.note(
                    "unreadable_line", f"{quoted(block[0].strip())} is not a key with a value; it is not read", line
                )
            continue
        key = match["key"].strip("\"'")
        if key in frontmatter:
            repairs.note("duplicate_key", f"the key {quoted(key)} occurs twice; the last value is used", line)
        frontmatter[key] = _block_value(key, block, match.end(), line, repairs)
    return frontmatter


def _why(why: object) -> str:
    return printable(why.why, 120) if isinstance(why, NotYaml) else "not a mapping of keys to values"


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each top-level key as a block: the index of its first line, and its lines up to the next key."""
    start = 0
    for number, line in enumerate(lines):
        if number > start and _KEY.match(line):
            yield start, lines[start:number]
            start = number
    if lines:
        yield start, lines[start:]


def _block_value(key: str, block: list[str], value_at: int, line: int, repairs: Repairs) -> object:
    """Return the value of one top-level key: as YAML, else as YAML with quotes added, else as text. `value_at` is the
    column of the value in the first line of `block`.
    """
    for lines in (block, list(with_quotes(block))):
        found_repairs = SkillMdRepairs()
        mapping = read_yaml("".join(lines), line, found_repairs)
        if isinstance(mapping, dict) and list(mapping) == [key]:
            for repair in found_repairs.listed:
                repairs.note(repair.code, repair.message, repair.line)
            if lines is not block:
                message = f"the value of {quoted(key)} needs quotes in YAML; it is read as written"
                repairs.note("unquoted_value", message, line)
            return mapping[key]
    text = " ".join("".join([block[0][value_at:], *block[1:]]).split())
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    repairs.note("read_as_text", f"the value of {quoted(key)} is not YAML; it is read as text", line)
    return text
