"""Messages over a stream socket: a JSON header and a body of raw bytes, after the lengths of both."""

from __future__ import annotations

import json
import os
import struct

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

HEAD = struct.Struct(">IQ")
PIECE = 256 * 1024


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:PIECE]) :]


def read_exactly(descriptor: int, size: int) -> bytes:
    """Return exactly `size` bytes. Raise EOFError if the other end closes early."""
    content = bytearray()
    while len(content) < size:
        piece = os.read(descriptor, min(PIECE, size - len(content)))
        if not piece:
            raise EOFError("the host has gone")
        content += piece
    return bytes(content)


def packed(header: dict[str, Any], body: int) -> bytes:
    """Return the encoded header of a message whose body has `body` bytes."""
    encoded = json.dumps(header).encode()
    return HEAD.pack(len(encoded), body) + encoded


def send(descriptor: int, header: dict[str, Any], body: bytes | memoryview = b"") -> None:
    write_all(descriptor, packed(header, len(body)))
    write_all(descriptor, body)


def receive(descriptor: int) -> tuple[dict[str, Any], bytes]:
    header_size, body_size = HEAD.unpack(read_exactly(descriptor, HEAD.size))
    header: dict[str, Any] = json.loads(read_exactly(descriptor, header_size))
    return header, read_exactly(descriptor, body_size)
