"""Checks of a request body before it is decoded: valid UTF-8, a limited number of values and escapes.

Decoding JSON blocks the interpreter: no other request is answered until decoding ends. Values and escapes make decoding
slow, plain strings do not. So this module counts values and escapes first, in slices, in a worker thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from skillery.api.errors import PARSE_ERROR, error_object, plain_error
from skillery.context.threads import BIG_TEXT, BODIES
from skillery.errors import TooManyEscapes, TooManyValues
from skillery.formats.json_pieces import is_utf8
from skillery.formats.json_values import MOST_SLOW_NUMBERS, slow_numbers

MOST_VALUES = 500_000
"""Most values in a body. Decoding them takes at most 0.1 s, even if all names differ."""
MOST_ESCAPES = 8_000_000
"""Most backslashes in a body. A bundle of source code of maximum size has about a million."""
SLICE_BYTES = 512 * 1024
_SEPARATORS = (b",", b":", b"[", b"{")
"""The characters before a value. Each value except the first follows exactly one of these characters."""


class TextRefusal(Exception):
    """Raised if a body must not be decoded. `error` is the error object of the answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


async def check_text(body: bytes) -> None:
    """Raise TextRefusal if the body is not UTF-8, or if it has too many values or escapes."""
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
                f"the texts of the body hold more than {MOST_ESCAPES} backslashes",
                hint="Store large texts with POST /blobs, which takes them as they are.",
                limit=MOST_ESCAPES,
            )
        )
    if _slow_numbers(body) > MOST_SLOW_NUMBERS:
        return error_object(
            TooManyValues(
                f"the body holds more than {MOST_SLOW_NUMBERS} numbers with three-digit exponents or 100 digits",
                hint="Send smaller numbers, or store the data with POST /blobs and pass the id of the blob.",
                limit=MOST_SLOW_NUMBERS,
            )
        )
    if len(body) <= MOST_VALUES or _count(body) <= MOST_VALUES or _count_outside_texts(body) <= MOST_VALUES:
        return None
    too_many = TooManyValues(
        f"the body holds more than {MOST_VALUES} JSON values",
        hint="Store large data with POST /blobs, and pass the id of the blob.",
        limit=MOST_VALUES,
    )
    return error_object(too_many)


def _count(body: bytes, marks: Sequence[bytes] = _SEPARATORS) -> int:
    """Return how often the characters `marks` occur in the body, inside and outside of JSON strings."""
    return sum(body.count(mark, start, start + SLICE_BYTES) for start in _starts(body) for mark in marks)


def _slow_numbers(body: bytes) -> int:
    """Return the number of numbers that are slow to decode, without digits in strings; 0 if strings and numbers
    together
    stay below the limit.
    """
    if sum(map(slow_numbers, _slices(body))) <= MOST_SLOW_NUMBERS:
        return 0
    return sum(map(slow_numbers, _outside_texts(body)))


def _slices(body: bytes) -> Iterator[bytes]:
    return (body[start : start + SLICE_BYTES] for start in _starts(body))


def _count_outside_texts(body: bytes) -> int:
    """Return the number of separators outside of JSON strings. Stop counting above MOST_VALUES."""
    values = 0
    for piece in _outside_texts(body):
        values += _count(piece)
        if values > MOST_VALUES:
            break
    return values


def _outside_texts(body: bytes) -> Iterator[bytes]:
    """Yield the parts of the body that are outside of JSON strings, slice by slice."""
    in_text, rest = False, b""
    for start in _starts(body):
        piece = rest + body[start : start + SLICE_BYTES]
        # An escape must not be split. The last of an odd number of backslashes moves to the next slice.
        rest = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        piece = piece[: len(piece) - len(rest)].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        yield b" ".join(parts[in_text::2])
        in_text ^= len(parts) % 2 == 0


def _starts(body: bytes) -> range:
    return range(0, len(body), SLICE_BYTES)
