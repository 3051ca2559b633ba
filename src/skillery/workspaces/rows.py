"""The rows of workspaces and snapshots: owners, locks, current snapshots, and the contents of each family."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, insert, not_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.backends import Identity
from skillery.contents.store import record
from skillery.database import Change, in_utc, select_row, take_turns
from skillery.database.tables import (
    workspace_contents,
    workspace_families,
    workspace_snapshots,
    workspaces,
)
from skillery.errors import SnapshotNotFound, WorkspaceNotFound
from skillery.identity.holds import unheld_snapshots, unheld_workspaces
from skillery.identity.quotas import Quotas
from skillery.identity.usage import admit_to_workspaces
from skillery.workspaces.manifests import EMPTY

SNAPSHOTS = 20
"""The number of newest snapshots that each workspace keeps."""

_REFER = Change(
    {
        dialect.__name__.rpartition(".")[2]: dialect.insert(workspace_contents).on_conflict_do_nothing(
            index_elements=["family_id", "sha256"]
        )
        for dialect in (sqlite, postgresql)
    },
    ("family_id", "sha256"),
)


class WorkspaceRow(NamedTuple):
    """A row of `workspaces`. `snapshot` is the digest of the current snapshot, `run_id` the run that writes it."""

    id: str
    family_id: int
    identity: str
    name: str
    parent: str | None
    snapshot_id: int | None
    snapshot: str
    size_bytes: int
    files: int
    created_at: datetime
    ttl_seconds: int
    expires_at: datetime
    run_id: str | None


class SnapshotRow(NamedTuple):
    """A row of `workspace_snapshots`. `run_id` is the run that saved the snapshot."""

    id: int
    workspace_id: str
    digest: str
    manifest_sha256: str
    size_bytes: int
    files: int
    run_id: str | None
    created_at: datetime


_WORKSPACE = select_row(WorkspaceRow, workspaces)
_SNAPSHOT = select_row(SnapshotRow, workspace_snapshots)


def _row(fields: Any) -> WorkspaceRow:
    """Return the row with its times in UTC."""
    row = WorkspaceRow(*fields)
    return row._replace(created_at=in_utc(row.created_at), expires_at=in_utc(row.expires_at))


def find_workspace(connection: Connection, identity: Identity, workspace_id: str) -> WorkspaceRow:
    """Return a workspace of the identity.

    Raise WorkspaceNotFound if the identity has no such workspace or if it has expired.
    """
    statement = _WORKSPACE.where(
        workspaces.c.id == workspace_id.replace("\0", ""),
        workspaces.c.identity == identity.name,
        workspaces.c.expires_at > datetime.now(UTC),
    )
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise WorkspaceNotFound(
            f"there is no workspace '{workspace_id[:64]}'",
            hint="The workspace may have expired. list_workspaces shows your workspaces.",
            workspace=workspace_id[:64],
        )
    return _row(row)


def lock_workspace(connection: Connection, identity: Identity, workspace_id: str) -> WorkspaceRow:
    """Lock the row of a workspace until the transaction ends. Return the row. Raise WorkspaceNotFound.

    While the row is locked, no run can begin to write the workspace (`usage.take`).
    """
    # SQLite has one writer at a time and no FOR UPDATE.
    is_workspace = workspaces.c.id == workspace_id.replace("\0", "")
    connection.execute(select(workspaces.c.id).where(is_workspace).with_for_update())
    return find_workspace(connection, identity, workspace_id)


def list_rows(connection: Connection, identity: Identity, after: str, limit: int) -> list[WorkspaceRow]:
    """Return at most `limit` workspaces of the identity with an id above `after`, in the order of their ids."""
    statement = (
        _WORKSPACE.where(
            workspaces.c.identity == identity.name,
            workspaces.c.id > after,
            workspaces.c.expires_at > datetime.now(UTC),
        )
        .order_by(workspaces.c.id)
        .limit(limit)
    )
    return [_row(row) for row in connection.execute(statement)]


def find_snapshot(connection: Connection, snapshot_id: int) -> SnapshotRow:
    return SnapshotRow(*connection.execute(_SNAPSHOT.where(workspace_snapshots.c.id == snapshot_id)).one())


def find_snapshot_by_digest(
    connection: Connection, identity: Identity, digest: str, workspace_id: str = ""
) -> SnapshotRow:
    """Return the newest snapshot with this digest. Raise SnapshotNotFound if there is none.

    The snapshot is one of all workspaces of the identity, or of the given workspace.
    """
    statement = (
        _SNAPSHOT.join(workspaces, workspaces.c.id == workspace_snapshots.c.workspace_id)
        .where(
            workspaces.c.identity == identity.name,
            workspaces.c.expires_at > datetime.now(UTC),
            workspace_snapshots.c.digest == digest.replace("\0", ""),
            _is_recent(),
        )
        .order_by(workspace_snapshots.c.id.desc())
        .limit(1)
    )
    if workspace_id:
        statement = statement.where(workspace_snapshots.c.workspace_id == workspace_id)
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise SnapshotNotFound(
            f"there is no snapshot '{digest[:80]}'" + (f" of '{workspace_id}'" if workspace_id else ""),
            hint=f"A workspace keeps its last {SNAPSHOTS} snapshots, until it expires.",
            snapshot=digest[:80],
        )
    return SnapshotRow(*row)


def list_snapshots(connection: Connection, workspace_id: str) -> list[SnapshotRow]:
    """Return the newest SNAPSHOTS of a workspace, newest first."""
    of_workspace = _SNAPSHOT.where(workspace_snapshots.c.workspace_id == workspace_id)
    newest = of_workspace.order_by(workspace_snapshots.c.id.desc()).limit(SNAPSHOTS)
    return [SnapshotRow(*row) for row in connection.execute(newest)]


# -- changes ---------------------------------------------------------------------------------------------------------


class New(NamedTuple):
    """The values of a new workspace. `parent` is the text that names its origin."""

    name: str
    ttl_seconds: int
    parent: str | None = None
    origin: SnapshotRow | None = None
    """The snapshot that the new workspace starts with."""


def add_workspace(connection: Connection, identity: Identity, new: New, quotas: Quotas) -> WorkspaceRow:
    """Insert a workspace, and return its row. Raise QuotaExceeded if a quota of the identity is reached.

    A fork refers to the contents of its origin, so it needs only a few rows.
    """
    size = new.origin.size_bytes if new.origin else 0
    take_turns(connection, "workspaces of", identity.name)
    admit_to_workspaces(connection, quotas, identity.name, more=1, more_bytes=size)
    now, workspace_id = datetime.now(UTC), f"ws_{secrets.token_hex(12)}"
    family = _family_of(connection, new.origin)
    values = {
        "id": workspace_id,
        "family_id": family,
        "identity": identity.name,
        "name": new.name,
        "parent": new.parent,
        "snapshot": EMPTY.digest,
        "size_bytes": 0,
        "files": 0,
        "created_at": now,
        "ttl_seconds": new.ttl_seconds,
        "expires_at": now + timedelta(seconds=new.ttl_seconds),
    }
    connection.execute(insert(workspaces).values(values))
    if new.origin is not None:
        _copy_snapshot(connection, workspace_id, family, new.origin)
    audit.record(connection, identity, "create_workspace", workspace_id, after={"from": new.parent})
    return find_workspace(connection, identity, workspace_id)


def _copy_snapshot(connection: Connection, workspace_id: str, family_id: int, origin: SnapshotRow) -> None:
    """Make a copy of the snapshot `origin` the current one of a new workspace in the family of `origin`."""
    _note_change(connection, family_id)
    values = {**origin._asdict(), "workspace_id": workspace_id, "run_id": None, "created_at": datetime.now(UTC)}
    del values["id"]
    added = insert(workspace_snapshots).values(values).returning(workspace_snapshots.c.id)
    totals = {"snapshot": origin.digest, "size_bytes": origin.size_bytes, "files": origin.files}
    changed = update(workspaces).where(workspaces.c.id == workspace_id)
    snapshot_id = connection.execute(added).scalar_one()
    connection.execute(changed.values(snapshot_id=snapshot_id, **totals))


def _note_change(connection: Connection, family_id: int) -> None:
    """Increment the change counter of a family, so that a sweep in progress deletes no contents of the family."""
    changed = update(workspace_families).where(workspace_families.c.id == family_id)
    connection.execute(changed.values(changes=workspace_families.c.changes + 1))


def _family_of(connection: Connection, origin: SnapshotRow | None) -> int:
    """Return the id of the family of `origin`, or of a new family if `origin` is None."""
    if origin is None:
        new_family = insert(workspace_families).values(changes=0).returning(workspace_families.c.id)
        return int(connection.execute(new_family).scalar_one())
    family = select(workspaces.c.family_id).where(workspaces.c.id == origin.workspace_id)
    return int(connection.execute(family).scalar_one())


def refer(connection: Connection, family_id: int, contents: Iterable[tuple[str, int, bytes | None]]) -> None:
    """Record contents, and let the family refer to them. Each content is its digest, size, and bytes if stored
    inline.
    """
    recorded = list(contents)
    if recorded:
        record(connection, recorded)
        digests = sorted({sha256 for sha256, _, _ in recorded})
        _REFER.run_many(connection, [{"family_id": family_id, "sha256": sha256} for sha256 in digests])


def known_contents(connection: Connection, family_id: int) -> set[str]:
    """Return the digests of the contents that the family refers to."""
    statement = select(workspace_contents.c.sha256).where(workspace_contents.c.family_id == family_id)
    return set(connection.scalars(statement))


def still_has(connection: Connection, family_id: int, digests: set[str]) -> bool:
    """Return whether the family refers to all these contents. Lock the family, so that no sweep deletes them.

    The lock ends with the transaction.
    """
    connection.execute(select(workspace_families.c.id).where(workspace_families.c.id == family_id).with_for_update())
    of_family = workspace_contents.c.family_id == family_id
    statement = select(workspace_contents.c.sha256).where(of_family, workspace_contents.c.sha256.in_(digests))
    return digests <= set(connection.scalars(statement))


def move(
    connection: Connection,
    workspace_id: str,
    family_id: int,
    digest: str,
    manifest_sha256: str,
    size_bytes: int,
    files: int,
    run_id: str | None = None,
) -> None:
    """Insert a snapshot, make it the current one, and delete all but the newest SNAPSHOTS of the workspace, and those
    that a hold keeps.

    The family must refer to its contents already. `run_id` is the run that saved it, or None.
    """
    now = datetime.now(UTC)
    _note_change(connection, family_id)
    values: dict[str, Any] = {
        "workspace_id": workspace_id,
        "digest": digest,
        "manifest_sha256": manifest_sha256,
        "size_bytes": size_bytes,
        "files": files,
        "run_id": run_id,
        "created_at": now,
    }
    added = insert(workspace_snapshots).values(values).returning(workspace_snapshots.c.id)
    snapshot_id = connection.execute(added).scalar_one()
    make_current(connection, workspace_id, SnapshotRow(snapshot_id, **values))
    of_workspace = workspace_snapshots.c.workspace_id == workspace_id
    old = of_workspace, not_(_is_recent()), *unheld_snapshots(connection.dialect.name, workspace_id)
    connection.execute(delete(workspace_snapshots).where(*old))


def _is_recent() -> ColumnElement[bool]:
    """Return the SQL condition for the newest SNAPSHOTS of a workspace. Callers do not see older ones, which a hold
    keeps.
    """
    newer = workspace_snapshots.alias()
    of_workspace = select(newer.c.id).where(newer.c.workspace_id == workspace_snapshots.c.workspace_id)
    newest = of_workspace.order_by(newer.c.id.desc()).limit(SNAPSHOTS).correlate(workspace_snapshots)
    return workspace_snapshots.c.id.in_(newest)


def make_current(connection: Connection, workspace_id: str, snapshot: SnapshotRow) -> None:
    """Make `snapshot` the current one, and delay the expiry of the workspace."""
    changed = update(workspaces).where(workspaces.c.id == workspace_id)
    connection.execute(
        changed.values(
            snapshot_id=snapshot.id,
            snapshot=snapshot.digest,
            size_bytes=snapshot.size_bytes,
            files=snapshot.files,
            expires_at=func.coalesce(_next_expiry(connection, workspace_id), workspaces.c.expires_at),
        )
    )


def _next_expiry(connection: Connection, workspace_id: str) -> datetime | None:
    """Return the time at which the workspace expires after a use now, or None if the workspace does not exist."""
    ttl = connection.scalar(select(workspaces.c.ttl_seconds).where(workspaces.c.id == workspace_id))
    return datetime.now(UTC) + timedelta(seconds=ttl) if ttl else None


def remove(connection: Connection, workspace_ids: Sequence[str]) -> None:
    """Delete workspaces with their snapshots. A later sweep deletes contents that become unused."""
    connection.execute(delete(workspace_snapshots).where(workspace_snapshots.c.workspace_id.in_(workspace_ids)))
    connection.execute(delete(workspaces).where(workspaces.c.id.in_(workspace_ids)))


def remove_or_hold(connection: Connection, workspace_id: str) -> None:
    """Delete a workspace. If a hold keeps it, only let it expire now, so that callers no longer see it."""
    is_free = select(workspaces.c.id).where(
        workspaces.c.id == workspace_id, *unheld_workspaces(connection.dialect.name, workspace_id)
    )
    if connection.scalar(is_free) is not None:
        remove(connection, [workspace_id])
    else:
        expire = update(workspaces).where(workspaces.c.id == workspace_id)
        connection.execute(expire.values(expires_at=datetime.now(UTC)))
