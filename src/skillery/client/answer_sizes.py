"""The limit on the size of answers: a server, or a host that pretends to be one, cannot fill the memory of the
client.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx

from skillery.client.wire import strange_answer

VARIABLE = "SKILLERY_MAX_ANSWER_MB"
"""The environment variable with the limit in MiB."""
DEFAULT_MB = 64
MIB = 1024 * 1024
IN_PIECES = {"skillery.in_pieces": True}
"""Extensions of a request whose answer is read in pieces. Such an answer has no limit, unless it is an error."""


def most_bytes_of(max_answer_mb: int | None) -> int:
    """Return the limit in bytes: `max_answer_mb`, or SKILLERY_MAX_ANSWER_MB, or 64 MiB.

    Raise ValueError if it is not a whole number above 0.
    """
    text = os.environ.get(VARIABLE) or str(DEFAULT_MB) if max_answer_mb is None else str(max_answer_mb)
    if not (text.isdecimal() and len(text) < 8 and int(text) > 0):
        raise ValueError(f"the largest answer is a whole number of MiB above 0 ({VARIABLE}), not {text[:80]!r}")
    return int(text) * MIB


def bounded(most: int) -> dict[str, list[Callable[[httpx.Response], None]]]:
    """Return the event hooks of an httpx client that limit answers to `most` bytes."""
    return {"response": [lambda response: _bound(response, most)]}


def bounded_async(most: int) -> dict[str, list[Callable[[httpx.Response], Awaitable[None]]]]:
    """Return the event hooks of an asynchronous httpx client that limit answers to `most` bytes."""

    async def bound(response: httpx.Response) -> None:
        _bound(response, most)

    return {"response": [bound]}


def _bound(response: httpx.Response, most: int) -> None:
    """Replace the stream of a response by one that raises StrangeAnswer after `most` bytes.

    Raise StrangeAnswer at once if the headers state a larger size or a content coding.
    """
    if response.status_code < 400 and response.request.extensions.get("skillery.in_pieces"):
        return
    if response.headers.get("content-encoding", "identity") != "identity":
        # The client asks for none, and a small compressed body may become a huge one.
        raise strange_answer(response, "with a content coding that the client did not ask for")
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(response, most)
    response.stream = _Bounded(response, response.stream, most)


def _too_large(response: httpx.Response, most: int) -> Exception:
    return strange_answer(response, f"with more than {most // MIB} MiB, the limit of max_answer_mb and {VARIABLE}")


class _Bounded(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that raises StrangeAnswer if it has more than `most` bytes."""

    def __init__(self, response: httpx.Response, stream: Any, most: int) -> None:
        self._response = response
        self._stream = stream
        self._most = most
        self._size = 0

    def _counted(self, piece: bytes) -> bytes:
        self._size += len(piece)
        if self._size > self._most:
            raise _too_large(self._response, self._most)
        return piece

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            yield self._counted(piece)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield self._counted(piece)

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()
