"""The git repositories of a server: find the state that a caller sees, and open its pack."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from functools import partial
from typing import BinaryIO, NamedTuple

from sqlalchemy import Connection

from skillery.backends import Identity, Storage
from skillery.contents.kept_contents import KeptPacks
from skillery.context.threads import Workers
from skillery.database import Database
from skillery.errors import RepositoryNotFound, RepositoryTooLarge, Unavailable
from skillery.exports.thin_plugins import ThinPlugins
from skillery.git_views.object_table import ObjectTable, read_table
from skillery.git_views.states import ALL, State, state_of_skill, state_of_skills
from skillery.registry.repositories import RepositoryVersion, any_purged, list_branches, skill_history

MOST_OBJECTS = 400_000
"""The maximum number of objects of all tables in memory. A table of 40,000 objects takes about 8 MB."""
_TURNS = 64
# Making a large pack takes seconds, so packs have separate threads.
_WORKERS = Workers("git packs", 2)


class RepositoryAddress(NamedTuple):
    """`/git/_all.git` (both texts are ""), `/git/{namespace}.git` or `/git/n/{skill}.git`."""

    namespace: str = ""
    skill: str = ""


class OpenRepository(NamedTuple):
    """The objects of one state. Close `stream` after use."""

    table: ObjectTable
    stream: BinaryIO


class Repositories:
    """Finds and opens repositories. Equal states share one pack, which is kept in the storage."""

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

        Raise RepositoryNotFound, always with the same text, if the identity sees no skill of it. Raise
        RepositoryTooLarge if it has too many skills or bytes.
        """
        return await asyncio.to_thread(self._database.read_now, partial(self._find, identity, address))

    async def open(self, state: State) -> OpenRepository:
        """Open the pack of a state. If no pack is kept, make it. Raise RepositoryTooLarge if it has too many files."""
        thread = await asyncio.to_thread(self._open_kept, state)
        return thread if thread is not None else await _WORKERS.run(self._make, state)

    def _find(self, identity: Identity, address: RepositoryAddress, connection: Connection) -> State:
        if address.skill:
            history = skill_history(connection, identity, address.skill, most=self._most_skills)
            state = state_of_skill(self._owner, address.skill, history) if history else None
        else:
            branches = list_branches(connection, identity, address.namespace, most=self._most_skills)
            is_there = branches or not address.namespace
            state = self._state_of(address.namespace or ALL, branches) if is_there else None
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

    def _state_of(self, name: str, branches: dict[str, list[RepositoryVersion]]) -> State:
        return state_of_skills(self._owner, name, branches, self._thin)

    def _make(self, state: State) -> OpenRepository:
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
