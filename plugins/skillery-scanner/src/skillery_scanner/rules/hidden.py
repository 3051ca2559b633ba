"""Text that people do not see and models read: invisible and bidirectional characters, and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from skillery_scanner.catalog import Match
from skillery_scanner.rules.instructions import instructions
from skillery_scanner.texts import excerpt, lines_of

_BIDIRECTIONAL = re.compile("[\u202a-\u202e\u2066-\u2069]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
# A flag of a region is a black flag, a few tags and a cancel tag: the only use of tags that Unicode recommends.
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f")
_TAGS = re.compile("[\U000e0000-\U000e007f]+")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}")
_ZERO_WIDTH = re.compile("[\u200b\u2060-\u2064\u180e\ufeff\u206a-\u206f\u3164\uffa0\u115f\u1160]|[\u200c\u200d]{2,}")
_FEW = 3
"""Zero-width characters in a file that may be typing errors. More than these can hide text."""
_COMMENT = re.compile(r"<!--(.{1,2000}?)-->", re.DOTALL)
_INVISIBLE_STYLE = re.compile(
    r"<[a-z]{1,10}[^>]{0,200}(?:display:\s{0,2}none|font-size:\s{0,2}0|opacity:\s{0,2}0\b|hidden\b)[^>]{0,200}>"
    r"([^<]{1,2000})<",
    re.IGNORECASE,
)


def hidden_text(path: str, text: str) -> Iterator[Match]:
    """Yield invisible and bidirectional characters, and instructions that a page does not show."""
    if not text.isascii():
        yield from _characters(path, text)
    if "<" in text:
        yield from _hidden_instructions(path, text)


def _characters(path: str, text: str) -> Iterator[Match]:
    """Yield lines with hidden or bidirectional characters. A few zero-width characters are permitted."""
    zero_width: list[tuple[int, str]] = []
    for piece in lines_of(text.removeprefix("\ufeff")):
        line, number = piece.text, piece.numbers[0]
        if line.isascii():
            continue
        without_flags = _FLAG.sub("", line)
        match = _TAGS.search(without_flags) or _SELECTORS.search(line)
        if match:
            yield Match("hidden-text", path, number, _shown(match[0]))
        if _BIDIRECTIONAL.search(line) and not _RIGHT_TO_LEFT.search(line):
            yield Match("bidirectional-text", path, number, excerpt(line))
        zero_width += [(number, character) for character in _ZERO_WIDTH.findall(line)]
    if len(zero_width) > _FEW:
        yield Match("hidden-text", path, zero_width[0][0], f"{len(zero_width)} zero-width characters")


def _shown(characters: str) -> str:
    """Return hidden characters as code points. Return tags as the ASCII text that they encode."""
    if "\U000e0020" <= characters[0] <= "\U000e007e":
        return "hidden: " + excerpt("".join(chr(ord(character) & 0x7F) for character in characters))
    return " ".join(f"U+{ord(character):04X}" for character in characters[:8])


def _hidden_instructions(path: str, text: str) -> Iterator[Match]:
    for pattern in (_COMMENT, _INVISIBLE_STYLE):
        for hidden in pattern.finditer(text):
            match = next(instructions(path, hidden[1]), None)
            if match is not None:
                line = text.count("\n", 0, hidden.start(1)) + (match.line or 1)
                yield Match("hidden-instruction", path, line, match.excerpt)
