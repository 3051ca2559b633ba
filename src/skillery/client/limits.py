"""Limits of a call: its time with all retries, and the size of its answer."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import httpx

from skillery.client.errors import Busy, ClientError, ConnectionFailed, DeadlineExceeded, StrangeAnswer
from skillery.client.wire import strange_answer

# -- Deadlines: a limit on the time of a whole call, with its retries --------------------------------------------------


class Deadline:
    """The end of one call, `seconds` from now. If `seconds` is None, the call has no end."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the seconds until the end, at least 0, or None if the call has no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def is_before(self, wait: float) -> bool:
        """Return whether the call ends before a wait of `wait` seconds is over."""
        seconds_left = self.left()
        return seconds_left is not None and wait >= seconds_left

    def exceeded(self, http: httpx.Client | httpx.AsyncClient) -> DeadlineExceeded:
        """Return the error for a call that was not answered before its end."""
        return DeadlineExceeded(f"{http.base_url} did not answer the call within {self.seconds:g} s")


async def exchange_async(
    http: httpx.AsyncClient, deadline: Deadline, method: str, address: str, **parts: Any
) -> httpx.Response:
    """Send a request and return the response. Raise DeadlineExceeded if the deadline is over first."""
    try:
        async with asyncio.timeout(deadline.left()):
            return await http.request(method, address, **parts)
    except TimeoutError:
        raise deadline.exceeded(http) from None


def exchange(http: httpx.Client, deadline: Deadline, method: str, address: str, **parts: Any) -> httpx.Response:
    """Send a request and return the response. Raise DeadlineExceeded if the deadline is over first.

    The deadline is checked after each piece of the response. If a server sends some pieces and then stops, the call may
    take up to twice the deadline.
    """
    seconds_left = deadline.left()
    if seconds_left is None:
        return http.request(method, address, **parts)
    try:
        with http.stream(method, address, timeout=_shorter(http.timeout, seconds_left), **parts) as response:
            content = b"".join(_in_time(response, deadline, http))
    except httpx.TimeoutException:
        if deadline.is_before(0):
            raise deadline.exceeded(http) from None
        raise
    return httpx.Response(response.status_code, headers=response.headers, content=content, request=response.request)


def _in_time(response: httpx.Response, deadline: Deadline, http: httpx.Client) -> Iterator[bytes]:
    for piece in response.iter_raw():
        if deadline.is_before(0):
            raise deadline.exceeded(http)
        yield piece


def _shorter(timeout: httpx.Timeout, left: float) -> httpx.Timeout:
    return httpx.Timeout(**{name: min(left, seconds or left) for name, seconds in timeout.as_dict().items()})


CALL_UNDER_WAY = "call_under_way"
FIRST_WAIT_SECONDS = 0.2
_GATEWAY = frozenset({502, 503, 504})
"""HTTP statuses of a proxy that cannot reach the server."""


@dataclass(frozen=True)
class Retries:
    """Limits of the retries for a server that is busy or does not answer."""

    attempts: int = 5
    """The maximum number of attempts. 1 means no retries and no automatic idempotency keys.

    While the server still executes the call, the client asks again without counting an attempt.
    """
    longest_wait_seconds: float = 60.0
    """The maximum delay in seconds. If the server requests a longer one, the client raises the error at once."""

    @property
    def has_retries(self) -> bool:
        """Whether the client may send a call a second time."""
        return self.attempts > 1


class Patience:
    """The retries of one call.

    `repeatable` means that sending the call twice is harmless. Such a call is sent again even if the server may have
    received the first attempt.
    """

    def __init__(self, retries: Retries, *, repeatable: bool, seconds: float | None = None) -> None:
        """`seconds` limits the time of the whole call. None means no limit."""
        self._retries = retries
        self._repeatable = repeatable
        self._failures = 0
        self.deadline = Deadline(seconds)

    def wait_after(self, error: ClientError) -> float:
        """Return the seconds until the next attempt after `error`.

        Raise `error` if a retry is useless, or if the attempts or the time are used up.
        """
        wait = self._next_wait(error)
        if self.deadline.is_before(wait):
            raise error
        return wait

    def _next_wait(self, error: ClientError) -> float:
        """Return the seconds until the next attempt, and count the failure. Raise `error` if there is no next
        attempt.
        """
        if isinstance(error, Busy) and error.type == CALL_UNDER_WAY:
            # The server is executing this call under the same key: wait for its answer without a limit of attempts.
            return _requested_delay(error)
        self._failures += 1
        wait = self._wait(error)
        if wait is None or self._failures >= self._retries.attempts or wait > self._retries.longest_wait_seconds:
            raise error
        # Never earlier than requested, and with jitter, so that clients do not return all at once.
        return wait * random.uniform(1.0, 1.25)

    def _wait(self, error: ClientError) -> float | None:
        """Return the seconds before jitter is added, or None if the call cannot be sent again."""
        if isinstance(error, Busy):
            return _requested_delay(error)
        unsent = isinstance(error, ConnectionFailed) and not error.sent
        lost = isinstance(error, ConnectionFailed) or (isinstance(error, StrangeAnswer) and error.status in _GATEWAY)
        if unsent or (lost and self._repeatable):
            return float(FIRST_WAIT_SECONDS * 2 ** (self._failures - 1))
        return None


def _requested_delay(error: Busy) -> float:
    return max(0.0, (error.retry_after_ms or 1000) / 1000)


# -- Blocking operations for both clients, as a function and as a coroutine: file access and sleep ---------------------


sleep = time.sleep
sleep_async = asyncio.sleep


def read(file: BinaryIO, size: int) -> bytes:
    return file.read(size)


async def read_async(file: BinaryIO, size: int) -> bytes:
    return await asyncio.to_thread(file.read, size)


def write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


async def write_async(file: BinaryIO, content: bytes) -> None:
    await asyncio.to_thread(file.write, content)


# -- The size of an answer: a server, or a host that pretends to be one, cannot fill the memory of the client ----------


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
