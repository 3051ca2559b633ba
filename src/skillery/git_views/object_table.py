"""The table of the objects in a kept pack. Requests are answered only from this table."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec

from skillery.errors import Unavailable

COMMIT, TREE, BLOB = 1, 2, 3
"""The numbers of object types in packs."""
ID_BYTES = 20
MAGIC = b"skillery git view 1\n"
LENGTH_BYTES = 8


class StoredCommit(msgspec.Struct, frozen=True, array_like=True):
    """A commit. Parents are numbers of commits, objects are places in the table."""

    place: int
    parents: list[int]
    time: int
    objects: list[int]
    """All objects of the commit: itself, its trees and its blobs."""


class StoredTable(msgspec.Struct, frozen=True, array_like=True):
    """The table as it is stored at the end of a kept pack."""

    ids: bytes
    """20 bytes for each object, in the order of the pack."""
    kinds: bytes
    sizes: list[int]
    """Sizes of the contents."""
    ends: list[int]
    """For each object, the position behind its compressed entry. The first entry begins behind MAGIC."""
    commits: list[StoredCommit]
    refs: dict[str, int]
    """The commit of each branch and tag."""
    head: str | None


class ObjectTable:
    """The objects of a state, with their types, sizes and positions in the kept pack."""

    def __init__(self, stored: StoredTable) -> None:
        self.commits = stored.commits
        self.refs = stored.refs
        self.head = stored.head
        self._ids = stored.ids
        self._kinds = stored.kinds
        self._sizes = array("Q", stored.sizes)
        self._ends = array("Q", stored.ends)
        self._places = {stored.ids[at : at + ID_BYTES]: at // ID_BYTES for at in range(0, len(stored.ids), ID_BYTES)}
        self._numbers = {commit.place: number for number, commit in enumerate(stored.commits)}

    def __len__(self) -> int:
        return len(self._kinds)

    def find(self, hex_id: str) -> int | None:
        """Return the place of an object, or None if the state has no such object."""
        return self._places.get(bytes.fromhex(hex_id))

    def hex_id(self, place: int) -> str:
        return self._ids[place * ID_BYTES : (place + 1) * ID_BYTES].hex()

    def kind(self, place: int) -> int:
        return self._kinds[place]

    def size(self, place: int) -> int:
        return self._sizes[place]

    def commit_number(self, place: int) -> int | None:
        return self._numbers.get(place)

    def commit_id(self, number: int) -> str:
        return self.hex_id(self.commits[number].place)

    def span(self, place: int) -> tuple[int, int]:
        """Return the positions of the beginning and of the end of the compressed entry."""
        return (self._ends[place - 1] if place else len(MAGIC)), self._ends[place]

    def children(self, place: int, stream: BinaryIO) -> Iterator[int]:
        """Yield the places of the entries of a tree. Blocking."""
        content = read_object(stream, *self.span(place))
        at = 0
        while at < len(content):
            end = content.index(b"\0", at) + 1
            yield self._places[content[end : end + ID_BYTES]]
            at = end + ID_BYTES


def read_object(stream: BinaryIO, begin: int, end: int) -> bytes:
    """Return the content of the object at these positions of a kept pack."""
    stream.seek(begin)
    entry = stream.read(end - begin)
    header = next(number for number, byte in enumerate(entry) if byte < 0x80) + 1
    return zlib.decompress(entry[header:])


def read_table(stream: BinaryIO, size: int) -> ObjectTable:
    """Return the table at the end of a kept pack. Raise Unavailable if it cannot be read. Blocking."""
    stream.seek(size - LENGTH_BYTES)
    length = int.from_bytes(stream.read(LENGTH_BYTES), "big")
    stream.seek(size - LENGTH_BYTES - length)
    try:
        return ObjectTable(msgspec.msgpack.decode(stream.read(length), type=StoredTable))
    except msgspec.DecodeError:
        raise Unavailable(
            "the stored git pack of this repository is damaged", hint="Tell the admin of the server."
        ) from None


# -- A pack for one request: entries of the kept pack, copied as they are ----------------------------------------------


PIECE_BYTES = 65_515
"""One piece fits into one line of the side band of git."""
VERSION = 2


def pack_pieces(table: ObjectTable, stream: BinaryIO, places: Sequence[int]) -> Iterator[bytes]:
    """Yield a pack with the objects at `places`, in pieces of at most PIECE_BYTES. Blocking."""
    hasher = hashlib.sha1(usedforsecurity=False)
    header = b"PACK" + VERSION.to_bytes(4, "big") + len(places).to_bytes(4, "big")
    hasher.update(header)
    held = bytearray(header)
    for begin, end in _runs(table, places):
        stream.seek(begin)
        left = end - begin
        while left:
            piece = stream.read(min(left, PIECE_BYTES - len(held)))
            if not piece:
                raise Unavailable("a stored git pack is shorter than its table says", hint="Try again.")
            left -= len(piece)
            hasher.update(piece)
            held += piece
            if len(held) == PIECE_BYTES:
                yield bytes(held)
                held.clear()
    held += hasher.digest()
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
