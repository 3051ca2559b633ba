"""Response bodies that a worker thread makes, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from skillery.edge.http import CHUNK_BYTES


async def send_pieces(send: Any, pieces: Iterable[bytes]) -> None:
    """Send the pieces as the rest of a response. They are made in worker threads."""
    gathered = gathered_pieces(pieces)
    while chunk := await asyncio.to_thread(next, gathered, b""):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def gathered_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of the pieces in chunks of about CHUNK_BYTES. Small chunks cost many thread switches, large
    chunks memory.
    """
    held = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_BYTES):
            held += piece[start : start + CHUNK_BYTES]
            if len(held) >= CHUNK_BYTES:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)
