"""The quotas of workspaces: their number and their bytes."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, func, select

from skillery.database.tables import workspaces
from skillery.errors import QuotaExceeded
from skillery.events.outbox import note_if_near
from skillery.identity.quotas import IdentityQuota, Quotas


def check_workspaces(
    connection: Connection, quotas: Quotas, identity: str, *, more: int = 0, more_bytes: int = 0
) -> tuple[int, int]:
    """Raise QuotaExceeded if `more` workspaces or `more_bytes` bytes would exceed a quota of the identity.

    Return the number and the bytes of its workspaces, or zeros if no quota applies.
    """
    quota = quotas.of(identity)
    if not quota.workspaces and not quota.workspace_bytes:
        return 0, 0
    used = workspaces_used(connection, identity)
    check_use(quota, identity, used, more=more, more_bytes=more_bytes)
    return used


def admit_to_workspaces(
    connection: Connection, quotas: Quotas, identity: str, *, more: int = 0, more_bytes: int = 0
) -> None:
    """Check with `check_workspaces`, in the transaction that stores more. Record an event if a quota is almost used
    up.
    """
    quota = quotas.of(identity)
    used = check_workspaces(connection, quotas, identity, more=more, more_bytes=more_bytes)
    note_if_near(connection, "workspaces", used[0], more, quota.workspaces, identity=identity)
    note_if_near(connection, "workspace_bytes", used[1], more_bytes, quota.workspace_bytes, identity=identity)


def check_use(
    quota: IdentityQuota, identity: str, used: tuple[int, int], *, more: int = 0, more_bytes: int = 0
) -> None:
    """Raise QuotaExceeded as `check_workspaces`. `used` is the result of `workspaces_used`."""
    for name, has, adds, limit in (
        ("workspaces", used[0], more, quota.workspaces),
        ("workspace_bytes", used[1], more_bytes, quota.workspace_bytes),
    ):
        if limit and adds > 0 and has + adds > limit:
            raise QuotaExceeded(
                f"{identity!r} has {has} of {limit} {name.replace('_', ' ')}, and {adds} more would exceed the quota",
                hint="Delete workspaces that you no longer need: delete_workspace.",
                quota=name,
                used=has,
                limit=limit,
            )


def workspaces_used(connection: Connection, identity: str) -> tuple[int, int]:
    """Return number and bytes of an identity's workspaces. Equal files in two of them count twice."""
    sums = select(func.count(), func.coalesce(func.sum(workspaces.c.size_bytes), 0)).where(
        workspaces.c.identity == identity, workspaces.c.expires_at > datetime.now(UTC)
    )
    count, size = connection.execute(sums).one()
    return int(count), int(size)
