"""Redaction: the removal of the values of secrets from the outcome of a run.

Redaction protects against mistakes (a token in a traceback, a header in a log). It does not protect against hostile
code, which could print a value backwards.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import AnyStr
from urllib.parse import quote, quote_plus

import msgspec

from skillery.backends import Failure, Log, Outcome

SHORTEST = 4
"""The minimum length in characters of a value, or of a piece of a cut value, that is redacted. Shorter texts match
ordinary words.
"""
SHORTEST_LINE = 8
MOST_LINES = 100
"""If a value has at most this many lines, each line of SHORTEST_LINE characters or more is redacted too. Each line is
another search through the text of a run.
"""
SHORTEST_ENCODED = 8
"""The minimum length in characters of a base64 form that is searched."""
# The strings and numbers of a JSON text. Possessive quantifiers match a string of megabytes in constant memory.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?[0-9][0-9.eE+-]*+', re.DOTALL)
MOST_CUTS = 100
"""A sandbox cuts long texts, and next to a cut a piece of a secret value may be left. This many cuts of a text are
searched, which is more than a sandbox makes.
"""
_CUTS = re.compile("(…|\n\\.\\.\\.\n)")


class Redaction:
    """Replaces each secret value by `[NAME]`, the name of its secret. Values shorter than SHORTEST are not replaced."""

    def __init__(self, values: Mapping[str, str]) -> None:
        names = {form: name for name, value in values.items() for form in forms_of(value)}
        # Longest form first: it may contain a shorter form.
        forms = sorted(names, key=lambda form: (-len(form), form))
        self._marks = {form: f"[{names[form]}]" for form in forms}
        marks = {form.encode(): mark.encode() for form, mark in self._marks.items()}
        self.marks_in_bytes: Mapping[bytes, bytes] = marks
        """The mark `[NAME]` for each form of a value, as bytes. The longest form comes first."""

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return the outcome with all its texts redacted. Blobs that the run wrote are not changed."""
        if not self._marks:
            return outcome
        failure = outcome.failure
        return msgspec.structs.replace(
            outcome,
            result=self.json(outcome.result) if outcome.result is not None else None,
            failure=failure
            and Failure(self.text(failure.type), self.text(failure.message), self.text(failure.traceback)),
            summary=outcome.summary and self.text(outcome.summary),
            log=self.log(outcome.log),
            network=tuple(
                msgspec.structs.replace(use, host=self.text(use.host), reason=self.text(use.reason))
                for use in outcome.network
            ),
        )

    def text(self, text: str) -> str:
        """Return the redacted text.

        A sandbox cuts long texts. Next to a cut (`…` or a line of dots), a piece of a value is redacted too.
        """
        pieces = _CUTS.split(_replaced(text, self._marks), MOST_CUTS) if self._marks else [text]
        last = len(pieces) - 1
        # Every second piece is a cut.
        for i in range(0, last, 2):
            pieces[i] = _without_end(pieces[i], self._marks)
            pieces[i + 2] = _without_start(pieces[i + 2], self._marks)
        return "".join(pieces)

    def json(self, text: bytes) -> bytes:
        """Return the JSON text with its strings, keys and numbers redacted. The result is valid JSON: a redacted number
        becomes a string.

        The sandbox never cuts the result of a run. So a secret cannot be in two pieces here, unlike in `text`.
        """
        has_plain_value = any(form in text for form in self.marks_in_bytes)
        if not has_plain_value and (b"\\" not in text or not self._marks):
            return text

        shortest = min(map(len, self._marks))

        def redacted(match: re.Match[bytes]) -> bytes:
            token = match[0]
            return self._token(token) if len(token) >= shortest and (has_plain_value or b"\\" in token) else token

        return _TOKENS.sub(redacted, text)

    def log(self, log: Log) -> Log:
        """Return the redacted log.

        A value that continues from the head to the tail is redacted too. If bytes between them were dropped, a piece of
        a value next to the gap is redacted.
        """
        if not self._marks:
            return log
        marks = self.marks_in_bytes
        if not log.dropped:
            return Log(head=_replaced(log.head + log.tail, marks))
        head = _without_end(_replaced(log.head, marks), marks)
        tail = _without_start(_replaced(log.tail, marks), marks)
        return Log(head, tail, log.dropped)

    def _token(self, token: bytes) -> bytes:
        """Return a JSON string or number, redacted if it contains a value."""
        if not token.startswith(b'"'):
            mark = self._marks.get(token.decode())
            return f'"{mark}"'.encode() if mark else token
        string: str = json.loads(token, strict=False)
        redacted = _replaced(string, self._marks)
        return token if redacted == string else json.dumps(redacted, ensure_ascii=False).encode("utf-8", "replace")


