"""Takes the values of secrets out of what a run says, as well as that can be done.

It protects against mistakes (a token in a traceback, a header in a log), not against code that wants to tell: whoever
has a value can say it backwards.
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
"""Characters of a value, and of a piece of one where something was cut off: a shorter one would blot out words that
mean something else."""
SHORTEST_LINE = 8
SHORTEST_ENCODED = 8
# The strings and numbers of a JSON text. Possessive: a string of megabytes is matched in constant memory.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?[0-9][0-9.eE+-]*+', re.DOTALL)
_CUTS = re.compile("(…|\n\\.\\.\\.\n)")


class Redaction:
    """Puts `[NAME]` in place of each value. Without values it changes nothing and costs nothing."""

    def __init__(self, values: Mapping[str, str]) -> None:
        forms = {form: name for name, value in values.items() for form in forms_of(value)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._marks = {form: f"[{name}]" for form, name in forms.items()}
        self._marks_in_bytes = {form.encode(): mark.encode() for form, mark in self._marks.items()}
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None
        self._pattern_in_bytes = re.compile(self._pattern.pattern.encode()) if self._pattern else None

    def outcome(self, outcome: Outcome) -> Outcome:
        """Everything of an outcome but the blobs that were written."""
        if self._pattern is None:
            return outcome
        failure = outcome.failure
        return msgspec.structs.replace(
            outcome,
            result=self.json(outcome.result) if outcome.result is not None else None,
            failure=failure
            and Failure(*(self.text(part) for part in (failure.type, failure.message, failure.traceback))),
            summary=outcome.summary and self.text(outcome.summary),
            log=self.log(outcome.log),
        )

    def text(self, text: str) -> str:
        """Also what a cut of the sandbox left of a value before `…` or around a line of dots."""
        if self._pattern is None:
            return text
        whole = self._pattern.sub(lambda match: self._marks[match[0]], text)
        pieces = _CUTS.split(whole)
        if len(pieces) == 1:
            return whole
        last = len(pieces) - 1
        return "".join(
            piece if i % 2 else self._edges(piece, cut_before=i > 0, cut_after=i < last)
            for i, piece in enumerate(pieces)
        )

    def json(self, text: bytes) -> bytes:
        """JSON in, JSON out: within strings and keys, and a number that is all of a value becomes a string."""
        if self._pattern is None:
            return text
        return _TOKENS.sub(self._token, text)

    def log(self, log: Log) -> Log:
        """Also a value that lies across head and tail, and what is left of one where the middle was dropped."""
        if self._pattern_in_bytes is None:
            return log
        if not log.dropped:
            return Log(head=self._bytes(log.head + log.tail))
        head = self._cut_bytes(self._bytes(log.head), cut_after=True)
        tail = self._cut_bytes(self._bytes(log.tail), cut_before=True)
        return Log(head, tail, log.dropped)

    def _bytes(self, text: bytes) -> bytes:
        assert self._pattern_in_bytes is not None
        return self._pattern_in_bytes.sub(lambda match: self._marks_in_bytes[match[0]], text)

    def _token(self, match: re.Match[bytes]) -> bytes:
        token = match[0]
        if not token.startswith(b'"'):
            mark = self._marks.get(token.decode())
            return f'"{mark}"'.encode() if mark else token
        string: str = json.loads(token, strict=False)
        redacted = self.text(string)
        return token if redacted == string else json.dumps(redacted, ensure_ascii=False).encode("utf-8", "replace")

    def _edges(self, piece: str, *, cut_before: bool, cut_after: bool) -> str:
        return _without_pieces(piece, self._marks, "", cut_before, cut_after)

    def _cut_bytes(self, piece: bytes, *, cut_before: bool = False, cut_after: bool = False) -> bytes:
        return _without_pieces(piece, self._marks_in_bytes, b"", cut_before, cut_after)


def forms_of(value: str) -> set[str]:
    """The value as it may turn up: as it is, quoted, in a URL, in hex, in base64 alone or within something longer."""
    if len(value) < SHORTEST:
        return set()
    lines = {line.strip() for line in value.splitlines()} if "\n" in value.strip() else set()
    plain = {value, value.strip(), *(line for line in lines if len(line) >= SHORTEST_LINE)}
    return {form for text in plain for form in _written(text) if len(form) >= SHORTEST}


def _written(text: str) -> Iterator[str]:
    yield text
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
    """What of the value's base64 stays the same whatever stands before and behind it (`user:password`): one text for
    each of the three ways in which it can lie on the groups of three bytes."""
    for before in range(3):
        first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
        inner = encode(bytes(before) + raw).decode()[first:last]
        if len(inner) >= SHORTEST_ENCODED:
            yield inner


def _without_pieces(piece: AnyStr, marks: Mapping[AnyStr, AnyStr], none: AnyStr, before: bool, after: bool) -> AnyStr:
    """`piece` of a text that was cut off before or after it, without what it begins or ends with of a value."""
    if before:
        found = max(((_tail_at_start(piece, form), mark) for form, mark in marks.items()), default=(0, none))
        if found[0]:
            piece = found[1] + piece[found[0] :]
    if after:
        found = max(((_head_at_end(piece, form), mark) for form, mark in marks.items()), default=(0, none))
        if found[0]:
            piece = piece[: -found[0]] + found[1]
    return piece


def _head_at_end(piece: AnyStr, form: AnyStr) -> int:
    """How much of the beginning of `form` stands at the end of `piece`; less than SHORTEST is none."""
    at = piece.find(form[:SHORTEST], max(0, len(piece) - len(form) + 1))
    while at >= 0:
        if form.startswith(piece[at:]):
            return len(piece) - at
        at = piece.find(form[:SHORTEST], at + 1)
    return 0


def _tail_at_start(piece: AnyStr, form: AnyStr) -> int:
    """How much of the end of `form` stands at the beginning of `piece`; less than SHORTEST is none."""
    at = piece.rfind(form[-SHORTEST:], 0, len(form) - 1)
    while at >= 0:
        if form.endswith(piece[: at + SHORTEST]):
            return at + SHORTEST
        at = piece.rfind(form[-SHORTEST:], 0, at + SHORTEST - 1)
    return 0
