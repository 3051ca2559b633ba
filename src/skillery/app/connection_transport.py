"""A transport with an orderly close: the client can read the last response, but cannot keep the connection open
forever.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from typing import Any

import msgspec

# -- The limits of one connection --------------------------------------------------------------------------------------


KIB = 1024
MIB = 1024 * KIB


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one connection. Sizes are in bytes, times in seconds."""

    head_bytes: int = 64 * KIB
    head_seconds: float = 30
    """Time for the head of a request (request line and headers). The time starts when the client connects, or with
    the first byte of a later head.
    """
    headers: int = 256
    """Limit of the headers of one request. Even a short header takes about a hundred bytes of memory."""
    framing_bytes: int = 16 * KIB
    framing_seconds: float = 10
    """`framing_bytes` and `framing_seconds` limit the chunk sizes, chunk extensions and trailers between two bytes of
    the body, or after the last one.
    """
    pipelined: int = 16
    """Limit of the requests of one connection that wait for the response to an earlier request."""
    window_seconds: float = 90
    least_bytes_per_second: int = KIB
    """Minimum rate over each `window_seconds`, for a body that the server reads and for a response that the client
    reads.
    """
    linger_bytes: int = 16 * MIB
    linger_seconds: float = 10
    """Limits of the input that is discarded after the last response. A client that is still sending can then read
    the response.
    """

    @property
    def least_bytes(self) -> float:
        """The minimum number of bytes in one window of `window_seconds`."""
        return self.least_bytes_per_second * self.window_seconds


# -- A timer that can be started again ---------------------------------------------------------------------------------


class Timer:
    """Calls a function once, some seconds after `start`, unless `stop` is called earlier."""

    __slots__ = ("_call", "_handle", "_loop", "_seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer. Do nothing if the timer runs: its end stays the same."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._end)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _end(self) -> None:
        self._handle = None
        self._call()


HELD_BYTES = 4 * 1024
"""Bytes up to which a write waits for the next one. Heads of responses are shorter."""
JOINED_BYTES = 64 * 1024
"""Bytes up to which a write is joined with the one before. Copying more takes longer than a system call."""


class ClosingTransport(asyncio.Transport):
    """Wraps the transport of one connection. Methods that do not concern closing are forwarded.

    If the client is still sending when `close` is called, the transport lingers: it ends the response, discards input
    for a while and then closes. After an immediate close, the kernel would reset the connection, and a reset can
    discard a response that the client has not read yet (RFC 9112 §9.6).

    A short write waits for the next write, at most until the end of this iteration of the event loop. So the head of a
    response and its body are one packet: the server makes one system call less, and the client wakes up once.

    is_unread: returns whether the client may be sending input that no request will read. on_closing: called by the
    first `close`, but not by `abort`. on_slow: called before a connection is closed because its client does not read.
    """

    def __init__(
        self,
        wrapped: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        bounds: Bounds,
        *,
        is_unread: Callable[[], bool],
        on_closing: Callable[[], None],
        on_slow: Callable[[], None],
    ) -> None:
        super().__init__()
        self._wrapped = wrapped
        self._loop = loop
        self._bounds = bounds
        self._is_unread = is_unread
        self._on_closing = on_closing
        self._on_slow = on_slow
        self._is_closing = False
        self._is_paused = False
        self._held = b""
        self._giving: asyncio.Handle | None = None
        self._written = 0
        self._sent = 0
        self._discarded = 0
        self.lingers = False
        self._sending = Timer(loop, bounds.window_seconds, self._measure)
        self._lingering = Timer(loop, bounds.linger_seconds, self._end_lingering)

    def close(self) -> None:
        """Close the transport. If the client may still be sending, linger first."""
        if self.is_closing():
            return
        self._give_held()
        self._is_closing = True
        self._on_closing()
        if self._is_unread():
            self._linger()
        else:
            self._wrapped.close()
        self.watch_sending()

    def abort(self) -> None:
        self._is_closing = True
        self._take_held()
        self._wrapped.abort()

    def lost(self) -> None:
        """Stop the timers, because the connection is lost."""
        self._take_held()
        self._sending.stop()
        self._lingering.stop()

    def discard(self, size: int) -> None:
        """Count `size` bytes of discarded input. Abort the connection above the limit `linger_bytes`."""
        self._discarded += size
        if self._discarded > self._bounds.linger_bytes:
            self.abort()

    def watch_sending(self) -> None:
        """Abort the connection if the client reads more slowly than the minimum rate. `unwatch_sending` ends this."""
        self._sent = self._taken()
        self._sending.start()

    def unwatch_sending(self) -> None:
        if not self._is_closing:
            self._sending.stop()

    def _linger(self) -> None:
        self.lingers = True
        self._wrapped.write_eof()
        self.resume_reading()
        self._lingering.start()

    def _end_lingering(self) -> None:
        # A long response may still be in transit. `_measure` handles a client that does not read it.
        if self._wrapped.get_write_buffer_size():
            self._lingering.start()
        else:
            self.abort()

    def _taken(self) -> int:
        """Return the number of bytes that the client's kernel has acknowledged."""
        # The kernel buffers megabytes for a client with a fast network, however slowly the client reads.
        return self._written - self.get_write_buffer_size() - _in_kernel(self._wrapped)

    def _measure(self) -> None:
        """Abort the connection if the client has read fewer bytes than the minimum rate since the last call."""
        if not self._wrapped.get_write_buffer_size():
            return
        if self._taken() - self._sent < self._bounds.least_bytes:
            self._on_slow()
            self.abort()
        else:
            self.watch_sending()

    # Methods that uvicorn calls on a transport.
    def is_closing(self) -> bool:
        return self._is_closing or self._wrapped.is_closing()

    def write(self, data: Any) -> None:
        """Write the data. Hold a short piece until the next write or the end of this iteration, to send both as one
        packet.
        """
        if self._is_closing:
            return
        self._written += len(data)
        if self._giving is not None and len(data) <= JOINED_BYTES:
            self._wrapped.write(self._take_held() + data)
        elif self._giving is None and len(data) <= HELD_BYTES:
            self._held = bytes(data)
            self._giving = self._loop.call_soon(self._give_held)
        else:
            self._give_held()
            self._wrapped.write(data)

    def _take_held(self) -> bytes:
        """Return the bytes that wait for the next write, which no longer wait then."""
        held, self._held = self._held, b""
        if self._giving is not None:
            self._giving.cancel()
            self._giving = None
        return held

    def _give_held(self) -> None:
        if held := self._take_held():
            self._wrapped.write(held)

    def pause_reading(self) -> None:
        if not self._is_paused and not self.is_closing():
            self._is_paused = True
            self._wrapped.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused and not self._wrapped.is_closing():
            self._is_paused = False
            self._wrapped.resume_reading()

    def get_write_buffer_size(self) -> int:
        return len(self._held) + self._wrapped.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._wrapped.get_extra_info(name, default)


def _in_kernel(transport: asyncio.Transport) -> int:
    """Return the number of bytes in the kernel's send queue (SIOCOUTQ of tcp(7)), or 0 if the kernel does not report
    it.
    """
    try:
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):
        return 0
    return int.from_bytes(queued, sys.byteorder)
