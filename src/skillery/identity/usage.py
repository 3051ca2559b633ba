"""get_usage: the amounts that an identity and its namespaces use of their quotas."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, func, select

from skillery import audit
from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.database.tables import blobs, skill_versions, skills, workspaces
from skillery.errors import QuotaExceeded
from skillery.events import NEAR, note_if_near
from skillery.formats.names import parse_namespace
from skillery.formats.texts import parse_identity
from skillery.identity import access
from skillery.identity.quotas import (
    NOT_COUNTED,
    Amount,
    IdentityQuota,
    Quotas,
    blobs_used,
    bundle_bytes,
    runs_of_last_minute,
    runs_under_way,
    session_tools_of,
)
from skillery.method import Method, Params, about

# -- The quotas of workspaces: their number and their bytes ------------------------------------------------------------


def check_workspaces(
    connection: Connection, quotas: Quotas, identity: str, *, more: int = 0, more_bytes: int = 0
) -> Amount:
    """Raise QuotaExceeded if `more` workspaces or `more_bytes` bytes would exceed a quota of the identity.

    Return the identity's workspaces, or NOT_COUNTED if no quota applies.
    """
    quota = quotas.of(identity)
    if not quota.workspaces and not quota.workspace_bytes:
        return NOT_COUNTED
    used = workspaces_used(connection, identity)
    check_use(quota, identity, used, more=more, more_bytes=more_bytes)
    return used


def admit_to_workspaces(
    connection: Connection, quotas: Quotas, identity: str, *, more: int = 0, more_bytes: int = 0
) -> None:
    """Check with `check_workspaces`. Record an event if a quota is almost used up. Call this function in the
    transaction that adds the workspaces or bytes.
    """
    quota = quotas.of(identity)
    used = check_workspaces(connection, quotas, identity, more=more, more_bytes=more_bytes)
    note_if_near(connection, "workspaces", used.number, more, quota.workspaces, identity=identity)
    note_if_near(connection, "workspace_bytes", used.size_bytes, more_bytes, quota.workspace_bytes, identity=identity)


def check_use(quota: IdentityQuota, identity: str, used: Amount, *, more: int = 0, more_bytes: int = 0) -> None:
    """Raise QuotaExceeded if `more` workspaces or `more_bytes` bytes would exceed the quota. `used` is the result of
    `workspaces_used`.
    """
    for name, present, additional, limit in (
        ("workspaces", used.number, more, quota.workspaces),
        ("workspace_bytes", used.size_bytes, more_bytes, quota.workspace_bytes),
    ):
        if limit and additional > 0 and present + additional > limit:
            raise QuotaExceeded(
                f"{identity!r} has {present} of {limit} {name.replace('_', ' ')}, "
                f"and {additional} more would exceed the quota",
                hint="Delete workspaces that you no longer need: delete_workspace.",
                quota=name,
                used=present,
                limit=limit,
            )


def workspaces_used(connection: Connection, identity: str) -> Amount:
    """Return the workspaces of an identity. The bytes of a file that is in two workspaces count twice."""
    sums = select(func.count(), func.coalesce(func.sum(workspaces.c.size_bytes), 0)).where(
        workspaces.c.identity == identity, workspaces.c.expires_at > datetime.now(UTC)
    )
    number, size = connection.execute(sums).one()
    return Amount(int(number), int(size))


class Used(msgspec.Struct, frozen=True):
    """The used amount of a quota, and its limit."""

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


def read_usage(
    connection: Connection, quotas: Quotas, identity: str, namespaces: list[str], sees: Callable[[str], bool]
) -> IdentityUse:
    """Return the use and the limit of each quota of the identity, and of each limit that applies to `namespaces`.

    `sees` returns whether the caller may see everything in a namespace. If not, `used` of the namespace is None.
    """
    quota = quotas.of(identity)
    blobs_now = blobs_used(connection, identity)
    workspaces_now = workspaces_used(connection, identity)
    limits: dict[str, int] = {}
    for namespace in namespaces:
        limits |= quotas.over(namespace)
    return IdentityUse(
        identity=identity,
        blobs=_used(blobs_now.number, quota.blobs),
        blob_bytes=_used(blobs_now.size_bytes, quota.blob_bytes),
        runs_per_minute=_used(runs_of_last_minute(connection, identity), quota.runs_per_minute),
        concurrent_runs=_used(runs_under_way(connection, identity), quota.concurrent_runs),
        session_tools=_used(session_tools_of(connection, identity), quota.session_tools),
        workspaces=_used(workspaces_now.number, quota.workspaces),
        workspace_bytes=_used(workspaces_now.size_bytes, quota.workspace_bytes),
        namespaces=[
            NamespaceUse(namespace, _used(bundle_bytes(connection, namespace) if sees(namespace) else None, limit))
            for namespace, limit in sorted(limits.items())
        ],
    )


def _used(used: int | None, limit: int) -> Used:
    """Return the amount and the limit. A limit of 0 becomes None: there is no limit."""
    return Used(used, limit or None)


def list_uses(connection: Connection, quotas: Quotas, most: int) -> list[IdentityUse]:
    """Return the use of the identities with the most data: `most` of them by the bytes of their blobs, `most` by those
    of their workspaces.

    Identities whose name is a key of `quotas.identities` are included.
    """
    names = {name for name in quotas.identities if not name.endswith("*")}
    for name, size in ((blobs.c.owner, blobs.c.size_bytes), (workspaces.c.identity, workspaces.c.size_bytes)):
        names.update(connection.scalars(select(name).group_by(name).order_by(func.sum(size).desc()).limit(most)))
    names.discard(audit.SERVER.name)  # its blobs are the results of examples, which no quota limits
    return [read_usage(connection, quotas, name, [], lambda _: True) for name in sorted(names)]


def list_namespace_uses(connection: Connection, quotas: Quotas, most: int) -> list[NamespaceUse]:
    """Return the use of the largest `most` top-level namespaces, and of the namespaces that have a limit."""
    if connection.dialect.name == "postgresql":
        top = func.split_part(skills.c.name, ".", 1)
    else:
        top = func.substr(skills.c.name, 1, func.instr(skills.c.name.concat("."), ".") - 1)
    versions_with_skills = skill_versions.join(skills, skills.c.id == skill_versions.c.skill_id)
    sizes = select(top, func.sum(skill_versions.c.size_bytes)).select_from(versions_with_skills).group_by(top)
    limits = {f"{name}.*": quotas.bundle_bytes for name, _ in connection.execute(_largest(sizes, most))}
    limits |= quotas.namespaces
    return [
        NamespaceUse(namespace, _used(bundle_bytes(connection, namespace), limit))
        for namespace, limit in sorted(limits.items())
    ]


MOST_WATCHED = 50
"""The number of the largest identities and of the largest namespaces whose quotas are watched."""


def count_near(connection: Connection, quotas: Quotas) -> dict[str, int]:
    """Return, for each quota, the number of identities or namespaces that have used NEAR of it or more.

    Only the largest MOST_WATCHED count, and those with a limit of their own.
    """
    uses = list_uses(connection, quotas, MOST_WATCHED)
    near = {name: sum(_is_near(getattr(use, name)) for use in uses) for name in IdentityQuota.__struct_fields__}
    namespaces = list_namespace_uses(connection, quotas, MOST_WATCHED)
    return near | {"bundle_bytes": sum(_is_near(use.bundle_bytes) for use in namespaces)}


def _is_near(amount: Used) -> bool:
    return bool(amount.limit) and (amount.used or 0) >= NEAR * (amount.limit or 0)


def _largest(sizes: Select[Any], most: int) -> Select[Any]:
    return sizes.order_by(func.sum(skill_versions.c.size_bytes).desc()).limit(most)


class UsageParts(NamedTuple):
    """The parts of the core that `get_usage` uses."""

    registry: Registry
    quotas: Quotas


# -- get_usage ---------------------------------------------------------------------------------------------------------


class GetUsage(Params, frozen=True, kw_only=True):
    """Return the used amount and the limit of each quota."""

    identity: Annotated[str, about("Identity; omit for the caller (only admins and auditors may name others)")] = ""
    namespace: Annotated[str, about("Namespace; omit for the namespaces of the caller's grants")] = ""


async def get_usage(usage: UsageParts, identity: Identity, params: GetUsage) -> IdentityUse:
    """Return the use of the caller, or of another identity if the caller is an admin or auditor."""
    name = parse_identity(params.identity) if params.identity else identity.name
    if name != identity.name:
        access.require(identity, "audit")
    namespaces = [grant.removesuffix(".*") for grant in identity.namespaces if grant != "*"]
    if params.namespace:
        namespaces = [parse_namespace(params.namespace.removesuffix(".*"))]
        if not access.covers(identity, f"{namespaces[0]}.x"):
            access.require(identity, "audit")
    elif name != identity.name:
        namespaces = []
    sees = partial(access.covers_all, identity) if not access.is_auditor(identity) else lambda _: True
    work = partial(read_usage, quotas=usage.quotas, identity=name, namespaces=namespaces, sees=sees)
    return await usage.registry.read_page(work)


METHODS = (Method(get_usage, "read", audits="", for_auditors=True),)
