"""The server's end of the channel to the process inside the sandbox.

All input comes from untrusted code. Every size is checked before a byte is read, and no input is unpickled.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

HEAD = struct.Struct(">IQ")
MAX_HEADER = 64 * 1024
PIECE = 256 * 1024
FIRST_PIECE = 64 * 1024
"""Bytes that are read at once until a message fills them. A larger buffer is mapped and unmapped for each read, which
takes ten times as long as reading a short message.
"""
MOST_UNREAD = 2 * PIECE
"""Bytes that were received and not read, above which the channel receives no more."""

SO_PASSRIGHTS = 83
"""Socket option of Linux 6.16. If it is off, sending a descriptor to this socket fails with EPERM."""


def refuse_descriptors(end: socket.socket) -> bool:
    """Make this socket refuse descriptors. Return False if the kernel cannot; then the sandbox must prevent them.

    A reader must close each descriptor that it receives, and the sender decides how long closing takes (SO_LINGER).
    """
    try:
        end.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


@cache
def can_refuse_descriptors() -> bool:
    end, other = socket.socketpair()
    with end, other:
        return refuse_descriptors(end)


class ChannelAbused(Exception):
    """Raised if the input is not a valid message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A header from the code, and the size of the body after it."""

    op: str
    body: int = 0
    text: str = ""
    type: str = ""
    message: str = ""
    traceback: str = ""
    done: float = 0
    total: float | None = None
    disk: int | None = None
    header: Mapping[str, Any] = field(default_factory=dict)
    """All fields, also those of requests to the owner, which are not checked: any JSON that the code can write."""

    def text_at(self, name: str) -> str:
        """Return the text of an unchecked field, "" if there is none. Raise ChannelAbused if it is no text."""
        try:
            return _text(self.header.get(name, ""))
        except ValueError:
            raise ChannelAbused(f"a field {name} that is no text") from None


TEXTS = ("op", "text", "type", "message", "traceback")


def parse_message(header: bytes, body: int) -> Message:
    """Return the message of a header with a body of `body` bytes. Unknown fields are ignored.

    Raise ValueError, OverflowError or RecursionError if the header is not JSON, or a field has the wrong type.
    """
    fields = json.loads(str(header, "utf-8"), parse_constant=_refuse_constant)
    if not isinstance(fields, dict) or "op" not in fields:
        raise ValueError("no object with `op`")
    texts = {name: _text(fields[name]) for name in TEXTS if name in fields}
    disk = fields.get("disk")
    if disk is not None and type(disk) is not int:
        raise ValueError("`disk` is no integer")
    done, total = _number(fields.get("done", 0)), fields.get("total")
    total = None if total is None else _number(total)
    return Message(**texts, body=body, done=done, total=total, disk=disk, header=fields)


def _text(value: object) -> str:
    """Return a text that UTF-8 can encode. Raise ValueError for any other value."""
    if not isinstance(value, str):
        raise ValueError("a text is expected")
    if not value.isascii():
        value.encode()  # a lone surrogate raises UnicodeEncodeError
    return value


def _number(value: object) -> float:
    """Return a finite number. Raise ValueError or OverflowError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a finite number is expected")
    return float(value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


async def one_piece(content: bytes) -> AsyncIterator[bytes]:
    yield content


class Channel:
    """Sends messages to the process inside the sandbox, and receives its messages.

    One task at a time may receive, and one may send. The socket is used directly: the streams of asyncio would add a
    transport, a protocol and several tasks to each run.
    """

    def __init__(self, end: socket.socket) -> None:
        """Own the socket, which must not block."""
        self._socket = end
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._at_once = FIRST_PIECE
        self._is_watched = False
        self._ended = False
        self._was_reset = False
        self._closed = False
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self.heard_at = time.monotonic()
        """The time (`time.monotonic`) at which the last byte arrived."""

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """Return a channel that owns the socket. The socket refuses descriptors, if the kernel supports that."""
        refuse_descriptors(end)
        end.setblocking(False)
        return cls(end)

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(self) -> Message | None:
        """Return the next message header; None at the end. Raise ChannelAbused if it is invalid.

        The caller must read the body before the next call.
        """
        if not await self._has(HEAD.size):
            self._check_end()
            return None
        header_size, body = HEAD.unpack_from(self._unread)
        if header_size > MAX_HEADER:
            raise ChannelAbused(f"a header of {header_size} bytes")
        if not await self._has(HEAD.size + header_size):
            self._check_end()
            return None
        header = self._take(HEAD.size + header_size)[HEAD.size :]
        try:
            return parse_message(header, body)
        except (ValueError, OverflowError, RecursionError):
            raise ChannelAbused("a header that is not JSON of the known shape") from None

    def _check_end(self) -> None:
        if self._unread and not self._was_reset:
            raise ChannelAbused("half a message")

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        """Yield the body in pieces of at most 256 KiB. Raise ChannelAbused if the body ends early."""
        while size:
            if not await self._has(1):
                raise ChannelAbused("half a message")
            piece = self._take(min(size, PIECE))
            size -= len(piece)
            yield piece

    async def body(self, size: int) -> bytes:
        """Return the whole body. The caller has checked its size."""
        if size <= len(self._unread):
            return self._take(size)
        return b"".join([piece async for piece in self.pieces(size)])

    def _take(self, size: int) -> bytes:
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    async def _has(self, size: int) -> bool:
        """Wait until `size` bytes are unread. Return False if the other end has closed before that."""
        while len(self._unread) < size:
            if self._ended:
                return False
            self._watch()
            self._readable = self._loop.create_future()
            await self._readable
        return True

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._loop.add_reader(self._socket, self._read)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._socket)

    def _read(self) -> None:
        # Until there is no more: if the other end closed with unread bytes, uvloop calls this method only once more.
        while self._is_watched and self._take_in():
            if self._ended or len(self._unread) >= MOST_UNREAD:
                self._unwatch()
        _wake(self._readable)

    def _take_in(self) -> bool:
        """Receive a piece or the end. Return False if there is neither now."""
        try:
            piece = self._socket.recv(self._at_once)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            piece, self._was_reset = b"", True
        self._unread += piece
        self._ended = not piece
        if piece:
            self.heard_at = time.monotonic()
        if len(piece) == FIRST_PIECE:
            self._at_once = PIECE
        return True

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        if len(body) > PIECE:
            await self.send_pieces(header, len(body), one_piece(body))
            return
        encoded = encode_json(header)
        try:
            await self._write(HEAD.pack(len(encoded), len(body)) + encoded + body)
        except ConnectionError:
            return  # the process has ended, which the reader will notice

    async def send_pieces(self, header: Mapping[str, Any], size: int, pieces: AsyncIterator[bytes]) -> None:
        """Send a header and a body of `size` bytes. A piece is requested only after the piece before was sent."""
        encoded = encode_json(header)
        try:
            await self._write(HEAD.pack(len(encoded), size) + encoded)
            async for piece in pieces:
                await self._write(piece)
        except ConnectionError:
            return  # the process has ended, which the reader will notice

    async def send_descriptor(self, descriptor: int) -> None:
        """Send one byte that carries the descriptor. The receiver must read it with `recvmsg`."""
        while not self._closed:
            try:
                socket.send_fds(self._socket, [b"d"], [descriptor])
            except BlockingIOError:
                await self._wait_writable()
            except ConnectionError:
                return  # the process has ended, which the reader will notice
            else:
                return

    async def _write(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:
            if self._closed:
                raise BrokenPipeError
            try:
                left = left[self._socket.send(left) :]
            except (BlockingIOError, InterruptedError):
                await self._wait_writable()

    async def _wait_writable(self) -> None:
        self._writable = waiting = self._loop.create_future()
        self._loop.add_writer(self._socket, _wake, waiting)
        try:
            await waiting
        finally:
            if not self._closed:
                self._loop.remove_writer(self._socket)

    def close(self) -> None:
        """Close the socket. A task that waits for a message gets None, and a task that sends ends its call."""
        if self._closed:
            return
        self._unwatch()
        self._loop.remove_writer(self._socket)
        self._closed = self._ended = self._was_reset = True
        self._socket.close()
        _wake(self._readable)
        _wake(self._writable)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_json(value: Any) -> bytes:
    """Return the value as JSON for a process that decodes it with `json`. Texts may have lone surrogates: Python has
    them in paths that are not UTF-8.
    """
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class BrokenSetup(Exception):
    """Raised if the sandbox could not be prepared.

    Callers see the message. `explained` is True if the sandbox sent the message.
    """

    def __init__(self, message: str, *, explained: bool = False) -> None:
        super().__init__(message)
        self.explained = explained


async def wait_ready(channel: Channel) -> None:
    """Wait until the sandbox is ready for code. Raise BrokenSetup if it cannot be prepared."""
    try:
        message = await channel.receive()
    except ChannelAbused:  # the process was killed during a message
        message = None
    check_ready(message)


def check_ready(message: Message | None) -> None:
    """Raise BrokenSetup if the message does not say that the sandbox is ready."""
    if message is None:
        raise BrokenSetup("the sandbox ended while it was being set up")
    if message.op != "ready":
        raise BrokenSetup(message.message[:500] or "the sandbox could not be set up", explained=True)
