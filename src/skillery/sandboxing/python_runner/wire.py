"""The server's end of the channel to the process inside the sandbox.

All input comes from untrusted code. Every size is checked before a byte is read, and no input is unpickled.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any

import msgspec

HEAD = struct.Struct(">IQ")
MAX_HEADER = 64 * 1024
PIECE = 256 * 1024
FULL_SECONDS = 0.002


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
    one, other = socket.socketpair()
    with one, other:
        return refuse_descriptors(one)


class ChannelAbused(Exception):
    """Raised if the input is not a valid message."""


class Message(msgspec.Struct, frozen=True):
    """A header from the code, and the size of the body after it."""

    op: str
    body: int = 0
    kind: str = ""
    path: str = ""
    blob_id: str = ""
    skill: str = ""
    function: str = ""
    text: str = ""
    type: str = ""
    message: str = ""
    traceback: str = ""
    done: float = 0
    total: float | None = None
    disk: int | None = None


async def one_piece(content: bytes) -> AsyncIterator[bytes]:
    yield content


class Channel:
    """Sends messages to the process inside the sandbox, and receives its messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """Return a channel that owns the socket. The socket refuses descriptors, if the kernel supports that.

        If this coroutine fails or is cancelled, the socket is closed.
        """
        refuse_descriptors(end)
        end.setblocking(False)
        try:
            return cls(*await asyncio.open_connection(sock=end, limit=PIECE))
        except BaseException:
            end.close()
            raise

    async def receive(self) -> Message | None:
        """Return the next message header; None at the end. Raise ChannelAbused if it is invalid.

        The caller must read the body before the next call.
        """
        try:
            header_size, body = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            if header_size > MAX_HEADER:
                raise ChannelAbused(f"a header of {header_size} bytes")
            header = await self._reader.readexactly(header_size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ChannelAbused("half a message") from None
            return None
        except ConnectionError:
            return None
        try:
            return msgspec.structs.replace(msgspec.json.decode(header, type=Message), body=body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ChannelAbused("a header that is not JSON of the known shape") from None

    async def pieces(self, size: int) -> AsyncIterator[bytes]:
        """Yield the body in pieces of at most 256 KiB. Raise ChannelAbused if the body ends early."""
        while size:
            piece = await self._reader.read(min(size, PIECE))
            if not piece:
                raise ChannelAbused("half a message")
            size -= len(piece)
            yield piece

    async def body(self, size: int) -> bytes:
        """Return the whole body. The caller has checked its size."""
        return b"".join([piece async for piece in self.pieces(size)])

    async def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        await self.send_pieces(header, len(body), one_piece(body))

    async def send_pieces(self, header: Mapping[str, Any], size: int, pieces: AsyncIterator[bytes]) -> None:
        """Send a header and a body of `size` bytes. A piece is requested only after the piece before was sent."""
        encoded = json.dumps(header).encode()
        try:
            await self._write(HEAD.pack(len(encoded), size) + encoded)
            async for piece in pieces:
                for start in range(0, len(piece), PIECE):  # in pieces, to avoid a second copy in memory
                    await self._write(memoryview(piece)[start : start + PIECE])
        except ConnectionError:
            return  # the process has ended, which the reader will notice

    async def send_descriptor(self, descriptor: int) -> None:
        """Send one byte that carries the descriptor. The receiver must read it with `recvmsg`."""
        self._writer.transport.set_write_buffer_limits(0)
        with socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno())) as end:
            end.setblocking(False)
            while True:
                try:
                    # With this limit, `drain` returns when all bytes before the descriptor are in the socket.
                    await self._writer.drain()
                    socket.send_fds(end, [b"d"], [descriptor])
                except BlockingIOError:
                    await asyncio.sleep(FULL_SECONDS)
                except ConnectionError:
                    return  # the process has ended, which the reader will notice
                else:
                    break
        self._writer.transport.set_write_buffer_limits()

    async def _write(self, piece: bytes | memoryview) -> None:
        if self._writer.is_closing():
            raise BrokenPipeError
        self._writer.write(piece)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.transport.abort()
