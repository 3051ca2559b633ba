"""Sockets with bounded buffers, and the transfer of bytes between two sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass

from cellblock.egress.policy import Denied

PIECE = 64 * 1024
IDLE_CHECKS = 4


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits on the connections of one run."""

    open_at_once: int = 32
    """Most open connections. Further connections wait until one closes."""
    in_all: int = 10_000
    """Most connections of the whole run. After the last one, the proxy stops accepting connections."""
    hosts: int = 256
    """Most different host names that are looked up. Without this limit, code could hide data in host names."""
    bytes_out: int = 1 << 30
    bytes_in: int = 4 << 30
    look_up_seconds: float = 10.0
    """Longest time for a look-up."""
    look_up_wait_seconds: float = 30.0
    """Longest wait until other look-ups of the run and its identity end."""
    head_seconds: float = 15.0
    """Longest time until a request head or a ClientHello has arrived completely."""
    idle_seconds: float = 60.0
    total_seconds: float = 3_600.0


class Spent:
    """The bytes of one connection, which also count for its `run`.

    If `run` is None, this object counts the bytes of a whole run, and enforces the limits of `caps`.
    """

    def __init__(self, caps: Caps, run: Spent | None = None) -> None:
        self._caps = caps
        self._run = run
        self.bytes_out = 0
        self.bytes_in = 0
        self.moved = time.monotonic()

    def out(self, size: int) -> None:
        """Count bytes before they are sent. Raise Denied if the run exceeds its limit."""
        self.bytes_out += size
        self.moved = time.monotonic()
        if self._run is not None:
            self._run.out(size)
        elif self.bytes_out > self._caps.bytes_out:
            raise Denied(f"the run has sent {self._caps.bytes_out} bytes, as much as it may")

    def into(self, size: int) -> None:
        self.bytes_in += size
        self.moved = time.monotonic()
        if self._run is not None:
            self._run.into(size)
        elif self.bytes_in > self._caps.bytes_in:
            raise Denied(f"the run has received {self._caps.bytes_in} bytes, as much as it may")


class Stream:
    """A connected, non-blocking socket. It is read only when a caller needs bytes, so its memory is bounded."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = b""
        self._loop = asyncio.get_running_loop()

    async def some(self, most: int = PIECE) -> bytes:
        """Return the next bytes; b"" at the end of the stream."""
        if self._unread:
            taken, self._unread = self._unread[:most], self._unread[most:]
            return taken
        return await self._loop.sock_recv(self._socket, most)

    async def more(self) -> bytes:
        """Read one more piece into the buffer, and return the whole buffer. Raise EOFError at the end of the stream."""
        piece = await self._loop.sock_recv(self._socket, PIECE)
        if not piece:
            raise EOFError
        self._unread += piece
        return self._unread

    @property
    def buffered(self) -> bytes:
        return self._unread

    async def until(self, end: bytes, most: int) -> bytes | None:
        """Return the data before `end`. Consume this data and `end`. Raise EOFError if the stream ends first.

        Return None if more than `most` bytes come before `end`.
        """
        looked_at = 0
        while (at := self._unread.find(end, max(0, looked_at - len(end)))) < 0:
            looked_at = len(self._unread)
            if looked_at > most:
                return None
            await self.more()
        if at > most:
            return None
        taken, self._unread = self._unread[:at], self._unread[at + len(end) :]
        return taken

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    def end_writing(self) -> None:
        with contextlib.suppress(OSError):  # may be closed already
            self._socket.shutdown(socket.SHUT_WR)

    async def end_gently(self, seconds: float) -> None:
        """Close the writing half, and wait for at most `seconds` until the other end closes too.

        Closing a socket with unread input would reset the connection before the other end has read the last bytes.
        """
        self.end_writing()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                for _ in range(64):
                    if not await self._loop.sock_recv(self._socket, PIECE):
                        return

    def close(self) -> None:
        self._socket.close()


async def carry_out(client: Stream, upstream: Stream, spent: Spent) -> None:
    """Forward bytes from the code to the host until the code closes its half of the connection."""
    while piece := await client.some():
        spent.out(len(piece))
        await upstream.send(piece)
    upstream.end_writing()


async def carry_in(upstream: Stream, client: Stream, spent: Spent) -> None:
    while piece := await upstream.some():
        spent.into(len(piece))
        await client.send(piece)
    client.end_writing()


async def both(
    outward: asyncio.Task[None], inward: asyncio.Task[None], spent: Spent, idle_seconds: float, *, inward_ends: bool
) -> None:
    """Wait until both directions have ended; with `inward_ends`, only until `inward` has ended.

    Raise the error of a direction that fails, and Denied after `idle_seconds` without a byte in either direction.
    """
    try:
        while not (inward.done() and (inward_ends or outward.done())):
            waiting = {task for task in (outward, inward) if not task.done()}
            await asyncio.wait(waiting, timeout=idle_seconds / IDLE_CHECKS, return_when=asyncio.FIRST_COMPLETED)
            for task in (outward, inward):
                if task.done():
                    task.result()
            if time.monotonic() - spent.moved > idle_seconds:
                raise Denied(f"nothing moved for {idle_seconds:.0f} seconds", status=504)
    finally:
        outward.cancel()
        inward.cancel()
        await asyncio.gather(outward, inward, return_exceptions=True)
