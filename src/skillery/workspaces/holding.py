"""Holding: one run at a time writes a workspace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, select, update

from skillery.database.tables import workspaces
from skillery.errors import WorkspaceHeld
from skillery.workspaces.rows import WorkspaceRow

HELD_MS = 1_000


def take(connection: Connection, workspace_id: str, run_id: str, server: str) -> str | None:
    """Let a run write the workspace. Return None, or the run that writes it now."""
    taken = update(workspaces).where(workspaces.c.id == workspace_id, workspaces.c.run_id.is_(None))
    if connection.execute(taken.values(run_id=run_id, server=server)).rowcount:
        return None
    return connection.scalar(select(workspaces.c.run_id).where(workspaces.c.id == workspace_id)) or run_id


def release(connection: Connection, run_id: str, workspace_id: str) -> None:
    """Let other runs write the workspace."""
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
    """Note that the workspace is used: it expires that much later."""
    until = datetime.now(UTC) + timedelta(seconds=row.ttl_seconds)
    connection.execute(update(workspaces).where(workspaces.c.id == row.id).values(expires_at=until))
