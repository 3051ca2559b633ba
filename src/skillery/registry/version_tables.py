"""The versions of a skill by precedence, with their approvals, findings and labels, for pages of people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, cast

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, case, func, literal_column, or_, select

from skillery.backends import Identity
from skillery.database import in_utc
from skillery.database.tables import RESOLVABLE, labels, skill_versions, skills
from skillery.errors import VersionNotFound
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact, Latest, VersionSpec
from skillery.identity.who import Who
from skillery.registry.checks import Checks, checks_of
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.resolution import find_skill, resolve, skill_not_found
from skillery.registry.results import Approval
from skillery.registry.usage_days import UsageDay, days_of
from skillery.registry.version_rows import VersionRow
from skillery.registry.versions import Status
from skillery.registry.visibility import parameters, seen_version, view_of

VersionGroup = Literal["releases", "prereleases", "withdrawn"]
"""`withdrawn` has yanked, rejected and purged versions."""
_WITHDRAWN: list[ColumnElement[str]] = [literal_column(f"'{status}'") for status in ("yanked", "rejected", "purged")]
_group: ColumnElement[str] = case(
    (skill_versions.c.status.in_(_WITHDRAWN), literal_column("'withdrawn'")),
    (skill_versions.c.is_release, literal_column("'releases'")),
    else_=literal_column("'prereleases'"),
)


class FindingCounts(msgspec.Struct, frozen=True):
    """Numbers of findings. Waived findings count only as waived."""

    errors: int = 0
    warnings: int = 0
    waived: int = 0


class TabledVersion(msgspec.Struct, frozen=True):
    """A version of a skill."""

    version: str
    status: Status
    digest: str
    size_bytes: int
    publisher: Who
    created_at: datetime
    approval: Approval | None
    verified: bool
    findings: FindingCounts
    labels: list[str]


class VersionTable(msgspec.Struct, frozen=True):
    """A page of the versions of a group, highest version first."""

    versions: list[TabledVersion]
    next_cursor: str | None


class VersionFacts(msgspec.Struct, frozen=True):
    """Facts about a version that describe_skill does not return."""

    version: str
    publisher: Who
    owner: Who
    """The publisher of the first version of the skill."""
    created_at: datetime | None
    """None for a development version."""
    size_bytes: int
    older: str | None
    """The next lower version that is published."""
    latest: str | None
    """The version that a caller without a version gets."""
    days: list[UsageDay]
    """The runs of all versions of the skill in the last 30 days."""
    counts: dict[VersionGroup, int]
    """Numbers of the visible versions of the skill."""


def table_of_versions(
    connection: Connection, identity: Identity, key: bytes, *, name: str, group: VersionGroup, limit: int, cursor: str
) -> VersionTable:
    """Return a page of the versions of a skill that the identity sees, by precedence.

    Raise SkillNotFound if the identity sees no such skill. Raise InvalidCursor if the cursor belongs to another
    listing.
    """
    skill_id = _skill(connection, identity, name)
    bound_to = ("table_of_versions", identity.name, name, group)
    where = [skill_versions.c.skill_id == skill_id, _group == literal_column(f"'{group}'"), *_seen(identity)]
    if cursor:
        where.append(skill_versions.c.precedence < bytes.fromhex(read_cursor(key, bound_to, cursor, 1)[0]))
    statement: Select[Any] = (
        select(skill_versions).where(*where).order_by(skill_versions.c.precedence.desc()).limit(limit + 1)
    )
    rows = connection.execute(statement, parameters(identity)).all()
    page = rows[:limit]
    pointing: dict[int, list[str]] = {}
    at_page = labels.c.version_id.in_([row.id for row in page])
    for label, version_id in connection.execute(select(labels.c.label, labels.c.version_id).where(at_page)):
        pointing.setdefault(version_id, []).append(label)
    more = make_cursor(key, bound_to, (bytes(page[-1].precedence).hex(),)) if len(rows) > limit else None
    return VersionTable([_tabled(row, sorted(pointing.get(row.id, []))) for row in page], more)


def resolve_for_page(connection: Connection, identity: Identity, name: str, spec: VersionSpec) -> VersionRow:
    """Return the version that `spec` selects.

    If the address of a page names no version and no version resolves, return the highest version that the identity
    sees: a draft, a version in review, or else a yanked or rejected one. Raise the errors of `resolve`.
    """
    try:
        return resolve(connection, identity, name, spec)
    except VersionNotFound:
        highest = _highest_seen(connection, identity, name) if isinstance(spec, Latest) else None
        if highest is None:
            raise
        return resolve(connection, identity, name, Exact(Version.parse(highest)))


def _highest_seen(connection: Connection, identity: Identity, name: str) -> str | None:
    skill_id = select(skills.c.id).where(skills.c.name == name).scalar_subquery()
    found = (
        select(skill_versions.c.version)
        .where(skill_versions.c.skill_id == skill_id, skill_versions.c.status != literal_column("'purged'"))
        .where(*_seen(identity))
        .order_by(skill_versions.c.status.in_(_WITHDRAWN), skill_versions.c.precedence.desc())
        .limit(1)
    )
    return cast("str | None", connection.scalar(found, parameters(identity)))


def facts_for_page(connection: Connection, identity: Identity, name: str, spec: VersionSpec) -> VersionFacts:
    """Return facts about the version of `resolve_for_page`. A development version has no row in the database."""
    row = resolve_for_page(connection, identity, name, spec)
    mine = skill_versions.c.skill_id == row.skill_id
    counted = select(_group, func.count()).where(mine, *_seen(identity)).group_by(_group)
    counts = cast(dict[VersionGroup, int], dict(connection.execute(counted, parameters(identity)).all()))
    days = days_of(connection, row.skill_id)
    pointed = select(skill_versions.c.version).join(skills, skills.c.latest_version_id == skill_versions.c.id)
    latest = connection.scalar(pointed.where(skills.c.id == row.skill_id))
    first = select(skill_versions.c.publisher, skill_versions.c.publisher_kind).where(mine)
    made = connection.execute(first.order_by(skill_versions.c.id).limit(1)).one_or_none()
    publisher = Who(row.publisher, row.publisher_kind)
    owner = Who(*made) if made is not None else publisher
    found = connection.execute(select(skill_versions).where(skill_versions.c.id == row.version_id)).one_or_none()
    if found is None:
        files = row.unstored.files.values() if row.unstored is not None else ()
        size = sum(file.size for file in files)
        return VersionFacts(row.version, publisher, owner, None, size, None, latest, days, counts)
    lower = (
        select(skill_versions.c.version)
        .where(mine, skill_versions.c.precedence < found.precedence)
        .where(skill_versions.c.status.in_([literal_column(f"'{status}'") for status in RESOLVABLE]))
        # A release is compared with a release, if there is one.
        .order_by(
            (skill_versions.c.is_release if found.is_release else literal_column("1")).desc(),
            skill_versions.c.precedence.desc(),
        )
        .limit(1)
    )
    return VersionFacts(
        row.version,
        publisher,
        owner,
        in_utc(found.created_at),
        found.size_bytes,
        connection.scalar(lower),
        latest,
        days,
        counts,
    )


def _skill(connection: Connection, identity: Identity, name: str) -> int:
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        raise skill_not_found(connection, identity, name)
    return skill_id


def _seen(identity: Identity) -> list[ColumnElement[bool]]:
    """Return the condition for visible versions of a visible skill. The statement must read the table `skills` too if
    the condition has grants.
    """
    view = view_of(identity)
    if view is None:
        return []
    in_skills = select(skills.c.id).where(skills.c.id == skill_versions.c.skill_id, or_(seen_version(view)))
    return [in_skills.exists()]


def _tabled(row: Row[Any], pointing: list[str]) -> TabledVersion:
    standing: Mapping[str, Any] = msgspec.json.decode(row.standing_json) if row.standing_json else {}
    approval = standing.get("approval")
    checks = checks_of(row.checks_json)
    return TabledVersion(
        version=row.version,
        status=row.status,
        digest=row.digest,
        size_bytes=row.size_bytes,
        publisher=Who(row.publisher, row.publisher_kind),
        created_at=in_utc(row.created_at),
        approval=msgspec.convert(approval, Approval) if approval else None,
        verified=checks.verified,
        findings=_counts(checks),
        labels=pointing,
    )


def _counts(checks: Checks) -> FindingCounts:
    open_ones = [one for one in checks.findings if one.waiver is None]
    return FindingCounts(
        errors=sum(one.severity == "error" for one in open_ones),
        warnings=sum(one.severity == "warning" for one in open_ones),
        waived=len(checks.findings) - len(open_ones),
    )