class RedactedStream:
    """Redacts a log that arrives in pieces. Bytes that may begin a value are held back until more bytes arrive."""

    def __init__(self, redaction: Redaction) -> None:
        self._marks = redaction.marks_in_bytes
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the redacted text up to the bytes that may begin a value, which are held back. It may be empty."""
        if not self._marks:
            return piece
        text = self._held + piece
        cut = self._cut(text)
        self._held = text[cut:]
        return _replaced(text[:cut], self._marks)

    def rest(self) -> bytes:
        """Return the bytes that were held back, redacted. Call this after the last piece."""
        bytes_held_back, self._held = self._held, b""
        return _replaced(bytes_held_back, self._marks)

    def _cut(self, text: bytes) -> int:
        """Return the last position at which `text` can be split without splitting a value.

        A value that begins at the end of `text`, and may continue in the next piece, is not split either.
        """
        cut = len(text) - max(_start_at_end(text, form) for form in self._marks)
        while cut > 0:
            start = min((_start_across(text, form, cut) for form in self._marks), default=cut)
            if start >= cut:
                break
            cut = start
        return cut


def _start_at_end(text: bytes, form: bytes) -> int:
    """Return the number of bytes at the end of `text` that are a start of `form`, but not the whole form.

    Of several starts, the longest one counts.
    """
    position = text.find(form[:1], max(0, len(text) - len(form) + 1))
    while position >= 0:
        if form.startswith(text[position:]):
            return len(text) - position
        position = text.find(form[:1], position + 1)
    return 0


def _start_across(text: bytes, form: bytes, cut: int) -> int:
    """Return the position of an occurrence of `form` that contains `cut`, or `cut` if there is none."""
    position = text.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1)
    return position if 0 <= position < cut else cut


def forms_of(value: str) -> set[str]:
    """Return the written forms of a secret value that are searched, or an empty set for a value shorter than SHORTEST.

    The forms are: plain, quoted, in a URL, in a host name (lower case), in hex, in base64, alone or as a part of a
    longer text, and the long lines of the value.
    """
    if len(value) < SHORTEST:
        return set()
    forms = {form for text in (value, value.strip()) for form in _written(text)}
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) <= MOST_LINES:
        forms.update(line for line in lines if len(line) >= SHORTEST_LINE)
    return {form for form in forms if len(form) >= SHORTEST}


def _written(text: str) -> Iterator[str]:
    """Yield the text in all its written forms: plain, escaped, in hex and in base64."""
    yield text
    yield text.lower()
    yield text.replace("\r\n", "\n")
    yield repr(text)[1:-1]
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    for escaped in (quote(text), quote(text, safe=""), quote_plus(text)):
        yield escaped
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), escaped)
    raw = text.encode()
    yield raw.hex()
    yield raw.hex().upper()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).decode()
        yield from _within_base64(raw, encode)


def _within_base64(raw: bytes, encode: Callable[[bytes], bytes]) -> Iterator[str]:
    """Yield the base64 forms of a value inside a longer text, for example the value in `user:password`.

    Base64 encodes groups of three bytes, so there is one form for each of the three positions of the value in a group.
    """
    for before in range(3):
        # Each character stands for six bits. Of a character with bits of the text around the value, nothing is known.
        start, end = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
        inner = encode(bytes(before) + raw).decode()[start:end]
        if len(inner) >= SHORTEST_ENCODED:
            yield inner


def _replaced(text: AnyStr, marks: Mapping[AnyStr, AnyStr]) -> AnyStr:
    """Return the text with each form replaced by its mark."""
    # One search for each form is faster than one pattern for all forms (measured), and has no slow cases.
    for form, mark in marks.items():
        text = text.replace(form, mark)
    return text


def _without_end(piece: AnyStr, marks: Mapping[AnyStr, AnyStr]) -> AnyStr:
    """Return `piece` with a mark in place of the start of a value at its end. The text was cut after `piece`."""
    size, mark = max((_head_at_end(piece, form), mark) for form, mark in marks.items())
    return piece[: len(piece) - size] + mark if size else piece


def _without_start(piece: AnyStr, marks: Mapping[AnyStr, AnyStr]) -> AnyStr:
    """Return `piece` with a mark in place of the end of a value at its start. The text was cut before `piece`."""
    size, mark = max((_tail_at_start(piece, form), mark) for form, mark in marks.items())
    return mark + piece[size:] if size else piece


def _head_at_end(piece: AnyStr, form: AnyStr) -> int:
    """Return the length of the longest start of `form` at the end of `piece`, or 0 if it is shorter than SHORTEST."""
    position = piece.find(form[:SHORTEST], max(0, len(piece) - len(form) + 1))
    while position >= 0:
        if form.startswith(piece[position:]):
            return len(piece) - position
        position = piece.find(form[:SHORTEST], position + 1)
    return 0


def _tail_at_start(piece: AnyStr, form: AnyStr) -> int:
    """Return the length of the longest end of `form` at the start of `piece`, or 0 if it is shorter than SHORTEST."""
    position = piece.rfind(form[-SHORTEST:], 0, len(form) - 1)
    while position >= 0:
        if form.endswith(piece[: position + SHORTEST]):
            return position + SHORTEST
        position = piece.rfind(form[-SHORTEST:], 0, position + SHORTEST - 1)
    return 0
