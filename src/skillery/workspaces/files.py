"""Single files of a workspace, and all files as a tar archive, without a run."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, BinaryIO, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from skillery import audit
from skillery.backends import Identity, KeptFile, Storage
from skillery.contents.store import Content as StoredContent
from skillery.contents.store import Incoming
from skillery.database import Database, take_turns
from skillery.errors import InvalidParams, Unavailable, WorkspaceFileNotFound
from skillery.formats.wording import quoted
from skillery.identity.quotas import Quotas
from skillery.identity.usage import admit_to_workspaces, check_use, workspaces_used
from skillery.workspaces import rows, usage
from skillery.workspaces.manifests import Manifest, make_manifest
from skillery.workspaces.rows import WorkspaceRow
from skillery.workspaces.snapshots import Content, Saver, manifest_of, open_file

# -- Results of the methods for workspaces -----------------------------------------------------------------------------


class WorkspaceInfo(msgspec.Struct, frozen=True):
    """A workspace."""

    id: str
    name: str
    snapshot: Annotated[str, Meta(description="Digest of its current snapshot")]
    size_bytes: int
    files: int
    created_at: datetime
    expires_at: Annotated[datetime, Meta(description="Later by its ttl after each use")]
    run_id: Annotated[str | None, Meta(description="The run that writes it now")]
    parent: Annotated[str | None, Meta(description="The workspace, snapshot or run that it was forked from")]


class DeletedWorkspace(msgspec.Struct, frozen=True):
    """A deleted workspace."""

    id: str


class WorkspacePage(msgspec.Struct, frozen=True):
    """A page of workspaces."""

    workspaces: list[WorkspaceInfo]
    next_cursor: str | None


class WorkspaceFile(msgspec.Struct, frozen=True):
    """A file, an empty folder or a symbolic link of a workspace."""

    path: str
    kind: Literal["file", "folder", "link"]
    size_bytes: int
    sha256: str
    executable: bool


class Snapshot(msgspec.Struct, frozen=True):
    """A kept state of a workspace."""

    snapshot: str
    size_bytes: int
    files: int
    run_id: Annotated[str | None, Meta(description="The run that left it")]
    created_at: datetime


class DescribedWorkspace(msgspec.Struct, frozen=True):
    """A workspace with a page of its files and its snapshots, newest first."""

    workspace: WorkspaceInfo
    entries: list[WorkspaceFile]
    next_cursor: str | None
    snapshots: list[Snapshot]


class WorkspaceFileContent(msgspec.Struct, frozen=True):
    """The content of a file of a workspace."""

    content: str
    encoding: Literal["utf-8", "base64"]


def info(row: WorkspaceRow) -> WorkspaceInfo:
    """Return a workspace as the methods show it."""
    return WorkspaceInfo(
        row.id,
        row.name,
        row.snapshot,
        row.size_bytes,
        row.files,
        row.created_at,
        row.expires_at,
        row.run_id,
        row.parent,
    )


def shown(file: KeptFile) -> WorkspaceFile:
    """Return a manifest entry as describe_workspace shows it."""
    kind: Literal["file", "folder", "link"] = "file" if file.is_file else "link" if file.target else "folder"
    return WorkspaceFile(file.path, kind, file.size_bytes, file.sha256, file.mode == "100755")


MOST_FILES = 16_384
"""The maximum number of files, links and empty folders of a workspace. By default, a run has room for as many files."""
PIECE = 256 * 1024
FOLDER, LINK, EXECUTABLE = "040000", "120000", "100755"
"""Values of `KeptFile.mode`, in the form of Git. A plain file has "100644"."""


class NewFile(NamedTuple):
    """A file to write to a workspace. `chunks` are the bytes of its content."""

    path: str
    executable: bool
    chunks: AsyncIterator[bytes]


class WorkspaceFiles:
    """Reads and writes single files of workspaces without a run, with constant memory for any size."""

    def __init__(self, database: Database, storage: Storage, quotas: Quotas) -> None:
        self._database = database
        self._storage = storage
        self._quotas = quotas

    async def find(self, identity: Identity, workspace_id: str, path: str) -> KeptFile:
        """Return the entry of a file or link in the current snapshot.

        Raise WorkspaceNotFound, or WorkspaceFileNotFound for folders and unknown paths.
        """
        row, manifest = await self._current(identity, workspace_id)
        return found_file(manifest, row.id, path)

    def open(self, file: KeptFile) -> BinaryIO:
        """Return a seekable stream with the content of a file, or the target of a link. Blocking."""
        return open_file(self._database, self._storage, file)

    async def manifest(self, identity: Identity, workspace_id: str) -> Manifest:
        """Return the manifest of the current snapshot of a workspace. Raise WorkspaceNotFound."""
        return (await self._current(identity, workspace_id))[1]

    def archive(self, manifest: Manifest) -> Iterator[bytes]:
        """Yield the pieces of a tar archive (POSIX.1-2001) with all entries of a manifest. Blocking."""
        for file in manifest.files:
            yield _header(file)
            if file.is_file:
                with self.open(file) as stream:
                    while piece := stream.read(PIECE):
                        yield piece
                yield bytes(-file.size_bytes % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)

    async def write(self, identity: Identity, workspace_id: str, new: NewFile) -> WorkspaceInfo:
        """Add or replace a file, and return the workspace. If the file changes, the workspace gets a new snapshot.

        Raise WorkspaceNotFound, WorkspaceHeld if a run writes the workspace, QuotaExceeded, InvalidPath, or
        InvalidParams if the workspace has too many files.
        """
        row, manifest = await self._current(identity, workspace_id)
        usage.check_free(row)
        _with_file(manifest, _entry(new, "0" * 64, 0))  # refuse the path before the content is received
        replaced = manifest.find(new.path)
        stored = await self._receive(identity, row, new, replaced.size_bytes if replaced else 0)
        entry = _entry(new, stored.sha256, stored.size_bytes)
        # Repeat if another request has changed the workspace since its manifest was read.
        while True:
            row, manifest = await self._current(identity, workspace_id)
            saver = Saver(self._database, self._storage, row.family_id)
            saver.manifest = changed = _with_file(manifest, entry)
            content = await saver.store_manifest()
            work = partial(_replace, identity=identity, row=row, entry=entry, manifest=changed, content=content)
            changed_row = await self._database.write(partial(work, quotas=self._quotas))
            if changed_row is not None:
                return info(changed_row)

    async def _receive(
        self, identity: Identity, row: rows.WorkspaceRow, new: NewFile, freed_bytes: int
    ) -> StoredContent:
        """Store the content of a new file, and let the family of the workspace refer to it. Return its digest and size.

        `freed_bytes` is the size of the file with the same path, or 0. Raise QuotaExceeded if the workspaces of the
        identity become too large.
        """
        used = await self._database.read(partial(workspaces_used, identity=identity.name))
        quota = self._quotas.of(identity.name)

        def check_quota(size_bytes: int) -> None:
            check_use(quota, identity.name, used, more_bytes=size_bytes - freed_bytes)

        def refer_family(connection: Connection, stored: StoredContent) -> None:
            rows.refer(connection, row.family_id, [(stored.sha256, stored.size_bytes, None)])

        incoming = Incoming(self._database, self._storage, check_quota)
        try:
            async for chunk in new.chunks:
                await asyncio.to_thread(incoming.write, chunk)
            return await asyncio.to_thread(incoming.commit, refer_family)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(incoming.abort))
            raise

    async def _current(self, identity: Identity, workspace_id: str) -> tuple[rows.WorkspaceRow, Manifest]:
        """Return the row of a workspace and its current manifest. Raise WorkspaceNotFound."""
        find = partial(rows.find_workspace, identity=identity, workspace_id=workspace_id)
        row = await self._database.read(find)
        return row, await manifest_of(self._database, self._storage, row.snapshot_id)


def found_file(manifest: Manifest, workspace_id: str, path: str) -> KeptFile:
    """Return the entry of a file or link in a manifest. Raise WorkspaceFileNotFound for folders and unknown paths."""
    file = manifest.find(path)
    if file is None or not (file.is_file or file.target):
        raise WorkspaceFileNotFound(
            f"the workspace '{workspace_id}' has no file {quoted(path[:200])}",
            hint="describe_workspace lists its files.",
            path=path[:200],
        )
    return file


def _entry(new: NewFile, sha256: str, size_bytes: int) -> KeptFile:
    """Return the manifest entry of a new file, with the present time as its modification time."""
    mode: Literal["100644", "100755"] = "100755" if new.executable else "100644"
    now = int(datetime.now(UTC).timestamp()) * 1_000_000_000
    return KeptFile(new.path, mode, sha256, size_bytes, now)


def _with_file(manifest: Manifest, entry: KeptFile) -> Manifest:
    """Return the manifest with `entry`, in place of an entry with the same path. Folders above `entry` get no entry.

    A manifest lists only empty folders. Raise InvalidPath, or InvalidParams if there are too many files.
    """
    other_files = [
        file
        for file in manifest.files
        if file.path != entry.path and not (file.mode == FOLDER and entry.path.startswith(f"{file.path}/"))
    ]
    if len(other_files) >= MOST_FILES:
        raise InvalidParams(
            f"the workspace has {len(other_files)} files, which is its limit",
            hint="Delete files in a run.",
            param="path",
        )
    return make_manifest([*other_files, entry])


def _header(file: KeptFile) -> bytes:
    """Return the tar header of an entry."""
    entry = tarfile.TarInfo(file.path)
    entry.mtime = file.mtime_ns // 1_000_000_000
    entry.mode = 0o755 if file.mode in {EXECUTABLE, FOLDER} else 0o644
    if file.is_file:
        entry.size = file.size_bytes
    else:
        entry.type, entry.linkname = (tarfile.SYMTYPE, file.target) if file.mode == LINK else (tarfile.DIRTYPE, "")
    return entry.tobuf(tarfile.PAX_FORMAT)


# -- transactions ----------------------------------------------------------------------------------------------------


def _replace(
    connection: Connection,
    *,
    identity: Identity,
    row: rows.WorkspaceRow,
    entry: KeptFile,
    manifest: Manifest,
    content: Content,
    quotas: Quotas,
) -> rows.WorkspaceRow | None:
    """Make `manifest` the current snapshot, and return the changed row of the workspace.

    Return None if the current snapshot is not the one of `row` any more. `entry` is the written file, and `content` is
    the manifest in its stored form. Raise WorkspaceHeld, QuotaExceeded, or Unavailable if a sweep has deleted the
    contents.
    """
    current = rows.lock_workspace(connection, identity, row.id)
    usage.check_free(current)
    if current.snapshot_id != row.snapshot_id:
        return None
    if manifest.digest == current.snapshot:
        return current
    take_turns(connection, "workspaces of", identity.name)
    admit_to_workspaces(connection, quotas, identity.name, more_bytes=manifest.size_bytes - current.size_bytes)
    stored = {entry.sha256} if content.data is not None else {entry.sha256, content.sha256}
    if not rows.still_has(connection, row.family_id, stored):  # a sweep has run since the contents were stored
        raise Unavailable("storing this content took too long", hint="Nothing was stored. Try again.")
    rows.refer(connection, row.family_id, [content])
    files = sum(file.is_file for file in manifest.files)
    rows.move(connection, row.id, row.family_id, manifest.digest, content.sha256, manifest.size_bytes, files)
    changed = rows.find_workspace(connection, identity, row.id)
    audit.record(
        connection,
        identity,
        "write_workspace_file",
        row.id,
        before={"snapshot": current.snapshot},
        after={"snapshot": changed.snapshot, "path": entry.path},
    )
    return changed
