"""The server's end of a SOCK_SEQPACKET socket pair: small messages, which may carry descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from cellblock.host.channel import refuse_descriptors

MOST_BYTES = 128 * 1024
MOST_DESCRIPTORS = 16
MOST_UNREAD = 16
"""The number of unread messages at which reading stops."""
CREDENTIALS = struct.Struct("=3i")
_ROOM = socket.CMSG_LEN(MOST_DESCRIPTORS * array("i").itemsize)
# Numbers, because `&` of the enumeration in the standard library takes about as long as receiving a message.
_CLOSED_ON_EXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)


class Received:
    """A received message. The receiver must close its descriptors."""

    def __init__(self, raw: bytes, descriptors: list[int], *, cut: bool = False, pid: int = 0) -> None:
        self.raw = raw
        self.descriptors = descriptors
        self.cut = cut
        """Whether descriptors were lost, because this process has reached its limit."""
        self.pid = pid
        """The sender according to the kernel, known only to wary ends. The process may have ended since."""

    @cached_property
    def content(self) -> dict[str, Any]:
        """Return the JSON object in the message, or {} if the message is not a JSON object."""
        try:
            message = json.loads(self.raw)
        except (ValueError, RecursionError):
            return {}
        return message if isinstance(message, dict) else {}

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def receive(end: socket.socket, most_bytes: int) -> Received | None:
    """Return the next message with its descriptors, or None at the end. Raise BlockingIOError if there is none yet."""
    # socket.recv_fds ignores its flags in Python 3.11, so programs started now could inherit the descriptors.
    content, extra, flags, _ = end.recvmsg(most_bytes, _ROOM, _CLOSED_ON_EXEC)
    descriptors = array("i")
    for _, kind, data in extra:
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return Received(content, descriptors.tolist(), cut=bool(flags & _CUT)) if content else None


class Packets:
    """Messages over a socket, without blocking the event loop. After the end, `receive` returns the unread messages,
    then None. Too many unread messages end the reading.

    With `wary`, the other process is untrusted. Then this end accepts no descriptors. If the kernel cannot refuse them,
    the system call filter of the other process must prevent them.
    """

    def __init__(self, *, wary: bool = False) -> None:
        self._wary = wary
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        if wary:
            refuse_descriptors(self._socket)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._waiting: asyncio.Future[None] | None = None
        self._deliver: Callable[[Received | None], None] | None = None
        self._is_watched = False
        self._received: deque[Received] = deque()
        self._ended = False
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def _watch(self) -> None:
        # Only when a caller waits: the connections of most runs have no reader before the run ends.
        if not (self._is_watched or self._ended):
            self._is_watched = True
            self._loop.add_reader(self._socket, self._read)

    def deliver_to(self, deliver: Callable[[Received | None], None]) -> None:
        """From now on, call `deliver` with each message, and with None at the end, instead of `receive`."""
        self._deliver = deliver
        while self._received:
            deliver(self._received.popleft())
        if self._ended:
            deliver(None)
        self._watch()

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message. Raise OSError if that is impossible now."""
        socket.send_fds(self._socket, [message], list(descriptors))

    async def send_whole(self, messages: Sequence[bytes], descriptors: Sequence[int] = ()) -> None:
        """Send several messages without another message in between. Wait while the receiver is slow.

        The last message carries the descriptors. Raise OSError if the connection is lost.
        """
        async with self._sending:
            for message in messages:
                last = message is messages[-1]
                while not self._sent(message, descriptors if last else ()):
                    await self._writable()

    def send_now(self, message: bytes, descriptors: Sequence[int]) -> bool:
        """Send a message if that is possible now. Raise OSError if the connection is lost."""
        return not self._sending.locked() and self._sent(message, descriptors)

    def _sent(self, message: bytes, descriptors: Sequence[int]) -> bool:
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
        """Return the next message; None at the end. Only one caller at a time may wait."""
        if not self._is_watched:
            self._read()
        while not self._received and not self._ended:
            self._watch()
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._received.popleft() if self._received else None

    def _read(self) -> None:
        try:
            received = self._heard_warily() if self._wary else self._heard()
        except BlockingIOError:
            return
        except ConnectionResetError:
            # It ended with unread messages of this end. What it sent can still be read, and uvloop reports no more.
            while not self._ended:
                self._read()
            return
        except OSError:
            received = None
        if received is None:
            self._end()
        if self._deliver is not None:
            self._deliver(received)
            return
        if received is None:
            pass
        elif len(self._received) >= MOST_UNREAD:
            received.close()
            self._end()
        else:
            self._received.append(received)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _heard(self) -> Received | None:
        return receive(self._socket, MOST_BYTES)

    def _heard_warily(self) -> Received | None:
        room = socket.CMSG_SPACE(CREDENTIALS.size)
        content, extra, _, _ = self._socket.recvmsg(MOST_BYTES, room, _CLOSED_ON_EXEC)
        sender = next((data for _, kind, data in extra if kind == socket.SCM_CREDENTIALS), bytes(CREDENTIALS.size))
        return Received(content, [], pid=CREDENTIALS.unpack(sender)[0]) if content else None

    def _end(self) -> None:
        self._ended = True
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._socket)

    def hang_up(self) -> None:
        """Close the connection. Messages that have arrived can still be read."""
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
