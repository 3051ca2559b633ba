"""Snapshots of workspaces: read, save and sweep them."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, delete, exists, not_, select

from skillery.backends import Identity, KeptFile, Storage
from skillery.contents.store import Incoming, inline_data, is_inline, open_content
from skillery.context.threads import JSON
from skillery.database import Database
from skillery.database.tables import (
    runs,
    workspace_contents,
    workspace_families,
    workspace_snapshots,
    workspaces,
)
from skillery.errors import ContentMissing, SnapshotNotFound
from skillery.identity.holds import number_of_holds, unheld_workspaces
from skillery.workspaces.manifests import EMPTY, FILES_AT_ONCE, Manifest, make_manifest, read_manifest
from skillery.workspaces.rows import (
    SnapshotRow,
    find_snapshot,
    find_snapshot_by_digest,
    find_workspace,
    known_contents,
    refer,
    remove,
)

# -- Read snapshots ----------------------------------------------------------------------------------------------------


PIECE = 1 << 20


def read_manifest_bytes(connection: Connection, storage: Storage, snapshot_id: int) -> bytes:
    """Return the manifest of a snapshot in its stored form, JSON."""
    with open_content(connection, storage, find_snapshot(connection, snapshot_id).manifest_sha256) as stream:
        return stream.read()


async def manifest_of(database: Database, storage: Storage, snapshot_id: int | None) -> Manifest:
    """Return the manifest of a snapshot, or the empty manifest if `snapshot_id` is None."""
    if snapshot_id is None:
        return EMPTY
    content = await database.read(partial(read_manifest_bytes, storage=storage, snapshot_id=snapshot_id))
    return await JSON.run(read_manifest, content)


def open_file(database: Database, storage: Storage, file: KeptFile) -> BinaryIO:
    """Return a seekable stream with the content of a file, or the target of a link. Blocking."""
    if not file.is_file:
        return io.BytesIO(file.target.encode())
    return database.read_now(lambda connection: open_content(connection, storage, file.sha256))


async def contents_of(database: Database, storage: Storage, manifest: Manifest) -> AsyncIterator[bytes]:
    """Yield the contents of all files of a manifest in pieces, in the order of the manifest."""
    files = [file for file in manifest.files if file.is_file]
    for start in range(0, len(files), FILES_AT_ONCE):
        batch = files[start : start + FILES_AT_ONCE]
        small = await database.read(partial(inline_data, digests=[file.sha256 for file in batch]))
        for joined in _joined(batch, small):
            if isinstance(joined, bytes):
                yield joined
                continue
            with await asyncio.to_thread(storage.open, joined.sha256) as stream:
                while piece := await asyncio.to_thread(stream.read, PIECE):
                    yield piece


def _joined(files: Sequence[KeptFile], small: dict[str, bytes]) -> Iterator[bytes | KeptFile]:
    """Yield bytes and large files, in the order of `files`. Contents of adjacent small files are joined.

    `small` are the contents from the database, by digest.
    """
    pending: list[bytes] = []
    for file in files:
        content = small.get(file.sha256)
        if content is not None:
            pending.append(content)
            continue
        yield b"".join(pending)
        pending = []
        yield file
    yield b"".join(pending)


# -- the snapshot that a fork starts from ------------------------------------------------------------------------------


def origin_of(connection: Connection, identity: Identity, origin: str) -> tuple[SnapshotRow | None, str]:
    """Return the snapshot that a fork starts from, and the text that names its origin.

    The snapshot is None for an empty workspace.
    """
    if origin.startswith("sha256:"):
        return find_snapshot_by_digest(connection, identity, origin), origin
    if origin.startswith("run_"):
        return _left_by(connection, identity, origin), origin
    row = find_workspace(connection, identity, origin)
    return find_snapshot(connection, row.snapshot_id) if row.snapshot_id is not None else None, row.id


class _Use(msgspec.Struct):
    id: str
    after: str


def _left_by(connection: Connection, identity: Identity, run_id: str) -> SnapshotRow:
    """Return the snapshot that was current at the end of a run. Raise SnapshotNotFound if there is none."""
    statement = select(runs.c.workspace_json).where(
        runs.c.id == run_id.replace("\0", ""), runs.c.identity == identity.name
    )
    text = connection.scalar(statement)
    if not text:
        raise SnapshotNotFound(
            f"the run '{run_id[:80]}' has left no snapshot",
            hint="Pass a run of yours that had a workspace, and that has ended.",
            run_id=run_id[:80],
        )
    use = msgspec.json.decode(text, type=_Use)
    return find_snapshot_by_digest(connection, identity, use.after, use.id)


# -- Sweeps: expired workspaces, and contents that no snapshot refers to -----------------------------------------------


AT_ONCE = 100
"""The maximum number of workspaces that one transaction deletes."""


def remove_expired(connection: Connection, ids: Sequence[str], holds: int) -> int:
    """Delete workspaces that are still expired, if there are as many `holds` as before. Return their number."""
    is_due = workspaces.c.id.in_(ids), *_is_expired(), number_of_holds() == holds
    still_expired = list(connection.scalars(select(workspaces.c.id).where(*is_due)))
    remove(connection, still_expired)
    return len(still_expired)


def expired(connection: Connection) -> Select[Any]:
    """Return the query for the ids of expired workspaces that no run writes and no hold keeps."""
    return select(workspaces.c.id).where(*_is_expired(), *unheld_workspaces(connection.dialect.name))


def _is_expired() -> tuple[ColumnElement[bool], ...]:
    return workspaces.c.expires_at <= datetime.now(UTC), workspaces.c.run_id.is_(None)


def forget_contents(database: Database, storage: Storage, is_stopped: Callable[[], bool]) -> None:
    """Let each family refer only to contents that one of its snapshots uses. Blocking.

    Stop early if `is_stopped` returns true.
    """
    for family in database.read_now(lambda connection: list(connection.scalars(select(workspace_families.c.id)))):
        if is_stopped():
            return
        _forget_of(database, storage, int(family))


def _forget_of(database: Database, storage: Storage, family: int) -> None:
    """Delete the references of one family to unused contents, and the family if it has no workspace.

    Delete nothing if the family changes during the sweep, or if a run writes to it.
    """
    before = database.read_now(lambda connection: _changes(connection, family))
    if before is None:
        return
    used: set[str] = set()
    for sha256 in database.read_now(lambda connection: _manifests(connection, family)):
        with database.read_now(partial(open_content, storage=storage, sha256=sha256)) as stream:
            used |= {sha256, *read_manifest(stream.read()).contents}

    def work(connection: Connection) -> None:
        locked = select(workspace_families.c.id).where(workspace_families.c.id == family).with_for_update()
        if connection.scalar(locked) is None or _changes(connection, family) != before:
            return
        of_family = workspace_contents.c.family_id == family
        unused = set(connection.scalars(select(workspace_contents.c.sha256).where(of_family))) - used
        for sha256 in sorted(unused):
            connection.execute(delete(workspace_contents).where(of_family, workspace_contents.c.sha256 == sha256))
        is_empty = not_(exists().where(workspaces.c.family_id == workspace_families.c.id))
        connection.execute(delete(workspace_families).where(workspace_families.c.id == family, is_empty))

    database.write_now(work)


def _changes(connection: Connection, family: int) -> int | None:
    """Return the change counter of the family, or None if a run writes to the family or if there is no family."""
    statement = select(workspace_families.c.changes).where(workspace_families.c.id == family)
    changes = connection.scalar(statement)
    writes = select(workspaces.c.id).where(workspaces.c.family_id == family, workspaces.c.run_id.is_not(None))
    return None if connection.execute(writes.limit(1)).first() is not None else changes


def _manifests(connection: Connection, family: int) -> list[str]:
    """Return the digests of the stored manifests of all snapshots of the family."""
    statement = (
        select(workspace_snapshots.c.manifest_sha256)
        .join(workspaces, workspaces.c.id == workspace_snapshots.c.workspace_id)
        .where(workspaces.c.family_id == family)
    )
    return list(dict.fromkeys(connection.scalars(statement)))


# -- Save a workspace: the contents of a run's files, and the manifest of the next snapshot ----------------------------


BATCH_BYTES = 4 << 20
"""The bytes of small files after which they are stored in one transaction."""


class Content(NamedTuple):
    """The digest and size of a content, and its bytes if the database stores them."""

    sha256: str
    size_bytes: int
    data: bytes | None


class Saver:
    """Stores the files of one run. The snapshot is saved only if `manifest` is set and `is_complete` is true.

    Each content is stored and referred to by the family in one transaction, so that no sweep deletes it before the
    snapshot is saved.
    """

    def __init__(self, database: Database, storage: Storage, family_id: int) -> None:
        self._database = database
        self._storage = storage
        self._family_id = family_id
        self._needed: list[KeptFile] = []
        self._batch: list[Content] = []
        self._batch_bytes = 0
        self.known: Collection[str] = ()
        """Digests of the contents that the run started with. The family refers to them."""
        self.manifest: Manifest | None = None
        """The files of the workspace at the end of the run."""
        self.left_out: Sequence[str] = ()
        """Paths of files that cannot be kept, such as pipes."""
        self.is_complete = False
        """True if all contents of the manifest are stored."""

    async def list_workspace(self, files: Sequence[KeptFile], left_out: Sequence[str]) -> Sequence[int]:
        """Implement `RunHost.list_workspace`: return the positions of files whose contents the server does not have."""
        self.manifest = await JSON.run(make_manifest, files)
        self.left_out = left_out
        known = set(self.known)
        if any(file.is_file and file.sha256 not in known for file in files):
            known |= await self._database.read(partial(known_contents, family_id=self._family_id))
        positions = []
        for position, file in enumerate(files):
            if file.is_file and file.sha256 not in known:
                known.add(file.sha256)
                positions.append(position)
        self._needed = [files[position] for position in positions]
        return positions

    async def keep_contents(self, pieces: AsyncIterator[bytes]) -> None:
        """Implement `RunHost.keep_contents`: store the contents of the files at these positions.

        Raise ContentMissing if a content does not have the listed digest.
        """
        unread = b""
        for file in self._needed:
            if is_inline(file.size_bytes):
                while len(unread) < file.size_bytes:
                    unread += await anext(pieces)
                content, unread = unread[: file.size_bytes], unread[file.size_bytes :]
                await self._add_small(file, content)
            else:
                unread = await self._add_large(file, unread, pieces)
        await self._flush()
        async for _ in pieces:
            raise ContentMissing("the run sent more content than it listed")
        self.is_complete = True

    async def _add_small(self, file: KeptFile, content: bytes) -> None:
        """Add a content to the batch, and store the batch if it has more than BATCH_BYTES bytes."""
        check_digest(file, hashlib.sha256(content).hexdigest())
        self._batch.append(Content(file.sha256, file.size_bytes, content))
        self._batch_bytes += file.size_bytes
        if self._batch_bytes > BATCH_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        """Store the batch of small contents in one transaction."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            await self._database.write(partial(refer, family_id=self._family_id, contents=batch))

    async def _add_large(self, file: KeptFile, rest: bytes, pieces: AsyncIterator[bytes]) -> bytes:
        """Store the content of a large file. Its bytes are `rest`, followed by `pieces`.

        Return the bytes after the end of the file in its last piece.
        """
        incoming, bytes_left = Incoming(self._database, self._storage), file.size_bytes
        try:
            while bytes_left:
                piece = rest or await anext(pieces)
                chunk, rest = piece[:bytes_left], piece[bytes_left:]
                bytes_left -= len(chunk)
                await asyncio.to_thread(incoming.write, chunk)
            await asyncio.to_thread(self._commit, incoming, file)
        except BaseException:
            await asyncio.to_thread(incoming.abort)
            raise
        return rest

    def _commit(self, incoming: Incoming, file: KeptFile) -> None:
        """Store a received content, and let the family refer to it. Raise ContentMissing if its digest is wrong.
        Blocking.
        """

        def refer_family(connection: Connection, content: object) -> None:
            check_digest(file, getattr(content, "sha256", ""))
            refer(connection, self._family_id, [(file.sha256, file.size_bytes, None)])

        incoming.commit(refer_family)

    async def store_manifest(self) -> Content:
        """Return the manifest as a content, for the transaction of the snapshot. Store it first if it is large."""
        assert self.manifest is not None
        content = self.manifest.content
        sha256 = hashlib.sha256(content).hexdigest()
        if is_inline(len(content)):
            return Content(sha256, len(content), content)
        file = KeptFile("", "100644", sha256, len(content))
        incoming = Incoming(self._database, self._storage)
        await asyncio.to_thread(incoming.write, content)
        await asyncio.to_thread(self._commit, incoming, file)
        return Content(sha256, len(content), None)


def check_digest(file: KeptFile, digest: str) -> None:
    """Raise ContentMissing if `digest` is not the listed one."""
    if digest != file.sha256:
        raise ContentMissing(f"the content of '{file.path}' is not the one that was listed")
