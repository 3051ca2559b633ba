"""Instructions to a model that work against its user: to ignore, steal, conceal, or load other instructions."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

from skillery_scanner.catalog import Match
from skillery_scanner.rules.phrases import PHRASES, PLACE, PRIVATE, SEND, TO_DATA, TO_PLACE
from skillery_scanner.texts import Piece, excerpt, paragraphs_of

_COMMON = ("user's ", "their ", "all ", "any ", "the ")


def instructions(path: str, text: str) -> Iterator[Match]:
    """Yield the instructions in a text that work against the user."""
    previous = None
    for paragraph in paragraphs_of(text):
        for rule, phrase, line in _phrases(paragraph):
            yield Match(rule, path, line, phrase)
        # An instruction to send may continue in the next paragraph, for example in a list of steps.
        match = _stealing(path, paragraph) or (_stealing(path, _joined(previous, paragraph)) if previous else None)
        if match:
            yield match
        previous = None if match else paragraph


def _phrases(paragraph: Piece) -> Iterator[tuple[str, str, int]]:
    for rule, (hints, patterns) in PHRASES.items():
        if not any(hint in paragraph.text for hint in hints):
            continue
        phrase = next((match for pattern in patterns if (match := pattern.search(paragraph.text))), None)
        if phrase:
            yield rule, excerpt(paragraph.text, phrase.start(), phrase.end()), paragraph.line_at(phrase.start())


def _stealing(path: str, paragraph: Piece) -> Match | None:
    """Return an instruction to send private data: the data, a verb and a place are close to each other.

    Each part is searched separately. One expression for all parts would take quadratic time on hostile texts.
    """
    text = paragraph.text
    places = [match.start() for match in PLACE.finditer(text)]
    sends = [match.start() for match in SEND.finditer(text)] if places else []
    if not sends:
        return None
    for data in PRIVATE.finditer(text):
        send = _nearest(sends, data)
        if send is None:
            continue
        # Words such as "their secrets" are common, so only one sentence counts. Paths are not.
        if data[0].startswith(_COMMON) and ". " in text[min(send, data.start()) : max(send, data.end())]:
            continue
        place = bisect_left(places, min(send, data.start()))
        if place < len(places) and places[place] - max(send, data.end()) <= TO_PLACE:
            start = min(send, data.start())
            return Match("steal-instruction", path, paragraph.line_at(start), excerpt(text, start))
    return None


def _nearest(sends: list[int], data: re.Match[str]) -> int | None:
    """Return the position of a verb near the data: before it, or else after it."""
    index = bisect_left(sends, data.start())
    if index and data.start() - sends[index - 1] <= TO_DATA:
        return sends[index - 1]
    if index < len(sends) and sends[index] - data.end() <= TO_DATA:
        return sends[index]
    return None


def _joined(first: Piece, second: Piece) -> Piece:
    moved_starts = tuple(start + len(first.text) + 1 for start in second.starts)
    return Piece(f"{first.text} {second.text}", first.numbers + second.numbers, first.starts + moved_starts)
