"""Messages between workers and the helper: 4 bytes of length, then msgpack."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

SOCKET = "semantic.sock"
_LENGTH = 4


def write_message(writer: asyncio.StreamWriter, message: Any) -> None:
    encoded = msgspec.msgpack.encode(message)
    writer.write(len(encoded).to_bytes(_LENGTH, "big") + encoded)


async def read_message(reader: asyncio.StreamReader) -> Any:
    """Return the next message. Raise EOFError at the end of the connection."""
    length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
    return msgspec.msgpack.decode(await reader.readexactly(length))
