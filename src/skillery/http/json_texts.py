"""Checks of a request body before it is decoded: the body must be UTF-8, and must not contain too many values.

Decoding blocks the interpreter: the server answers no other request until decoding ends. Therefore large bodies are
checked first, in slices, by a worker thread. Decoding plain strings is cheap. Values, escapes and long numbers are
expensive, so they are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from skillery.context.threads import BIG_TEXT, BODIES
from skillery.errors import TooManyEscapes, TooManyValues
from skillery.formats.json_pieces import is_utf8
from skillery.formats.json_values import MOST_SLOW_NUMBERS, SHORTEST_SLOW, slow_numbers
from skillery.methods.errors import PARSE_ERROR, error_object, plain_error

MOST_VALUES = 500_000
"""Limit of the JSON values in a body. Decoding this many takes at most 0.1 s, even if all names differ."""
MOST_ESCAPES = 8_000_000
"""Limit of the backslashes in a body. A bundle of source code of the maximum size has about a million."""
SLICE_BYTES = 512 * 1024
_SEPARATORS = (b",", b":", b"[", b"{")
"""Bytes before a JSON value. Every value except the first follows exactly one of these bytes."""


class TextRefusal(Exception):
    """Raised for a body that the server refuses to decode. `error` is the error object for the client."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


async def check_text(body: bytes) -> None:
    """Raise TextRefusal if the body is not UTF-8, or if it has too many values, escapes or slow numbers."""
    refused = _problem_of(body) if len(body) <= BIG_TEXT else await BODIES.run(_problem_of, body)
    if refused is not None:
        raise TextRefusal(refused)


def _problem_of(body: bytes) -> dict[str, Any] | None:
    # The whole body is checked, because the decoder does not check the values that it skips.
    if not body.isascii() and not is_utf8(body):
        return plain_error(PARSE_ERROR, "the body is not JSON: it is not UTF-8", "parse_error")
    if len(body) > MOST_ESCAPES and _count(body, (b"\\",)) > MOST_ESCAPES:
        return error_object(
            TooManyEscapes(
                f"the strings of the body contain more than {MOST_ESCAPES} backslashes",
                hint="Store large texts with POST /blobs, which stores them unchanged.",
                limit=MOST_ESCAPES,
            )
        )
    if len(body) > MOST_SLOW_NUMBERS * SHORTEST_SLOW and _slow_numbers(body) > MOST_SLOW_NUMBERS:
        return error_object(
            TooManyValues(
                f"the body contains more than {MOST_SLOW_NUMBERS} numbers with three-digit exponents or 100 digits",
                hint="Send smaller numbers, or store the data with POST /blobs and pass the id of the blob.",
                limit=MOST_SLOW_NUMBERS,
            )
        )
    if len(body) <= MOST_VALUES or _count(body) <= MOST_VALUES or _count_outside_texts(body) <= MOST_VALUES:
        return None
    too_many = TooManyValues(
        f"the body contains more than {MOST_VALUES} JSON values",
        hint="Store large data with POST /blobs, and pass the id of the blob.",
        limit=MOST_VALUES,
    )
    return error_object(too_many)


def _count(body: bytes, marks: Sequence[bytes] = _SEPARATORS) -> int:
    """Return how often the bytes in `marks` occur in the body, inside and outside of strings."""
    return sum(body.count(mark, start, start + SLICE_BYTES) for start in _starts(body) for mark in marks)


def _slow_numbers(body: bytes) -> int:
    """Return the number of slow numbers outside of strings. A slow number is long or has a large exponent.

    If the whole body, including strings, has at most MOST_SLOW_NUMBERS, return 0 without a second count.
    """
    if sum(map(slow_numbers, _slices(body))) <= MOST_SLOW_NUMBERS:
        return 0
    return sum(map(slow_numbers, _outside_texts(body)))


def _slices(body: bytes) -> Iterator[bytes]:
    return (body[start : start + SLICE_BYTES] for start in _starts(body))


def _count_outside_texts(body: bytes) -> int:
    """Return the number of separators outside of strings. Stop counting above MOST_VALUES."""
    values = 0
    for piece in _outside_texts(body):
        values += _count(piece)
        if values > MOST_VALUES:
            break
    return values


def _outside_texts(body: bytes) -> Iterator[bytes]:
    """Yield the bytes outside of strings, for each slice of the body."""
    in_text, rest = False, b""
    for start in _starts(body):
        piece = rest + body[start : start + SLICE_BYTES]
        # An escape must not be split. The last of an odd number of backslashes moves to the next slice.
        rest = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        piece = piece[: len(piece) - len(rest)].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        # Every second part is outside of strings: the first one, unless the slice begins in a string.
        yield b" ".join(parts[in_text::2])
        # An odd number of quotes ends or begins a string.
        in_text ^= len(parts) % 2 == 0


def _starts(body: bytes) -> range:
    return range(0, len(body), SLICE_BYTES)
