"""The workspace of a run: take it, fill the sandbox from it, save the files, and make them its current snapshot."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Connection, select, update

from skillery.backends import Identity, OpenContents, Storage, Workspace
from skillery.database import Database
from skillery.database.tables import workspaces
from skillery.errors import InvalidParams, QuotaExceeded, SkilleryError, WorkspaceHeld
from skillery.events import note_if_near
from skillery.identity.quotas import Quotas
from skillery.identity.usage import check_workspaces
from skillery.workspaces import rows
from skillery.workspaces.manifests import EMPTY, Manifest, RecentContents
from skillery.workspaces.rows import WorkspaceRow
from skillery.workspaces.snapshots import Content, Saver, contents_of, manifest_of

# -- The lock of a workspace: one run at a time writes it --------------------------------------------------------------


HELD_MS = 1_000
"""The milliseconds after which a caller may try again if the workspace is held."""


def take(connection: Connection, workspace_id: str, run_id: str, server: str) -> str | None:
    """Give the workspace to a run that writes it. Return None on success, or the id of the run that has it.

    `server` is the id of the server of the run.
    """
    taken = update(workspaces).where(workspaces.c.id == workspace_id, workspaces.c.run_id.is_(None))
    if connection.execute(taken.values(run_id=run_id, server=server)).rowcount:
        return None
    return connection.scalar(select(workspaces.c.run_id).where(workspaces.c.id == workspace_id)) or run_id


def release(connection: Connection, run_id: str, workspace_id: str) -> None:
    """Release the workspace if this run writes it."""
    own_workspace = update(workspaces).where(workspaces.c.id == workspace_id, workspaces.c.run_id == run_id)
    connection.execute(own_workspace.values(run_id=None, server=None))


def check_free(row: WorkspaceRow) -> None:
    """Raise WorkspaceHeld if a run writes the workspace."""
    if row.run_id is not None:
        raise held(row.id, row.run_id)


def held(workspace_id: str, run_id: str) -> WorkspaceHeld:
    """Return the error for a workspace that another run writes."""
    return WorkspaceHeld(
        f"the run {run_id} writes the workspace '{workspace_id}'",
        hint="Wait for it, or fork the workspace and use the fork: create_workspace with 'from'.",
        retry_after_ms=HELD_MS,
        workspace=workspace_id,
        run_id=run_id,
    )


def touch(connection: Connection, row: WorkspaceRow) -> None:
    """Delay the expiry of a workspace, because it was used now."""
    until = datetime.now(UTC) + timedelta(seconds=row.ttl_seconds)
    connection.execute(update(workspaces).where(workspaces.c.id == row.id).values(expires_at=until))


LOOK_SECONDS = 0.1
"""Seconds between two attempts to take a workspace."""
MOST_NAMED = 100
"""The maximum number of files that `WorkspaceUse.left_out` names."""


class Target(msgspec.Struct, frozen=True):
    """The workspace that a request names for its run."""

    workspace_id: str
    snapshot_id: int | None = None
    """The snapshot to start from, if the request names a snapshot. The run then saves nothing."""
    writes: bool = True
    """Whether the run saves its files."""


class WorkspaceUse(msgspec.Struct, frozen=True):
    """The use of a workspace by a run, as the result of the run shows it."""

    id: str
    before: Annotated[str, Meta(description="Digest of the snapshot that the run started from")]
    after: Annotated[str, Meta(description="Digest of the snapshot that the run left; as before if nothing was saved")]
    changed: Annotated[int, Meta(description="Files that were added, changed or removed")]
    left_out: Annotated[list[str], Meta(description="Files that cannot be kept, such as pipes; at most 100")]
    not_saved: Annotated[str | UnsetType, Meta(description="Why nothing was saved, although the run may write")] = UNSET


class HeldWorkspace:
    """The workspace of one run. If the run may write, no other run writes it until `finish` or `release` is called."""

    def __init__(
        self, target: Target, row: rows.WorkspaceRow, database: Database, storage: Storage, recent: RecentContents
    ) -> None:
        self.target = target
        self._row = row
        self._database = database
        self._storage = storage
        self._recent = recent
        self.saver = Saver(database, storage, row.family_id) if target.writes else None
        self._before: Manifest = EMPTY
        self._new: Content | None = None
        self._bytes_of_quota = (0, 0)
        """The bytes of all workspaces of the owner before the run saves its files, and their maximum."""
        self.use: WorkspaceUse | None = None
        """The use of the workspace as the result shows it. None until `settle` is called."""
        self.is_held = target.writes
        self._is_open = False
        self._opened: OpenContents | None = None

    async def open(self) -> Workspace:
        """Return the files for the sandbox."""
        requested = self.target.snapshot_id
        snapshot_id = requested if requested is not None else self._row.snapshot_id
        before = self._before = await manifest_of(self._database, self._storage, snapshot_id)
        if self.saver is not None:
            self.saver.known = before.contents
        self._is_open = True
        self._opened = await self._recent.open(self._row.family_id, before)
        contents = partial(contents_of, self._database, self._storage, before)
        return Workspace(before.files, contents, saves=self.target.writes, opened=self._opened)

    def close(self) -> None:
        """Close the contents in memory. Call this when no sandbox reads them any more."""
        opened, self._opened = self._opened, None
        if opened is not None:
            os.close(opened.descriptor)

    async def settle(self, quotas: Quotas, failure: str | None) -> None:
        """Decide what to save, and store the manifest, before the end of the run is recorded. Set `use`.

        `failure` is the type of the failure, or None if the run has not failed.
        """
        problem = await self._problem(quotas, failure)
        saver, before = self.saver, self._before.digest
        after, changed = before, 0
        if problem is None and saver is not None and saver.manifest is not None:
            after = saver.manifest.digest
            if after != before:
                self._new = await saver.store_manifest()
                changed = saver.manifest.changes_since(self._before)
        left_out = [str(name)[:300] for name in saver.left_out[:MOST_NAMED]] if saver else []
        self.use = WorkspaceUse(self.target.workspace_id, before, after, changed, left_out, problem or UNSET)

    async def _problem(self, quotas: Quotas, failure: str | None) -> str | None:
        """Return the reason why a run that may write saves nothing, or None."""
        saver = self.saver
        if saver is None:
            return None
        if not self._is_open:
            return "the code was not started"
        if failure == "SandboxError":
            return "the sandbox failed"
        if saver.manifest is None or not saver.is_complete:
            return "the files could not be read after the end of the run"
        more_bytes = saver.manifest.size_bytes - self._row.size_bytes
        check = partial(check_workspaces, quotas=quotas, identity=self._row.identity, more_bytes=more_bytes)
        try:
            _, used = await self._database.read(check)
            self._bytes_of_quota = used, quotas.of(self._row.identity).workspace_bytes
        except QuotaExceeded as error:
            return error.message
        return None

    def finish(self, connection: Connection, run_id: str) -> None:
        """Make the saved files, if any, the current snapshot, and release the workspace.

        Call this in the transaction that records the end of the run.
        """
        if not self.is_held:
            return
        saver, row = self.saver, self._row
        if self._new is not None and saver is not None and saver.manifest is not None:
            manifest, content = saver.manifest, self._new
            rows.refer(connection, row.family_id, [content])
            files = sum(file.is_file for file in manifest.files)
            (used, limit), more_bytes = self._bytes_of_quota, manifest.size_bytes - row.size_bytes
            note_if_near(connection, "workspace_bytes", used, more_bytes, limit, identity=row.identity)
            rows.move(
                connection, row.id, row.family_id, manifest.digest, content.sha256, manifest.size_bytes, files, run_id
            )
        else:
            touch(connection, row)
        release(connection, run_id, row.id)


class RunWorkspaces:
    """The workspaces of the runs of this server."""

    def __init__(
        self, database: Database, storage: Storage, quotas: Quotas, server: str, *, wait_seconds: float
    ) -> None:
        """`wait_seconds` is the maximum time for which a run waits for another one to release its workspace."""
        self._database = database
        self._storage = storage
        self.quotas = quotas
        self._server = server
        self._wait_seconds = wait_seconds
        self._recent = RecentContents(database, storage)

    async def find(self, identity: Identity, text: str, mode: str) -> Target | None:
        """Return the workspace or snapshot that the param `text` names, or None if `text` is empty.

        `mode` is `write` or `read`. Raise WorkspaceNotFound, SnapshotNotFound, or InvalidParams if `text` is neither an
        id nor a digest.
        """
        if not text:
            return None
        if text.startswith("sha256:"):
            snapshot = await self._database.read(partial(rows.find_snapshot_by_digest, identity=identity, digest=text))
            return Target(snapshot.workspace_id, snapshot.id, writes=False)
        if not text.startswith("ws_"):
            raise InvalidParams(
                f"'workspace' is '{text[:80]}', which is neither a workspace nor a snapshot",
                hint="Pass the id of a workspace (ws_…), or the digest of a snapshot (sha256:…).",
                param="workspace",
            )
        row = await self._database.read(partial(rows.find_workspace, identity=identity, workspace_id=text))
        return Target(row.id, writes=mode != "read")

    async def take(
        self, identity: Identity, target: Target, run_id: str, is_patient: Callable[[], bool]
    ) -> HeldWorkspace:
        """Return the workspace for a run. If the run may write, wait until no other run writes the workspace, and take
        it.

        Raise WorkspaceHeld if the wait is too long. While `is_patient` returns true, the wait has no limit.
        """
        deadline = time.monotonic() + self._wait_seconds
        find = partial(rows.find_workspace, identity=identity, workspace_id=target.workspace_id)
        while target.writes:
            holder = (await self._database.read(find)).run_id
            if holder is None:
                taking = partial(take, workspace_id=target.workspace_id, run_id=run_id, server=self._server)
                holder = await self._database.write(taking)
            if holder is None:
                break
            if not is_patient() and time.monotonic() > deadline:
                raise held(target.workspace_id, holder)
            await asyncio.sleep(LOOK_SECONDS)
        return HeldWorkspace(target, await self._database.read(find), self._database, self._storage, self._recent)

    async def release(self, run_id: str, target: Target) -> None:
        """Release the workspace of a run whose end could not be recorded."""
        work = partial(release, run_id=run_id, workspace_id=target.workspace_id)
        try:
            await self._database.write(work)
        except SkilleryError:  # a later close of lost runs releases it
            return
