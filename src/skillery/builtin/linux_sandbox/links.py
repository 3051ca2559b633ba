"""The server's end of a SOCK_SEQPACKET pair: small JSON messages, descriptors with them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from skillery.sandboxing.python_runner.wire import refuse_descriptors

MOST_BYTES = 128 * 1024
MOST_DESCRIPTORS = 16
MOST_UNREAD = 16
"""Messages that a wary end keeps."""
CREDENTIALS = struct.Struct("=3i")


class Received:
    """A message; its descriptors belong to whoever received it."""

    def __init__(self, raw: bytes, descriptors: list[int], *, cut: bool = False, pid: int = 0) -> None:
        self.raw = raw
        self.descriptors = descriptors
        self.cut = cut
        """Whether descriptors got lost on the way, because this process may have no more of them."""
        self.pid = pid
        """Who sent it, as the kernel says; known by wary ends alone. It may have ended meanwhile."""

    @cached_property
    def content(self) -> dict[str, Any]:
        """Empty where it is no JSON object."""
        try:
            found = json.loads(self.raw)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class Packets:
    """Never blocks the loop. At the end of the conversation `receive` returns None.

    A `wary` end talks with a process that nobody trusts: it takes no descriptors (that none is sent is for the other
    side's filter of system calls to see to where the kernel cannot), and hears no more of one that floods it."""

    def __init__(self, *, wary: bool = False) -> None:
        self._wary = wary
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        if wary:
            refuse_descriptors(self._socket)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._waiting: asyncio.Future[None] | None = None
        self._received: deque[Received] = deque()
        self._ended = False
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Raises OSError where it cannot be sent now."""
        socket.send_fds(self._socket, [json.dumps(message).encode()], list(descriptors))

    async def send_whole(self, messages: Sequence[dict[str, Any]], descriptors: Sequence[int] = ()) -> None:
        """Messages that belong together, with nobody else's in between, as fast as the other side takes them; the last
        one carries the descriptors. Raises OSError."""
        async with self._sending:
            for message in messages:
                last = message is messages[-1]
                while not self._sent(message, descriptors if last else ()):
                    await self._writable()

    def _sent(self, message: dict[str, Any], descriptors: Sequence[int]) -> bool:
        try:
            self.send(message, descriptors)
        except BlockingIOError:
            return False
        return True

    async def _writable(self) -> None:
        ready = asyncio.Event()
        self._loop.add_writer(self._socket, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_writer(self._socket)

    async def receive(self) -> Received | None:
        """The next message, None at the end. One caller at a time."""
        while not self._received and not self._ended:
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._received.popleft() if self._received else None

    def _read(self) -> None:
        try:
            received = self._heard_warily() if self._wary else self._heard()
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None or len(self._received) >= MOST_UNREAD:
            self._end()
        else:
            self._received.append(received)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _heard(self) -> Received | None:
        content, descriptors, flags, _ = socket.recv_fds(
            self._socket, MOST_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        return Received(content, descriptors, cut=bool(flags & socket.MSG_CTRUNC)) if content else None

    def _heard_warily(self) -> Received | None:
        room = socket.CMSG_SPACE(CREDENTIALS.size)
        content, extra, _, _ = self._socket.recvmsg(MOST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        sender = next((data for _, kind, data in extra if kind == socket.SCM_CREDENTIALS), bytes(CREDENTIALS.size))
        return Received(content, [], pid=CREDENTIALS.unpack(sender)[0]) if content else None

    def _end(self) -> None:
        self._ended = True
        self._loop.remove_reader(self._socket)

    def hang_up(self) -> None:
        """What has come can still be received, nothing more will."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def say_no_more(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if not self._ended:
            self._end()
        self._socket.close()
        self.theirs.close()
        for left in self._received:
            left.close()
        self._received.clear()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
