"""The lock of a workspace: one run at a time writes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, select, update

from skillery.database.tables import workspaces
from skillery.errors import WorkspaceHeld
from skillery.workspaces.rows import WorkspaceRow

HELD_MS = 1_000


def take(connection: Connection, workspace_id: str, run_id: str, server: str) -> str | None:
    """Lock the workspace for a run. Return None on success, or the id of the run that holds the lock."""
    taken = update(workspaces).where(workspaces.c.id == workspace_id, workspaces.c.run_id.is_(None))
    if connection.execute(taken.values(run_id=run_id, server=server)).rowcount:
        return None
    return connection.scalar(select(workspaces.c.run_id).where(workspaces.c.id == workspace_id)) or run_id


def release(connection: Connection, run_id: str, workspace_id: str) -> None:
    """Release the lock of the workspace, if this run holds it."""
    held = update(workspaces).where(workspaces.c.id == workspace_id, workspaces.c.run_id == run_id)
    connection.execute(held.values(run_id=None, server=None))


def check_free(row: WorkspaceRow) -> None:
    """Raise WorkspaceHeld if a run writes the workspace."""
    if row.run_id is not None:
        raise held(row.id, row.run_id)


def held(workspace_id: str, run_id: str) -> WorkspaceHeld:
    return WorkspaceHeld(
        f"the run {run_id} writes the workspace '{workspace_id}'",
        hint="Wait for it, or fork the workspace and use the fork: create_workspace with 'from'.",
        retry_after_ms=HELD_MS,
        workspace=workspace_id,
        run_id=run_id,
    )


def touch(connection: Connection, row: WorkspaceRow) -> None:
    """Record a use of the workspace, which delays its expiry."""
    until = datetime.now(UTC) + timedelta(seconds=row.ttl_seconds)
    connection.execute(update(workspaces).where(workspaces.c.id == row.id).values(expires_at=until))
