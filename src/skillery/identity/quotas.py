"""Quotas: limits for an identity or a namespace. The transaction that adds something checks them.

The used amount is summed from the rows for each check, because a separate counter could become wrong. A sum reads only
a part of an index, and the limit bounds the size of this part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, and_, bindparam, func, or_, select

from skillery.database import Statement, as_stored, in_utc, take_turns
from skillery.database.tables import blobs, origin_statements, runs, session_tools, skill_versions, skills
from skillery.errors import QuotaExceeded, RateLimited
from skillery.events import note_if_near

MINUTE = timedelta(minutes=1)
LONGEST_RUN = timedelta(minutes=70)
"""The age at which a run without an end no longer counts as active: its server has died. A run takes at most an
hour.
"""
CONCURRENT_RETRY_MS = 1_000

_BLOBS = Statement(
    select(func.count(), func.coalesce(func.sum(blobs.c.size_bytes), 0)).where(
        blobs.c.owner == bindparam("owner"), or_(blobs.c.expires_at.is_(None), blobs.c.expires_at > bindparam("now"))
    )
)
_NEXT_EXPIRY = Statement(
    select(func.min(blobs.c.expires_at)).where(
        blobs.c.owner == bindparam("owner"), blobs.c.expires_at > bindparam("now")
    )
)
_OWN = and_(runs.c.identity == bindparam("identity"), runs.c.parent_run_id.is_(None))
_UNDER_WAY = Statement(
    select(func.count()).where(_OWN, runs.c.status == "started", runs.c.started_at > bindparam("since"))
)
_PACE = Statement(select(func.count()).where(_OWN, runs.c.started_at > bindparam("since")))
# One statement with two results, which saves a round trip to Postgres: the number of active runs, and the start time of
# the oldest run that counts towards the rate.
_AT_START = Statement(
    select(
        select(func.count())
        .where(_OWN, runs.c.status == "started", runs.c.started_at > bindparam("left_over"))
        .scalar_subquery(),
        select(runs.c.started_at)
        .where(_OWN, runs.c.started_at > bindparam("since"))
        .order_by(runs.c.started_at.desc())
        .limit(1)
        .offset(bindparam("others"))
        .scalar_subquery(),
    )
)

_SESSION_TOOLS = Statement(
    select(func.count()).where(
        session_tools.c.identity == bindparam("identity"), session_tools.c.expires_at > bindparam("now")
    )
)


class IdentityQuota(msgspec.Struct, frozen=True):
    """The limits of one identity. 0 means no limit."""

    blobs: int = 0
    blob_bytes: int = 0
    runs_per_minute: int = 0
    concurrent_runs: int = 0
    session_tools: int = 0
    workspaces: int = 0
    workspace_bytes: int = 0

    @property
    def limits_runs(self) -> bool:
        """Whether the start of a run is checked against this quota."""
        return bool(self.runs_per_minute or self.concurrent_runs)


class Quotas(msgspec.Struct, frozen=True):
    """The quotas of all identities and namespaces. Keys of `identities` are names, or prefixes with `*` at the end.
    Keys of `namespaces` are namespace grants.
    """

    default: IdentityQuota = IdentityQuota()
    identities: Mapping[str, IdentityQuota] = {}
    bundle_bytes: int = 0
    """The limit in bytes for each top-level namespace that no key of `namespaces` covers. 0 means no limit."""
    namespaces: Mapping[str, int] = {}

    def of(self, identity: str) -> IdentityQuota:
        """Return the limits of an identity: the entry for its name, else the entry for the longest matching prefix,
        else the default.
        """
        if identity in self.identities:
            return self.identities[identity]
        prefixes = [prefix for prefix in self.identities if prefix.endswith("*") and identity.startswith(prefix[:-1])]
        return self.identities[max(prefixes, key=len)] if prefixes else self.default

    def over(self, skill: str) -> dict[str, int]:
        """Return the limits that apply to a skill, by namespace grant.

        These are the limits of all matching keys of `namespaces`. If no key matches, the only limit is `bundle_bytes`,
        for the top-level namespace of the skill.
        """
        covering = {
            grant: limit for grant, limit in self.namespaces.items() if grant == "*" or _covers(grant[:-2], skill)
        }
        return dict(sorted(covering.items())) or {f"{skill.partition('.')[0]}.*": self.bundle_bytes}


UNLIMITED = Quotas()


class Amount(NamedTuple):
    """The blobs or workspaces of an identity: their number and their bytes."""

    number: int
    size_bytes: int


NOT_COUNTED = Amount(0, 0)
"""The amount if no quota applies."""


def _covers(namespace: str, skill: str) -> bool:
    return skill == namespace or skill.startswith(f"{namespace}.")


# -- blobs -------------------------------------------------------------------------------------------------------


def check_blob(connection: Connection, quotas: Quotas, owner: str, size_bytes: int) -> Amount:
    """Raise QuotaExceeded if a blob of `size_bytes` would exceed a quota of its owner.

    Return the blobs of the owner, or NOT_COUNTED if no quota applies.
    """
    quota = quotas.of(owner)
    if not quota.blobs and not quota.blob_bytes:
        return NOT_COUNTED
    take_turns(connection, "blobs of", owner)
    used = blobs_used(connection, owner)
    if quota.blobs and used.number >= quota.blobs:
        message = f"{owner!r} has {used.number} blobs, which is its limit"
        raise _no_more_blobs("blobs", owner, used.number, quota.blobs, message, _expiry_after_now(connection, owner))
    if quota.blob_bytes and used.size_bytes + size_bytes > quota.blob_bytes:
        raise _no_more_blobs(
            "blob_bytes",
            owner,
            used.size_bytes,
            quota.blob_bytes,
            f"the blobs of {owner!r} have {used.size_bytes} bytes, and with {size_bytes} more would exceed its quota "
            f"of {quota.blob_bytes}",
            _expiry_after_now(connection, owner),
        )
    return used


def _expiry_after_now(connection: Connection, owner: str) -> datetime | None:
    """Return when the next blob of the owner expires, or None if no blob expires."""
    now = as_stored(connection, datetime.now(UTC))
    expires_at: datetime | None = _NEXT_EXPIRY.rows(connection, owner=owner, now=now)[0][0]
    return in_utc(expires_at)


def admit_blob(connection: Connection, quotas: Quotas, owner: str, size_bytes: int) -> None:
    """Check a new blob with `check_blob`. Record an event if a quota is almost used up. Call this function in the
    transaction that adds the blob.
    """
    quota = quotas.of(owner)
    used = check_blob(connection, quotas, owner, size_bytes)
    note_if_near(connection, "blobs", used.number, 1, quota.blobs, identity=owner)
    note_if_near(connection, "blob_bytes", used.size_bytes, size_bytes, quota.blob_bytes, identity=owner)


def most_blob_bytes(connection: Connection, quotas: Quotas, owner: str) -> int | None:
    """Return the maximum size of a new blob in bytes, which can be 0, or None if there is no limit.

    Raise QuotaExceeded if not even an empty blob would fit. This check only avoids the transfer of a blob that would be
    refused: the transaction that adds the blob checks again.
    """
    quota = quotas.of(owner)
    used = check_blob(connection, quotas, owner, 0)
    return quota.blob_bytes - used.size_bytes if quota.blob_bytes else None


def blobs_used(connection: Connection, owner: str) -> Amount:
    """Return the blobs of an owner. Expired blobs do not count, even if no sweep has removed them."""
    now = as_stored(connection, datetime.now(UTC))
    number, size = _BLOBS.rows(connection, owner=owner, now=now)[0]
    return Amount(int(number), int(size))


def blob_too_large(owner: str, size_bytes: int, unused: int, limit: int) -> QuotaExceeded:
    """Return the error for a blob that exceeds the quota `limit` while it is received. `unused` is the unused part in
    bytes.
    """
    return _no_more_blobs(
        "blob_bytes",
        owner,
        limit - unused,
        limit,
        f"the blobs of {owner!r} have {limit - unused} bytes, and with {size_bytes} more would exceed its quota of "
        f"{limit}",
    )


def _no_more_blobs(
    quota: str, owner: str, used: int, limit: int, message: str, next_expiry: datetime | None = None
) -> QuotaExceeded:
    """Return the error of a blob quota. `quota` is the name of the quota, and `next_expiry` the time at which a blob
    expires.
    """
    wait = f" The next blob expires at {next_expiry:%Y-%m-%d %H:%M:%S} UTC." if next_expiry else ""
    return QuotaExceeded(
        message,
        hint="Nothing was stored. Delete blobs that are not needed (delete_blob), give new blobs a ttl, "
        f"or ask an admin for a larger quota.{wait}",
        quota=quota,
        identity=owner,
        used=used,
        limit=limit,
    )


# -- runs --------------------------------------------------------------------------------------------------------


def check_run(connection: Connection, quotas: Quotas, identity: str) -> None:
    """Raise RateLimited if a further run would exceed a quota. Runs that the code of a run starts are not counted."""
    quota = quotas.of(identity)
    if not quota.limits_runs:
        return
    take_turns(connection, "runs of", identity)
    now = datetime.now(UTC)
    under_way, nth_latest = _AT_START.rows(
        connection,
        identity=identity,
        left_over=as_stored(connection, now - LONGEST_RUN),
        since=as_stored(connection, now - MINUTE),
        others=max(0, quota.runs_per_minute - 1),
    )[0]
    if quota.concurrent_runs and under_way >= quota.concurrent_runs:
        raise _too_many_at_once(identity, under_way, quota.concurrent_runs)
    if quota.runs_per_minute and nth_latest is not None:
        raise _too_fast(identity, quota.runs_per_minute, in_utc(nth_latest) + MINUTE - now)


def _too_many_at_once(identity: str, count: int, limit: int) -> RateLimited:
    return RateLimited(
        f"{identity!r} has {count} runs under way, which is its limit",
        hint="Nothing was run. Wait until one has ended, or ask an admin for a larger quota.",
        retry_after_ms=CONCURRENT_RETRY_MS,
        quota="concurrent_runs",
        used=count,
        limit=limit,
    )


def _too_fast(identity: str, limit: int, wait: timedelta) -> RateLimited:
    return RateLimited(
        f"{identity!r} has started {limit} runs within a minute, which is its limit",
        hint=f"Nothing was run. Try again in {math.ceil(wait.total_seconds())} s, or ask an admin for a larger quota.",
        retry_after_ms=max(1, round(wait / timedelta(milliseconds=1))),
        quota="runs_per_minute",
        used=limit,
        limit=limit,
    )


def runs_under_way(connection: Connection, identity: str) -> int:
    since = as_stored(connection, datetime.now(UTC) - LONGEST_RUN)
    return int(_UNDER_WAY.rows(connection, identity=identity, since=since)[0][0])


def runs_of_last_minute(connection: Connection, identity: str) -> int:
    since = as_stored(connection, datetime.now(UTC) - MINUTE)
    return int(_PACE.rows(connection, identity=identity, since=since)[0][0])


# -- tools of sessions -------------------------------------------------------------------------------------------


def check_session_tool(connection: Connection, quotas: Quotas, identity: str) -> None:
    """Raise QuotaExceeded if a further tool of a session would exceed the quota."""
    limit = quotas.of(identity).session_tools
    if not limit:
        return
    take_turns(connection, "tools of", identity)
    used = session_tools_of(connection, identity)
    if used >= limit:
        raise QuotaExceeded(
            f"{identity!r} has {used} tools in its sessions, which is its limit",
            hint="Nothing was defined. Remove tools (remove_tool), or ask an admin for a larger quota.",
            quota="session_tools",
            used=used,
            limit=limit,
        )
    note_if_near(connection, "session_tools", used, 1, limit, identity=identity)


def session_tools_of(connection: Connection, identity: str) -> int:
    """Return the number of an identity's tools in sessions that have not expired."""
    now = as_stored(connection, datetime.now(UTC))
    return int(_SESSION_TOOLS.rows(connection, identity=identity, now=now)[0][0])


