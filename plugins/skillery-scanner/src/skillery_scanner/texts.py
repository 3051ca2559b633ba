"""Texts of a skill in forms that rules can search: lines, commands, and paragraphs in plain letters."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

MOST_LINE = 4_000
"""Characters of a line that one regular expression sees. Longer lines are searched in pieces that overlap."""
OVERLAP = 400
MOST_PARAGRAPH = 4_000
MOST_EXCERPT = 120

# Letters that look like ASCII letters. NFKC has replaced full-width and mathematical letters before.
_LOOKALIKES = str.maketrans("аеорсухіјѕԁɡһԛѡοανρτικАВЕКМНОРСТХІЈЅ", "aeopcyxijsdghqwoavptikABEKMHOPCTXIJS")
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
_MARKS = re.compile(r"[>#*_`~|]+")


class Piece(NamedTuple):
    """A piece of a text. The line with the number `numbers[i]` starts at the offset `starts[i]`."""

    text: str
    numbers: tuple[int, ...]
    starts: tuple[int, ...] = (0,)

    def line_at(self, offset: int) -> int:
        return self.numbers[bisect_right(self.starts, offset) - 1]


def lines_of(text: str) -> Iterator[Piece]:
    """Yield each line that is not blank, in pieces of at most MOST_LINE characters."""
    for number, line in enumerate(text.split("\n"), 1):
        for piece in _pieces(line):
            yield Piece(piece, (number,))


def commands_of(text: str) -> Iterator[Piece]:
    """Yield lines as `lines_of` does, but lines that end with a backslash are joined with the next one."""
    held, first_number = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first_number = first_number or number
        if line.endswith("\\") and len(held) < MOST_LINE:
            held += line[:-1]
            continue
        for piece in _pieces(held + line):
            yield Piece(piece, (first_number,))
        held, first_number = "", 0
    if held:
        yield Piece(held[:MOST_LINE], (first_number,))


def paragraphs_of(text: str) -> Iterator[Piece]:
    """Yield the paragraphs in lower-case plain letters, without Markdown marks and invisible characters."""
    gathered = _Paragraph()
    for number, line in enumerate(text.split("\n"), 1):
        for piece in _pieces(line):
            gathered.add(plain(piece), number)
            if gathered.length > MOST_PARAGRAPH:
                yield gathered.piece()
                gathered = _Paragraph()
        if gathered.lines and (not line or line.isspace()):
            yield gathered.piece()
            gathered = _Paragraph()
    if gathered.lines:
        yield gathered.piece()


class _Paragraph:
    """The lines of a paragraph until it ends."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.length = 0
        self._numbers: list[int] = []
        self._starts: list[int] = []

    def add(self, line: str, number: int) -> None:
        if line:
            self.lines.append(line)
            self._numbers.append(number)
            self._starts.append(self.length)
            self.length += len(line) + 1

    def piece(self) -> Piece:
        return Piece(" ".join(self.lines), tuple(self._numbers), tuple(self._starts))


def _pieces(line: str) -> Iterator[str]:
    """Yield a line that is not blank, in pieces of at most MOST_LINE characters that overlap."""
    if len(line) <= MOST_LINE:
        if line and not line.isspace():
            yield line
        return
    for start in range(0, len(line), MOST_LINE - OVERLAP):
        piece = line[start : start + MOST_LINE]
        if not piece.isspace():
            yield piece
        if start + MOST_LINE >= len(line):
            break


def plain(text: str) -> str:
    """Return a text in lower case, with look-alike letters replaced, and without marks and invisible characters."""
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).translate(_LOOKALIKES)
    return " ".join(_MARKS.sub("", text).lower().split())


def excerpt(text: str, start: int = 0, end: int | None = None) -> str:
    """Return a part of a text as one printable line of at most MOST_EXCERPT characters."""
    line = " ".join(text[start : min(end or len(text), start + MOST_EXCERPT)].split())
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in line)[:MOST_EXCERPT]
