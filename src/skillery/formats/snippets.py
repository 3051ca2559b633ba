"""Snippets: a short excerpt of a text around the searched words. The excerpt is plain text, with « and » around each
match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from skillery.formats.words import Found, find_words_begun, normalized

LENGTH = 200
BEFORE = 40
MOST_LOOKED_AT = 50
OPEN, CLOSE = "«", "»"
# These marks in the stored text are replaced, so that every mark in a snippet is around a match.
_OTHERS = str.maketrans({OPEN: "‹", CLOSE: "›"})


class Term(Protocol):
    """A searched word. `matches` returns whether a stem matches. Every matching word begins with one of
    `beginnings`.
    """

    def matches(self, word: str) -> bool: ...

    def beginnings(self) -> Iterable[str]: ...


def snippet_of(texts: Iterable[str], terms: Sequence[Term]) -> str:
    """Return the best excerpt of the text in which the most terms match. Each match is between « and ».

    If no term matches, return the beginning of the first text.
    """
    best, most, beginning = "", 0, None
    for text in texts:
        shown = _printable(text)
        beginning = shown if beginning is None else beginning
        found = list(islice(_matching(shown, terms), MOST_LOOKED_AT))
        start, count = _best_place(found, terms)
        if count > most:
            best, most = _marked(shown, found, start), count
        if most == len(terms):
            break
    return best or _cut(beginning or "", 0, LENGTH)


def _matching(text: str, terms: Sequence[Term]) -> Iterator[Found]:
    words = find_words_begun(text, {beginning for term in terms for beginning in term.beginnings()})
    return (word for word in words if any(term.matches(word.word) for term in terms))


def _printable(text: str) -> str:
    """Return the text on one line, without characters that are not printable or would look like marks of matches."""
    line = " ".join(normalized("NFC", text).translate(_OTHERS).split())
    return line if line.isprintable() else "".join(filter(str.isprintable, line))


def _best_place(found: Sequence[Found], terms: Sequence[Term]) -> tuple[int, int]:
    """Return the start of the excerpt with the most terms, and the number of these terms."""
    best = (0, 0)
    for at, first in enumerate(found):
        near = [one.word for one in found[at:] if one.end <= first.start + LENGTH - BEFORE]
        count = sum(any(term.matches(word) for word in near) for term in terms)
        if count > best[1]:
            best = (first.start, count)
    return best


def _marked(text: str, found: Sequence[Found], start: int) -> str:
    low = 0 if start <= BEFORE else text.find(" ", start - BEFORE, start) + 1 or start
    high = low + LENGTH
    parts, at = [], low
    for one in found:
        if low <= one.start and one.end <= high:
            parts += [text[at : one.start], OPEN, text[one.start : one.end], CLOSE]
            at = one.end
    return ("… " if low else "") + "".join(parts) + _cut(text, at, high)


def _cut(text: str, low: int, high: int) -> str:
    """Return `text[low:high]`, cut after a whole word if possible, with ` …` if the text continues."""
    if high >= len(text):
        return text[low:]
    space = text.rfind(" ", low, high)
    return text[low : space if space >= 0 else high] + " …"
