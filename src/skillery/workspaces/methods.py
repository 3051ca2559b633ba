"""The methods of workspaces: create, fork, list, read, reset and delete."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from skillery import audit
from skillery.backends import Identity, KeptFile
from skillery.contents.blob_rows import find_blob
from skillery.database import Database
from skillery.database.registry import Registry
from skillery.errors import InvalidParams, WorkspaceFileTooLarge
from skillery.formats.paths import plain_path
from skillery.formats.wording import quoted
from skillery.identity.quotas import Quotas
from skillery.identity.usage import admit_to_workspaces
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.workspaces import rows, usage
from skillery.workspaces.files import (
    DeletedWorkspace,
    DescribedWorkspace,
    Snapshot,
    WorkspaceFileContent,
    WorkspaceFiles,
    WorkspaceInfo,
    WorkspacePage,
    info,
    shown,
)
from skillery.workspaces.manifests import Manifest, RunFile, make_manifest, parse_files
from skillery.workspaces.snapshots import Content, Saver, manifest_of, origin_of

MOST_READ = 1 << 20
"""The maximum size in bytes of a file that read_workspace_file returns."""
WorkspaceId = Annotated[Annotated[str, Meta(min_length=1, max_length=64)], about("The workspace's id")]
LIFETIME, LONGEST_LIFETIME = 7 * 86_400, 90 * 86_400
"""The default and the maximum time in seconds from the last use of a workspace until it expires."""
WORKSPACE_METHODS = (
    "create_workspace",
    "list_workspaces",
    "describe_workspace",
    "read_workspace_file",
    "reset_workspace",
    "delete_workspace",
)
# The properties of the tools run_code and execute_skill, as JSON Schema.
_RUN: Mapping[str, Any] = {
    "workspace": {
        "type": "string",
        "description": "Workspace whose files are in /workspace and stay for later runs (ws_…), or a snapshot of one",
    },
    "workspace_mode": {
        "type": "string",
        "enum": ["write", "read"],
        "description": "'read': save nothing, so that other runs may use the workspace",
        "default": "write",
    },
}


class Workspaces(NamedTuple):
    """The parts of the core that the methods for workspaces use. An identity sees only its own workspaces."""

    registry: Registry
    database: Database
    quotas: Quotas
    files: WorkspaceFiles


# -- create_workspace --------------------------------------------------------------------------------------------------


class CreateWorkspace(Params, frozen=True, kw_only=True):
    """Create a workspace: files that stay from run to run."""

    origin: Annotated[
        str, about("Workspace (ws_…) or snapshot (sha256:…) to fork, or a run (run_…) whose snapshot to fork")
    ] = ""
    name: Annotated[str, Meta(max_length=200), about("Any text, shown in lists")] = ""
    files: Annotated[list[RunFile], about("Blobs to copy into a new workspace")] = msgspec.field(default_factory=list)
    ttl: Annotated[
        int, Meta(ge=60, le=LONGEST_LIFETIME), about("Seconds after its last use until it expires", default=LIFETIME)
    ] = LIFETIME


async def create_workspace(workspaces: Workspaces, identity: Identity, params: CreateWorkspace) -> WorkspaceInfo:
    """Create a workspace: empty, with files, or as a fork. Raise WorkspaceNotFound, SnapshotNotFound or BlobNotFound,
    QuotaExceeded, or InvalidParams if the params contradict each other.
    """
    files = parse_files(params.files)
    if params.origin and files:
        raise InvalidParams(
            "'from' and 'files' exclude each other: a fork has the files of 'from'",
            hint="Pass 'files' to the first run.",
            param="files",
        )
    if "\0" in params.name:
        raise InvalidParams("'name' contains a NUL character", hint="Write a name.", param="name")
    row = await workspaces.registry.write(
        partial(
            insert_workspace,
            identity=identity,
            origin=params.origin,
            name=params.name,
            ttl=params.ttl,
            quotas=workspaces.quotas,
        )
    )
    if not files:
        return info(row)
    try:
        return info(await _fill(workspaces, identity, row, files))
    except BaseException:
        await workspaces.registry.write(partial(rows.remove, workspace_ids=[row.id]))
        raise


def insert_workspace(
    connection: Connection, *, identity: Identity, origin: str, name: str, ttl: int, quotas: Quotas
) -> rows.WorkspaceRow:
    snapshot, parent = origin_of(connection, identity, origin) if origin else (None, None)
    return rows.add_workspace(connection, identity, rows.New(name, ttl, parent, snapshot), quotas)


async def _fill(
    workspaces: Workspaces, identity: Identity, row: rows.WorkspaceRow, files: Sequence[RunFile]
) -> rows.WorkspaceRow:
    """Make blobs the first snapshot of a new workspace, and return the changed row."""
    entries = await workspaces.registry.read(partial(_kept_files, identity=identity, files=files))
    saver = Saver(workspaces.database, workspaces.registry.storage, row.family_id)
    saver.manifest = manifest = make_manifest(entries)
    content = await saver.store_manifest()
    work = partial(insert_files, identity=identity, row=row, files=files, manifest=manifest, content=content)
    return await workspaces.registry.write(partial(work, quotas=workspaces.quotas))


def _kept_files(connection: Connection, *, identity: Identity, files: Sequence[RunFile]) -> list[KeptFile]:
    """Return the manifest entries of blobs. Raise BlobNotFound if the identity has no such blob."""
    entries = []
    now = int(datetime.now(UTC).timestamp()) * 1_000_000_000
    for file in files:
        blob = find_blob(connection, identity=identity, blob_id=file.blob_id)
        mode: Literal["100644", "100755"] = "100755" if file.executable else "100644"
        entries.append(KeptFile(file.path, mode, blob.sha256, blob.size_bytes, now))
    return entries


def insert_files(
    connection: Connection,
    *,
    identity: Identity,
    row: rows.WorkspaceRow,
    files: Sequence[RunFile],
    manifest: Manifest,
    content: Content,
    quotas: Quotas,
) -> rows.WorkspaceRow:
    """Make `manifest` the first snapshot of the workspace, and return the changed row. `content` is the manifest in its
    stored form. Raise BlobNotFound if a blob was deleted, or QuotaExceeded.
    """
    # Raises if a blob was deleted: a sweep could then delete its content.
    _kept_files(connection, identity=identity, files=files)
    admit_to_workspaces(connection, quotas, identity.name, more_bytes=manifest.size_bytes)
    contents = [Content(sha256, size, None) for sha256, size in manifest.contents.items() if sha256 != content.sha256]
    rows.refer(connection, row.family_id, [content, *contents])
    rows.move(connection, row.id, row.family_id, manifest.digest, content.sha256, manifest.size_bytes, len(files))
    return rows.find_workspace(connection, identity, row.id)


# -- list_workspaces ---------------------------------------------------------------------------------------------------


class ListWorkspaces(Params, frozen=True, kw_only=True):
    """List your workspaces."""

    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_workspaces(registry: Registry, identity: Identity, params: ListWorkspaces) -> WorkspacePage:
    key, bound_to = registry.cursor_key, ("list_workspaces", identity.name)
    after = read_cursor(key, bound_to, params.cursor, 1)[0] if params.cursor else ""
    listed = await registry.read(partial(rows.list_rows, identity=identity, after=after, limit=params.limit + 1))
    page = [info(row) for row in listed[: params.limit]]
    next_cursor = make_cursor(key, bound_to, (page[-1].id,)) if len(listed) > len(page) else None
    return WorkspacePage(page, next_cursor)


# -- describe_workspace ------------------------------------------------------------------------------------------------


class DescribeWorkspace(Params, frozen=True, kw_only=True):
    """Describe a workspace, its files and its snapshots."""

    workspace: WorkspaceId
    path: Annotated[str, about("Only files at or below this path")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000), about("Maximum number of files", default=200)] = 200
    cursor: Cursor = ""


async def describe_workspace(
    workspaces: Workspaces, identity: Identity, params: DescribeWorkspace
) -> DescribedWorkspace:
    """Return a workspace with a page of files, and its snapshots. Raise WorkspaceNotFound or InvalidCursor."""
    registry, path = workspaces.registry, params.path
    key, bound_to = registry.cursor_key, ("describe_workspace", identity.name, params.workspace, path)
    after = read_cursor(key, bound_to, params.cursor, 1)[0].encode() if params.cursor else b""
    row, snapshots = await registry.read(partial(read_workspace, identity=identity, workspace_id=params.workspace))
    manifest = await manifest_of(workspaces.database, registry.storage, row.snapshot_id)
    below = f"{path.rstrip('/')}/" if path else ""
    files = [file for file in manifest.files if file.path.startswith(below) or file.path == path]
    remaining = [file for file in files if file.path.encode() > after]
    page = [shown(file) for file in remaining[: params.limit]]
    next_cursor = make_cursor(key, bound_to, (page[-1].path,)) if len(remaining) > len(page) else None
    return DescribedWorkspace(info(row), page, next_cursor, snapshots)


def read_workspace(
    connection: Connection, *, identity: Identity, workspace_id: str
) -> tuple[rows.WorkspaceRow, list[Snapshot]]:
    """Return the row of a workspace, and its snapshots, newest first. Raise WorkspaceNotFound."""
    row = rows.find_workspace(connection, identity, workspace_id)
    snapshots = rows.list_snapshots(connection, row.id)
    return row, [
        Snapshot(snapshot.digest, snapshot.size_bytes, snapshot.files, snapshot.run_id, snapshot.created_at)
        for snapshot in snapshots
    ]


# -- read_workspace_file -----------------------------------------------------------------------------------------------


class ReadWorkspaceFile(Params, frozen=True, kw_only=True):
    """Read a file of a workspace."""

    workspace: WorkspaceId
    path: Annotated[str, about("Path of the file (e.g., 'data/orders.csv')")]


async def read_workspace_file(
    workspaces: Workspaces, identity: Identity, params: ReadWorkspaceFile
) -> WorkspaceFileContent:
    """Return the content of a file as text, or in base64 if it is not UTF-8. Raise WorkspaceNotFound,
    WorkspaceFileNotFound, or WorkspaceFileTooLarge if the file has more than MOST_READ bytes.
    """
    path = plain_path(params.path)
    file = await workspaces.files.find(identity, params.workspace, path)
    if file.size_bytes > MOST_READ:
        raise WorkspaceFileTooLarge(
            f"{quoted(path[:200])} has {file.size_bytes} bytes, more than a read returns ({MOST_READ})",
            hint=f"Download it: GET /v1/workspaces/{params.workspace}/files/{path[:200]}",
            size_bytes=file.size_bytes,
            limit=MOST_READ,
        )
    with await asyncio.to_thread(workspaces.files.open, file) as stream:
        content = await asyncio.to_thread(stream.read)
    try:
        return WorkspaceFileContent(content.decode(), "utf-8")
    except UnicodeDecodeError:
        return WorkspaceFileContent(base64.b64encode(content).decode(), "base64")


# -- reset_workspace ---------------------------------------------------------------------------------------------------


class ResetWorkspace(Params, frozen=True, kw_only=True):
    """Return a workspace to an earlier snapshot: undo runs with bad results."""

    workspace: WorkspaceId
    snapshot: Annotated[str, about("Digest of the snapshot (e.g., 'before' of a run)")]


async def reset_workspace(registry: Registry, identity: Identity, params: ResetWorkspace) -> WorkspaceInfo:
    work = partial(_reset, identity=identity, workspace_id=params.workspace, snapshot=params.snapshot)
    return info(await registry.write(work))


def _reset(connection: Connection, *, identity: Identity, workspace_id: str, snapshot: str) -> rows.WorkspaceRow:
    """Make the snapshot with the digest `snapshot` the current one, and return the changed row. Raise
    WorkspaceNotFound, SnapshotNotFound, or WorkspaceHeld if a run writes the workspace.
    """
    row = rows.lock_workspace(connection, identity, workspace_id)
    usage.check_free(row)
    target = rows.find_snapshot_by_digest(connection, identity, snapshot, row.id)
    rows.make_current(connection, row.id, target)
    audit.record(
        connection,
        identity,
        "reset_workspace",
        row.id,
        before={"snapshot": row.snapshot},
        after={"snapshot": target.digest},
    )
    return rows.find_workspace(connection, identity, workspace_id)


# -- delete_workspace --------------------------------------------------------------------------------------------------


class DeleteWorkspace(Params, frozen=True, kw_only=True):
    """Delete a workspace and its snapshots."""

    workspace: WorkspaceId


async def delete_workspace(registry: Registry, identity: Identity, params: DeleteWorkspace) -> DeletedWorkspace:
    await registry.write(partial(_delete, identity=identity, workspace_id=params.workspace))
    return DeletedWorkspace(params.workspace)


def _delete(connection: Connection, *, identity: Identity, workspace_id: str) -> None:
    """Delete a workspace; its forks keep their files. Raise WorkspaceNotFound, or WorkspaceHeld by a run."""
    row = rows.lock_workspace(connection, identity, workspace_id)
    usage.check_free(row)
    rows.remove_or_hold(connection, row.id)
    audit.record(connection, identity, "delete_workspace", row.id, before={"snapshot": row.snapshot})


def with_workspaces(
    shown: Mapping[str, Mapping[str, Any]], methods: Collection[str]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the additional properties of MCP tools, by tool. If a model gets any method of WORKSPACE_METHODS, the
    tools run_code and execute_skill also show `workspace`.
    """
    if not any(name in methods for name in WORKSPACE_METHODS):
        return shown
    return {**shown, **{name: {**shown.get(name, {}), **_RUN} for name in ("run_code", "execute_skill")}}


METHODS = (
    Method(create_workspace, "run", audits="origin", once=True),
    Method(list_workspaces, "read", audits=""),
    Method(describe_workspace, "read", audits=""),
    Method(read_workspace_file, "read", audits=""),
    Method(reset_workspace, "run", audits="workspace"),
    Method(delete_workspace, "run", audits="workspace"),
)
