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

from skillery.app.connections.bounds import Bounds
from skillery.app.connections.timers import Timer


class ClosingTransport(asyncio.Transport):
    """Wraps the transport of one connection. Methods that do not concern closing are forwarded.

    If the client is still sending when `close` is called, the transport lingers: it ends the response, discards input
    for a while and then closes. After an immediate close, the kernel would reset the connection, and a reset can
    discard a response that the client has not read yet (RFC 9112 §9.6).

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
        self._bounds = bounds
        self._is_unread = is_unread
        self._on_closing = on_closing
        self._on_slow = on_slow
        self._is_closing = False
        self._is_paused = False
        self._written = 0
        self._sent = 0
        self._discarded = 0
        self.lingers = False
        self._sending = Timer(loop, bounds.window_seconds, self._measure)
        self._lingering = Timer(loop, bounds.linger_seconds, self._end_lingering)

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        self._on_closing()
        if self._is_unread():
            self._linger()
        else:
            self._wrapped.close()
        self.watch_sending()

    def abort(self) -> None:
        self._is_closing = True
        self._wrapped.abort()

    def lost(self) -> None:
        """Stop the timers, because the connection is lost."""
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
        return self._written - self._wrapped.get_write_buffer_size() - _in_kernel(self._wrapped)

    def _measure(self) -> None:
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
        if not self._is_closing:
            self._written += len(data)
            self._wrapped.write(data)

    def pause_reading(self) -> None:
        if not self._is_paused and not self.is_closing():
            self._is_paused = True
            self._wrapped.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused and not self._wrapped.is_closing():
            self._is_paused = False
            self._wrapped.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._wrapped.get_write_buffer_size()

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
