"""The methods of workspaces: create, fork, list, read, reset and delete."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from skillery import audit
from skillery.backends import Identity, KeptFile, Storage
from skillery.contents.blob_rows import find_blob
from skillery.database import Database
from skillery.database.tables import runs
from skillery.errors import InvalidParams, SnapshotNotFound, WorkspaceFileTooLarge
from skillery.formats.wording import quoted
from skillery.identity.quotas import Quotas
from skillery.identity.workspace_quotas import admit_to_workspaces
from skillery.workspaces import locks, rows
from skillery.workspaces.files import WorkspaceFiles
from skillery.workspaces.manifests import Manifest, make_manifest
from skillery.workspaces.results import (
    DeletedWorkspace,
    Snapshot,
    WorkspaceFile,
    WorkspaceFileContent,
    WorkspaceInfo,
    info,
    shown,
)
from skillery.workspaces.saver import Content, Saver
from skillery.workspaces.snapshots import manifest_of

MOST_READ = 1 << 20


class GivenFile(NamedTuple):
    """A blob that becomes a file of a new workspace."""

    path: str
    blob_id: str
    executable: bool


class Workspaces:
    """The workspaces of this registry. An identity sees only its own."""

    def __init__(self, database: Database, storage: Storage, quotas: Quotas) -> None:
        self._database = database
        self._storage = storage
        self._quotas = quotas
        self.files = WorkspaceFiles(database, storage, quotas)

    async def create(
        self, identity: Identity, *, origin: str, name: str, files: Sequence[GivenFile], ttl_seconds: int
    ) -> WorkspaceInfo:
        """Create a workspace: empty, from files, or as a fork. Raise NotFound, QuotaExceeded or InvalidParams."""
        if origin and files:
            raise InvalidParams(
                "'from' and 'files' exclude each other: a fork has the files of 'from'",
                hint="Pass 'files' to the first run.",
                param="files",
            )
        if "\0" in name:
            raise InvalidParams("'name' contains a NUL character", hint="Write a name.", param="name")
        row = await self._database.write(
            partial(_create, identity=identity, origin=origin, name=name, ttl=ttl_seconds, quotas=self._quotas)
        )
        if not files:
            return info(row)
        try:
            return info(await self._fill(identity, row, files))
        except BaseException:
            await self._database.write(partial(rows.remove, workspace_ids=[row.id]))
            raise

    async def _fill(self, identity: Identity, row: rows.WorkspaceRow, files: Sequence[GivenFile]) -> rows.WorkspaceRow:
        kept = await self._database.read(partial(_kept_files, identity=identity, files=files))
        saver = Saver(self._database, self._storage, row.family_id)
        saver.manifest = manifest = make_manifest(kept)
        content = await saver.store_manifest()
        work = partial(_fill, identity=identity, row=row, files=files, manifest=manifest, content=content)
        return await self._database.write(partial(work, quotas=self._quotas))

    async def list_workspaces(self, identity: Identity, after: str, limit: int) -> list[WorkspaceInfo]:
        """Return up to `limit` workspaces of the identity whose ids follow `after`, sorted by id."""
        return [
            info(row)
            for row in await self._database.read(partial(rows.list_rows, identity=identity, after=after, limit=limit))
        ]

    async def describe(
        self, identity: Identity, workspace_id: str, path: str, after: str, limit: int
    ) -> tuple[WorkspaceInfo, list[WorkspaceFile], list[Snapshot]]:
        """Return a workspace, up to `limit` of its entries, and its snapshots.

        The entries are those at `path` and below, after the path `after`.
        """
        row, snapshots = await self._database.read(partial(_described, identity=identity, workspace_id=workspace_id))
        manifest = await manifest_of(self._database, self._storage, row.snapshot_id)
        below = f"{path.rstrip('/')}/" if path else ""
        found = [file for file in manifest.files if file.path.startswith(below) or file.path == path]
        first = after.encode()
        return info(row), [shown(file) for file in found if not after or file.path.encode() > first][:limit], snapshots

    async def read_file(self, identity: Identity, workspace_id: str, path: str) -> WorkspaceFileContent:
        """Return the content of a file.

        Raise WorkspaceNotFound, WorkspaceFileNotFound, or WorkspaceFileTooLarge if the file is larger than 1 MiB.
        """
        file = await self.files.find(identity, workspace_id, path)
        if file.size_bytes > MOST_READ:
            raise WorkspaceFileTooLarge(
                f"{quoted(path[:200])} has {file.size_bytes} bytes, more than a read returns ({MOST_READ})",
                hint=f"Download it: GET /v1/workspaces/{workspace_id}/files/{path[:200]}",
                size_bytes=file.size_bytes,
                limit=MOST_READ,
            )
        with await asyncio.to_thread(self.files.open, file) as stream:
            content = await asyncio.to_thread(stream.read)
        try:
            return WorkspaceFileContent(content.decode(), "utf-8")
        except UnicodeDecodeError:
            return WorkspaceFileContent(base64.b64encode(content).decode(), "base64")

    async def reset(self, identity: Identity, workspace_id: str, snapshot: str) -> WorkspaceInfo:
        """Make an earlier snapshot the current one.

        Raise WorkspaceNotFound, SnapshotNotFound, or WorkspaceHeld if a run writes the workspace.
        """
        work = partial(_reset, identity=identity, workspace_id=workspace_id, snapshot=snapshot)
        return info(await self._database.write(work))

    async def delete(self, identity: Identity, workspace_id: str) -> DeletedWorkspace:
        """Delete a workspace. Its forks keep their files.

        Raise WorkspaceNotFound, or WorkspaceHeld if a run writes the workspace.
        """
        await self._database.write(partial(_delete, identity=identity, workspace_id=workspace_id))
        return DeletedWorkspace(workspace_id)


# -- transactions ----------------------------------------------------------------------------------------------------


def _create(
    connection: Connection, *, identity: Identity, origin: str, name: str, ttl: int, quotas: Quotas
) -> rows.WorkspaceRow:
    snapshot, parent = _origin(connection, identity, origin) if origin else (None, None)
    return rows.add_workspace(connection, identity, rows.New(name, ttl, parent, snapshot), quotas)


def _origin(connection: Connection, identity: Identity, origin: str) -> tuple[rows.SnapshotRow | None, str]:
    """Return the snapshot that a fork starts from, and the text that names its origin.

    The snapshot is None for an empty workspace.
    """
    if origin.startswith("sha256:"):
        return rows.find_snapshot_by_digest(connection, identity, origin), origin
    if origin.startswith("run_"):
        return _left_by(connection, identity, origin), origin
    row = rows.find_workspace(connection, identity, origin)
    return rows.find_snapshot(connection, row.snapshot_id) if row.snapshot_id is not None else None, row.id


class _Use(msgspec.Struct):
    id: str
    after: str


def _left_by(connection: Connection, identity: Identity, run_id: str) -> rows.SnapshotRow:
    """Return the snapshot that was current at the end of a run. Raise SnapshotNotFound if there is none."""
    found = select(runs.c.workspace_json).where(runs.c.id == run_id.replace("\0", ""), runs.c.identity == identity.name)
    text = connection.scalar(found)
    if not text:
        raise SnapshotNotFound(
            f"the run '{run_id[:80]}' has left no snapshot",
            hint="Pass a run of yours that had a workspace, and that has ended.",
            run_id=run_id[:80],
        )
    use = msgspec.json.decode(text, type=_Use)
    return rows.find_snapshot_by_digest(connection, identity, use.after, use.id)


def _kept_files(connection: Connection, *, identity: Identity, files: Sequence[GivenFile]) -> list[KeptFile]:
    kept = []
    now = int(datetime.now(UTC).timestamp()) * 1_000_000_000
    for file in files:
        blob = find_blob(connection, identity=identity, blob_id=file.blob_id)
        mode: Literal["100644", "100755"] = "100755" if file.executable else "100644"
        kept.append(KeptFile(file.path, mode, blob.sha256, blob.size_bytes, now))
    return kept


def _fill(
    connection: Connection,
    *,
    identity: Identity,
    row: rows.WorkspaceRow,
    files: Sequence[GivenFile],
    manifest: Manifest,
    content: Content,
    quotas: Quotas,
) -> rows.WorkspaceRow:
    _kept_files(connection, identity=identity, files=files)  # the blobs are still there, and so are their contents
    admit_to_workspaces(connection, quotas, identity.name, more_bytes=manifest.size_bytes)
    contents: list[Content] = [(sha256, size, None) for sha256, size in manifest.contents.items()]
    rows.refer(connection, row.family_id, [content, *(one for one in contents if one[0] != content[0])])
    rows.move(connection, row.id, row.family_id, manifest.digest, content[0], manifest.size_bytes, len(files), None)
    return rows.find_workspace(connection, identity, row.id)


def _described(
    connection: Connection, *, identity: Identity, workspace_id: str
) -> tuple[rows.WorkspaceRow, list[Snapshot]]:
    row = rows.find_workspace(connection, identity, workspace_id)
    found = rows.list_snapshots(connection, row.id)
    return row, [Snapshot(one.digest, one.size_bytes, one.files, one.run_id, one.created_at) for one in found]


def _reset(connection: Connection, *, identity: Identity, workspace_id: str, snapshot: str) -> rows.WorkspaceRow:
    row = rows.lock_workspace(connection, identity, workspace_id)
    locks.check_free(row)
    wanted = rows.find_snapshot_by_digest(connection, identity, snapshot, row.id)
    rows.make_current(connection, row.id, wanted)
    audit.record(
        connection,
        identity,
        "reset_workspace",
        row.id,
        before={"snapshot": row.snapshot},
        after={"snapshot": wanted.digest},
    )
    return rows.find_workspace(connection, identity, workspace_id)


def _delete(connection: Connection, *, identity: Identity, workspace_id: str) -> None:
    row = rows.lock_workspace(connection, identity, workspace_id)
    locks.check_free(row)
    rows.remove(connection, [row.id])
    audit.record(connection, identity, "delete_workspace", row.id, before={"snapshot": row.snapshot})
