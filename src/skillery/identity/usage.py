"""get_usage: the amounts that an identity and its namespaces use of their quotas."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from sqlalchemy import Connection

from skillery.identity.quotas import (
    Quotas,
    blobs_used,
    bundle_bytes,
    runs_of_last_minute,
    runs_under_way,
    session_tools_of,
)
from skillery.identity.workspace_quotas import workspaces_used


class Used(msgspec.Struct, frozen=True):
    used: int | None
    """None if the caller may not know the amount."""
    limit: int | None
    """None if there is no limit."""


class NamespaceUse(msgspec.Struct, frozen=True):
    """The use of a namespace together with all namespaces below."""

    namespace: str
    bundle_bytes: Used


class IdentityUse(msgspec.Struct, frozen=True):
    """The use and the limit of each quota of an identity."""

    identity: str
    blobs: Used
    blob_bytes: Used
    runs_per_minute: Used
    concurrent_runs: Used
    session_tools: Used
    workspaces: Used
    workspace_bytes: Used
    namespaces: list[NamespaceUse]


def get_usage(
    connection: Connection, quotas: Quotas, identity: str, namespaces: list[str], sees: Callable[[str], bool]
) -> IdentityUse:
    """Return the use and the limit of each quota of the identity, and of each limit that applies to `namespaces`.

    `sees` returns whether the caller may see everything in a namespace. If not, `used` of the namespace is None.
    """
    quota = quotas.of(identity)
    count, size = blobs_used(connection, identity)
    workspaces, workspace_bytes = workspaces_used(connection, identity)
    limits: dict[str, int] = {}
    for namespace in namespaces:
        limits |= quotas.over(namespace)
    return IdentityUse(
        identity=identity,
        blobs=_used(count, quota.blobs),
        blob_bytes=_used(size, quota.blob_bytes),
        runs_per_minute=_used(runs_of_last_minute(connection, identity), quota.runs_per_minute),
        concurrent_runs=_used(runs_under_way(connection, identity), quota.concurrent_runs),
        session_tools=_used(session_tools_of(connection, identity), quota.session_tools),
        workspaces=_used(workspaces, quota.workspaces),
        workspace_bytes=_used(workspace_bytes, quota.workspace_bytes),
        namespaces=[
            NamespaceUse(one, _used(bundle_bytes(connection, one) if sees(one) else None, limit))
            for one, limit in sorted(limits.items())
        ],
    )


def _used(used: int | None, limit: int) -> Used:
    return Used(used, limit or None)
