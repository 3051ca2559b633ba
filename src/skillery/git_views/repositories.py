"""The Git repositories of a server: find the state that a caller sees, and open its pack."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import BinaryIO, NamedTuple

import msgspec
from sqlalchemy import Connection

from skillery.backends import Identity, Storage
from skillery.contents.kept_contents import KeptPacks
from skillery.context.threads import Workers
from skillery.database import Database
from skillery.errors import RepositoryNotFound, RepositoryTooLarge, Unavailable
from skillery.exports.marketplaces import ThinPlugins
from skillery.git_views.states import ALL, State, state_of_skill, state_of_skills
from skillery.registry.repositories import any_purged, list_branches, skill_history

# -- The table of the objects in a kept pack. Requests are answered only from this table -------------------------------


COMMIT, TREE, BLOB = 1, 2, 3
"""The numbers of object types in packs."""
ID_BYTES = 20
MAGIC = b"skillery git view 1\n"
LENGTH_BYTES = 8


class StoredCommit(msgspec.Struct, frozen=True, array_like=True):
    """A commit in a table. `parents` are indexes in `StoredTable.commits`, and `objects` are places."""

    place: int
    parents: list[int]
    time: int
    objects: list[int]
    """The places of all objects of the commit: itself, its trees and its blobs."""


class StoredTable(msgspec.Struct, frozen=True, array_like=True):
    """The table at the end of a stored pack. The place of an object is its number in the pack."""

    ids: bytes
    """The ids of the objects, 20 bytes each, in the order of the pack."""
    kinds: bytes
    sizes: list[int]
    """The sizes of the uncompressed contents."""
    ends: list[int]
    """For each object, the position in the pack after its compressed entry. The first entry begins after MAGIC."""
    commits: list[StoredCommit]
    refs: dict[str, int]
    """The index in `commits` of each branch and tag."""
    head: str | None


class ObjectTable:
    """The objects of a state, with their types, sizes and positions in the stored pack."""

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
        """Return the place of the object with this id, or None if the state has no such object."""
        return self._places.get(bytes.fromhex(hex_id))

    def hex_id(self, place: int) -> str:
        return self._ids[place * ID_BYTES : (place + 1) * ID_BYTES].hex()

    def kind(self, place: int) -> int:
        return self._kinds[place]

    def size(self, place: int) -> int:
        return self._sizes[place]

    def commit_number(self, place: int) -> int | None:
        """Return the index in `commits` of the commit at this place, or None if the object is no commit."""
        return self._numbers.get(place)

    def commit_id(self, number: int) -> str:
        return self.hex_id(self.commits[number].place)

    def span(self, place: int) -> tuple[int, int]:
        """Return the positions of the start and the end of an object's compressed entry."""
        return (self._ends[place - 1] if place else len(MAGIC)), self._ends[place]

    def children(self, place: int, stream: BinaryIO) -> Iterator[int]:
        """Yield the places of the entries of the tree at `place`. Blocking."""
        content = read_object(stream, *self.span(place))
        at = 0
        while at < len(content):
            end = content.index(b"\0", at) + 1
            yield self._places[content[end : end + ID_BYTES]]
            at = end + ID_BYTES


def read_object(stream: BinaryIO, begin: int, end: int) -> bytes:
    """Return the content of the object between two positions of a stored pack."""
    stream.seek(begin)
    entry = stream.read(end - begin)
    header = next(number for number, byte in enumerate(entry) if byte < 0x80) + 1
    return zlib.decompress(entry[header:])


def read_table(stream: BinaryIO, size: int) -> ObjectTable:
    """Return the table at the end of a stored pack of `size` bytes. Raise Unavailable if it is damaged. Blocking."""
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
"""The maximum size of a piece, which fits into one line of Git's side band."""
VERSION = 2


def pack_pieces(table: ObjectTable, stream: BinaryIO, places: Sequence[int]) -> Iterator[bytes]:
    """Yield a pack with the objects at `places`, in pieces of at most PIECE_BYTES. Blocking."""
    hasher = hashlib.sha1(usedforsecurity=False)
    header = b"PACK" + VERSION.to_bytes(4, "big") + len(places).to_bytes(4, "big")
    hasher.update(header)
    pending = bytearray(header)
    for begin, end in _runs(table, places):
        stream.seek(begin)
        bytes_left = end - begin
        while bytes_left:
            piece = stream.read(min(bytes_left, PIECE_BYTES - len(pending)))
            if not piece:
                raise Unavailable("a stored git pack is shorter than its table says", hint="Try again.")
            bytes_left -= len(piece)
            hasher.update(piece)
            pending += piece
            if len(pending) == PIECE_BYTES:
                yield bytes(pending)
                pending.clear()
    pending += hasher.digest()
    for start in range(0, len(pending), PIECE_BYTES):
        yield bytes(pending[start : start + PIECE_BYTES])


