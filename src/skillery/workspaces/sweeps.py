"""Sweeps of workspaces: delete expired workspaces, and contents that no snapshot refers to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection, delete, exists, not_, select

from skillery.backends import Storage
from skillery.contents.store import open_content
from skillery.database import Database
from skillery.database.tables import (
    workspace_contents,
    workspace_families,
    workspace_snapshots,
    workspaces,
)
from skillery.workspaces.manifests import read_manifest
from skillery.workspaces.rows import remove

AT_ONCE = 100
"""The maximum number of workspaces that one transaction deletes."""


def remove_expired(connection: Connection) -> int:
    """Delete at most AT_ONCE expired workspaces that no run writes. Return their number."""
    due = select(workspaces.c.id).where(workspaces.c.expires_at <= datetime.now(UTC), workspaces.c.run_id.is_(None))
    expired = list(connection.scalars(due.limit(AT_ONCE)))
    remove(connection, expired)
    return len(expired)


def count_expired(connection: Connection) -> int:
    """Return the number of expired workspaces that no run writes."""
    due = select(workspaces.c.id).where(workspaces.c.expires_at <= datetime.now(UTC), workspaces.c.run_id.is_(None))
    return len(list(connection.scalars(due)))


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