# -- bundles -----------------------------------------------------------------------------------------------------


def check_bundle(connection: Connection, quotas: Quotas, skill: str, size_bytes: int) -> None:
    """Raise QuotaExceeded if a version of this size would exceed a quota of the skill's namespaces."""
    for namespace, limit in quotas.over(skill).items():
        if not limit:
            continue
        take_turns(connection, "bundles of", namespace)
        used = bundle_bytes(connection, namespace)
        if used + size_bytes > limit:
            raise QuotaExceeded(
                f"the versions under '{namespace}' have {used} bytes; {size_bytes} more bytes would exceed the "
                f"quota of {limit}",
                hint="Nothing was stored. Versions are never deleted: ask an admin for a larger quota of this "
                "namespace, or publish a smaller bundle.",
                quota="bundle_bytes",
                namespace=namespace,
                used=used,
                limit=limit,
            )
        note_if_near(connection, "bundle_bytes", used, size_bytes, limit, skill=skill, namespace=namespace)


def bundle_bytes(connection: Connection, namespace: str) -> int:
    """Return the bytes of all versions of the skills that a namespace grant covers, with the statements of origins.
    Unlike in access rules, `sales.*` also covers the skill `sales` itself.
    """
    documents = select(func.sum(func.length(origin_statements.c.document))).join_from(
        origin_statements, skill_versions, skill_versions.c.id == origin_statements.c.version_id
    )
    of_skill, versions = skills.c.id == skill_versions.c.skill_id, select(func.sum(skill_versions.c.size_bytes))
    totals = [total.join(skills, of_skill) for total in (versions, documents)]
    if namespace != "*":
        prefix = namespace.removesuffix(".*")
        # The range from `sales.` to `sales/`: `/` follows `.` in ASCII.
        below = and_(skills.c.name >= f"{prefix}.", skills.c.name < f"{prefix}/")
        totals = [total.where(or_(skills.c.name == prefix, below)) for total in totals]
    return sum(int(connection.scalar(total) or 0) for total in totals)