def _runs(table: ObjectTable, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the positions (start, end) of the entries at `places`. Adjacent entries are joined."""
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


MOST_OBJECTS = 400_000
"""The maximum number of objects of all tables in memory. A table of 40,000 objects takes about 8 MB."""
_TURNS = 64
"""The number of locks for the making of packs. States with equal first digits of their digests share a lock."""
# Making a large pack takes seconds, so packs have separate threads.
_WORKERS = Workers("git packs", 2)


class RepositoryAddress(NamedTuple):
    """The repository that an address names.

    Both texts are "" for `/git/_all.git`. One is set for `/git/{namespace}.git` and `/git/n/{skill}.git`.
    """

    namespace: str = ""
    skill: str = ""


class OpenRepository(NamedTuple):
    """The table and the open pack of one state. Close `stream` after use."""

    table: ObjectTable
    stream: BinaryIO


class Repositories:
    """Finds and opens repositories. Equal states share one pack, which is in the storage."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        owner: str,
        most_skills: int,
        most_bytes: int,
        thin: ThinPlugins,
    ) -> None:
        """`owner` is the name of the server in catalogues."""
        self._database = database
        self._storage = storage
        self._kept = KeptPacks(database, storage)
        self._owner = owner
        self._most_skills = most_skills
        self._most_bytes = most_bytes
        self._thin = thin
        self._tables: OrderedDict[str, ObjectTable] = OrderedDict()
        self._lock = threading.Lock()
        # Callers that need the same pack at the same time wait for one of them to make it.
        self._turns = [threading.Lock() for _ in range(_TURNS)]

    async def find(self, identity: Identity, address: RepositoryAddress) -> State:
        """Return the state of a repository that the identity sees now.

        Raise RepositoryNotFound, always with the same text, if the identity sees no skill of the repository. Raise
        RepositoryTooLarge if the repository has too many skills or bytes.
        """
        return await asyncio.to_thread(self._database.read_now, partial(self._find, identity, address))

    async def open(self, state: State) -> OpenRepository:
        """Open the pack of a state. If the storage has no such pack, make it.

        Raise RepositoryTooLarge if the repository has too many files.
        """
        opened = await asyncio.to_thread(self._open_kept, state)
        return opened if opened is not None else await _WORKERS.run(self._make, state)

    def _find(self, identity: Identity, address: RepositoryAddress, connection: Connection) -> State:
        """Return the state of a repository, for one database connection. Raise the errors of `find`."""
        if address.skill:
            history = skill_history(connection, identity, address.skill, most=self._most_skills)
            state = state_of_skill(self._owner, address.skill, history) if history else None
        else:
            branches = list_branches(connection, identity, address.namespace, most=self._most_skills)
            is_there = branches or not address.namespace
            name = address.namespace or ALL
            state = state_of_skills(self._owner, name, branches, self._thin) if is_there else None
        if state is None:
            raise RepositoryNotFound(
                "this repository does not exist, or you may see none of its skills",
                hint="Addresses are /git/_all.git, /git/{namespace}.git and /git/n/{skill}.git.",
            )
        size = sum(version.size_bytes for version in state.versions())
        if size > self._most_bytes:
            raise RepositoryTooLarge(
                f"the files have {size} bytes, and a repository of this server has at most {self._most_bytes} "
                "(the setting git_max_mb)",
                hint="Clone the repository of a namespace, /git/{namespace}.git, or of one skill, /git/n/{skill}.git.",
            )
        return state

    def _make(self, state: State) -> OpenRepository:
        """Make and store the pack of a state, unless another caller has made it in the meantime. Return it open."""
        with self._turns[int(state.digest[:4], 16) % _TURNS]:
            if kept := self._open_kept(state):
                return kept
            versions = [version.version_id for version in state.versions()]
            # dulwich takes a tenth of a second to import, and servers without clients of git never need it.
            from skillery.git_views.building import Builder

            builder = Builder(self._database, self._storage, state)
            self._kept.keep(
                state.digest, state.repository, builder.pieces(), lambda connection: any_purged(connection, versions)
            )
            if kept := self._open_kept(state):
                return kept
        raise Unavailable("the git pack of this repository is not stored", hint="Try again.")

    def _open_kept(self, state: State) -> OpenRepository | None:
        """Return the open pack of a state, or None if it is not stored."""
        kept = self._kept.open(state.digest)
        if kept is None:
            return None
        stream, size = kept
        try:
            return OpenRepository(self._table(state.digest, stream, size), stream)
        except BaseException:
            stream.close()
            raise

    def _table(self, digest: str, stream: BinaryIO, size: int) -> ObjectTable:
        """Return the table of a stored pack, from memory or from the end of the pack."""
        with self._lock:
            if digest in self._tables:
                self._tables.move_to_end(digest)
                return self._tables[digest]
        table = read_table(stream, size)
        with self._lock:
            self._tables[digest] = table
            while sum(map(len, self._tables.values())) > MOST_OBJECTS and len(self._tables) > 1:
                self._tables.popitem(last=False)
        return table
