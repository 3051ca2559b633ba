"""Large JSON texts as lists of small pieces, so that encoding one piece does not block other threads.

The texts belong to the result of the current request: the memory budget counts them as they grow.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import msgspec

from skillery.context.budget import expect_result

PIECE_BYTES = 192 * 1024
"""Bytes of content in a piece. The number is a multiple of 3, so that only the last piece needs base64 padding."""


class JsonPieces(list[bytes]):
    """A JSON text in pieces, in their order."""

    @property
    def size(self) -> int:
        return sum(map(len, self))

    def joined(self) -> bytes:
        return b"".join(self)


def content_pieces(open_content: Callable[[], BinaryIO], size: int) -> tuple[JsonPieces, str]:
    """Return a content as a JSON string in pieces, and its encoding: `utf-8` if the content is UTF-8 text, else
    `base64`.

    `open_content` is called twice: to determine the encoding, and to encode. `size` is the number of bytes of the
    content: they are counted before the first call. Raise the errors of `expect_result`.
    """
    expect_result(size)
    with open_content() as stream:
        is_text = _is_utf8(_read(stream))
    with open_content() as stream:
        if is_text:
            return string_pieces(_decoded(_read(stream))), "utf-8"
        return _gathered(base64.b64encode(piece) for piece in _read(stream)), "base64"


def string_pieces(texts: Iterable[str]) -> JsonPieces:
    """Return one JSON string with all `texts`, one after another. Raise the errors of `expect_result`."""
    return _gathered(msgspec.json.encode(text)[1:-1] for text in texts)


def slices_of(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE_BYTES):
        yield text[start : start + PIECE_BYTES]


def _gathered(encoded: Iterable[bytes]) -> JsonPieces:
    pieces, size = JsonPieces([b'"']), 2
    for piece in encoded:
        size += len(piece)
        expect_result(size)
        pieces.append(piece)
    pieces.append(b'"')
    return pieces


def _read(stream: BinaryIO) -> Iterator[bytes]:
    while piece := stream.read(PIECE_BYTES):
        yield piece


def _decoded(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in pieces:
        yield decoder.decode(piece)


def is_exactly(text: msgspec.Raw | msgspec.UnsetType, expected: bytes) -> bool:
    """Return whether an undecoded JSON value has exactly the bytes `expected`. A value of another
    length is not copied.
    """
    return text is not msgspec.UNSET and len(text) == len(expected) and bytes(text) == expected


def is_utf8(body: bytes) -> bool:
    """Return whether the bytes are UTF-8 text. Only one piece is copied at a time."""
    view = memoryview(body)
    return _is_utf8(bytes(view[start : start + PIECE_BYTES]) for start in range(0, len(body), PIECE_BYTES))


def _is_utf8(pieces: Iterable[bytes]) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in pieces:
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True
