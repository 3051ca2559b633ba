"""Frames between a server and a node: a JSON header and a payload of bytes. No frame contains pickled objects."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, NamedTuple

import msgspec

_LENGTHS = struct.Struct(">II")
_MOST = 128 << 20
"""The most bytes of a header or of a payload. The largest is a result or the list of files of a workspace."""
PIECE = 512 * 1024
"""The bytes of a content that one frame carries."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Broken(Exception):
    """Raised if the other side has closed the connection or has sent an invalid frame."""


class Frame(NamedTuple):
    """A frame that was received."""

    header: dict[str, Any]
    payload: bytes


class Wire:
    """One connection. Several tasks may send, and one task receives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def unsent(self) -> int:
        """The number of bytes that the kernel has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    @property
    def is_open(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def put(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame without waiting. The caller bounds the amount with `unsent`."""
        encoded = _encode(header)
        self._writer.writelines((_LENGTHS.pack(len(encoded), len(payload)), encoded, payload))

    async def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame, and wait if the other side is slow. Raise Broken if the connection is closed."""
        if self._writer.is_closing():
            raise Broken("the connection is closed")
        self.put(header, payload)
        try:
            await self._writer.drain()
        except OSError as error:
            raise Broken(str(error)) from None

    async def receive(self) -> Frame:
        """Return the next frame. Raise Broken if the connection is closed or the frame is not valid."""
        try:
            lengths = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            if max(lengths) > _MOST:
                raise Broken(f"a frame of {max(lengths)} bytes")
            header = _decode(await self._reader.readexactly(lengths[0]))
            return Frame(header, await self._reader.readexactly(lengths[1]) if lengths[1] else b"")
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            raise Broken(str(error)) from None

    def close(self) -> None:
        """Close the connection at once. Unsent frames are lost."""
        self._writer.transport.abort()
