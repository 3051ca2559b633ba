"""A pack for one request: entries of the kept pack, copied as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from skillery.errors import Unavailable
from skillery.git_views.object_table import ObjectTable

PIECE_BYTES = 65_515
"""One piece fits into one line of the side band of git."""
VERSION = 2


def pack_pieces(table: ObjectTable, stream: BinaryIO, places: Sequence[int]) -> Iterator[bytes]:
    """Yield a pack with the objects at `places`, in pieces of at most PIECE_BYTES. Blocking."""
    found = hashlib.sha1(usedforsecurity=False)
    header = b"PACK" + VERSION.to_bytes(4, "big") + len(places).to_bytes(4, "big")
    found.update(header)
    held = bytearray(header)
    for begin, end in _runs(table, places):
        stream.seek(begin)
        left = end - begin
        while left:
            piece = stream.read(min(left, PIECE_BYTES - len(held)))
            if not piece:
                raise Unavailable("a stored git pack is shorter than its table says", hint="Try again.")
            left -= len(piece)
            found.update(piece)
            held += piece
            if len(held) == PIECE_BYTES:
                yield bytes(held)
                held.clear()
    held += found.digest()
    for start in range(0, len(held), PIECE_BYTES):
        yield bytes(held[start : start + PIECE_BYTES])


def _runs(table: ObjectTable, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the positions of entries. Entries that follow each other are one run."""
    run: tuple[int, int] | None = None
    for place in places:
        begin, end = table.span(place)
        if run is not None and run[1] == begin:
            run = run[0], end
            continue
        if run is not None:
            yield run
        run = begin, end
    if run is not None:
        yield run
