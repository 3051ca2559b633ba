"""The quotas of workspaces: their number and their bytes."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, func, select

from skillery.database.tables import workspaces
from skillery.errors import QuotaExceeded
from skillery.identity.quotas import IdentityQuota, Quotas


def check_workspaces(
    connection: Connection, quotas: Quotas, identity: str, *, more: int = 0, more_bytes: int = 0
) -> None:
    """Raise QuotaExceeded if `more` workspaces or `more_bytes` bytes would exceed a quota of the identity."""
    quota = quotas.of(identity)
    if not quota.workspaces and not quota.workspace_bytes:
        return
    check_use(quota, identity, workspaces_used(connection, identity), more=more, more_bytes=more_bytes)


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
