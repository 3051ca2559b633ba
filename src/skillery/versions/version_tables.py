"""The versions of a skill by precedence, with their approvals, findings and labels, for web pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, cast

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    ScalarSelect,
    Select,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
)

from skillery.backends import Identity
from skillery.database import Statement, in_utc
from skillery.database.tables import RESOLVABLE, catalogue, labels, skill_files, skill_versions, skills
from skillery.errors import VersionNotFound
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact, Latest, VersionSpec
from skillery.identity.access import Who
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.resolution import find_skill, resolve, skill_not_found
from skillery.registry.uses import UsageDay, days_of, loads_by_program
from skillery.registry.version_rows import Approval, Status, VersionRow
from skillery.registry.visibility import WAS_PUBLISHED, View, parameters, seen_version, view_of
from skillery.skills.catalogue_filters import is_listed
from skillery.skills.catalogue_rows import LOOKS_LIKE
from skillery.skills.namespaces import contact_for
from skillery.versions.checks import Checks, checks_of

VersionGroup = Literal["releases", "prereleases", "withdrawn"]
"""A table of versions. `withdrawn` has yanked, rejected and purged versions."""
_WITHDRAWN: list[ColumnElement[str]] = [literal_column(f"'{status}'") for status in ("yanked", "rejected", "purged")]
_group: ColumnElement[str] = case(
    (skill_versions.c.status.in_(_WITHDRAWN), literal_column("'withdrawn'")),
    (skill_versions.c.is_release, literal_column("'releases'")),
    else_=literal_column("'prereleases'"),
)


class FindingCounts(msgspec.Struct, frozen=True):
    """Numbers of findings. A waived finding counts only in `waived`."""

    errors: int = 0
    warnings: int = 0
    waived: int = 0


class TabledVersion(msgspec.Struct, frozen=True):
    """A version in a table."""

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
    """A page of the versions in a group, highest version first."""

    versions: list[TabledVersion]
    next_cursor: str | None


class VersionFacts(msgspec.Struct, frozen=True):
    """Facts about a version for its page that describe_skill does not return."""

    version: str
    skill_id: int
    version_id: int | None
    """The id of the stored version, or None for a development version."""
    publisher: Who
    owner: Who
    """The publisher of the first published version of the skill, or of its first version if none was published."""
    created_at: datetime | None
    """The time of publishing, or None for a development version."""
    size_bytes: int
    files_count: int
    older: str | None
    """The next lower published version, or None. For a release, the next lower release if there is one."""
    latest: str | None
    """The latest version of the skill, or None if no version is published."""
    days: list[UsageDay]
    """The uses of all versions of the skill in the last 30 days."""
    programs: list[tuple[str, int]]
    """The programs that loaded the skill in the last 30 days with the number of loads, most loads first."""
    counts: dict[VersionGroup, int]
    """The numbers of versions in each group that the identity sees."""
    contact: str
    """How to reach the owners of the namespace, or ""."""
    looks_like: str | None
    """An older public skill of another publisher with nearly the same name or description, or None."""


def table_of_versions(
    connection: Connection, identity: Identity, key: bytes, *, name: str, group: VersionGroup, limit: int, cursor: str
) -> VersionTable:
    """Return a page of the versions in a group that the identity sees, highest version first.

    `key` signs the cursors. Raise SkillNotFound if the identity sees no such skill. Raise InvalidCursor if the cursor
    belongs to another listing.
    """
    skill_id = _skill(connection, identity, name)
    bound_to = ("table_of_versions", identity.name, name, group)
    where = [
        skill_versions.c.skill_id == skill_id,
        _group == literal_column(f"'{group}'"),
        *seen_through_skill(view_of(identity)),
    ]
    if cursor:
        where.append(skill_versions.c.precedence < bytes.fromhex(read_cursor(key, bound_to, cursor, 1)[0]))
    statement: Select[Any] = (
        select(skill_versions).where(*where).order_by(skill_versions.c.precedence.desc()).limit(limit + 1)
    )
    rows = connection.execute(statement, parameters(identity)).all()
    page = rows[:limit]
    labels_by_version: dict[int, list[str]] = {}
    points_to_page = labels.c.version_id.in_([row.id for row in page])
    for label, version_id in connection.execute(select(labels.c.label, labels.c.version_id).where(points_to_page)):
        labels_by_version.setdefault(version_id, []).append(label)
    next_cursor = make_cursor(key, bound_to, (bytes(page[-1].precedence).hex(),)) if len(rows) > limit else None
    return VersionTable([_tabled(row, sorted(labels_by_version.get(row.id, []))) for row in page], next_cursor)


def resolve_for_page(connection: Connection, identity: Identity, name: str, spec: VersionSpec) -> VersionRow:
    """Return the version that `spec` selects. Raise the errors of `resolve`.

    If `spec` is Latest and no version is published, return the highest version that the identity sees: a draft or a
    version in review, else a yanked or rejected one.
    """
    try:
        return resolve(connection, identity, name, spec)
    except VersionNotFound:
        highest = _highest_seen(connection, identity, name) if isinstance(spec, Latest) else None
        if highest is None:
            raise
        return resolve(connection, identity, name, Exact(Version.parse(highest)))


def _highest_seen(connection: Connection, identity: Identity, name: str) -> str | None:
    """Return the highest version that the identity sees, withdrawn versions last, or None."""
    skill_id = select(skills.c.id).where(skills.c.name == name).scalar_subquery()
    statement = (
        select(skill_versions.c.version)
        .where(skill_versions.c.skill_id == skill_id, skill_versions.c.status != literal_column("'purged'"))
        .where(*seen_through_skill(view_of(identity)))
        .order_by(skill_versions.c.status.in_(_WITHDRAWN), skill_versions.c.precedence.desc())
        .limit(1)
    )
    return cast("str | None", connection.scalar(statement, parameters(identity)))


def facts_for_page(connection: Connection, identity: Identity, name: str, spec: VersionSpec) -> VersionFacts:
    """Return facts about the version that `resolve_for_page` returns. A development version has no row in the
    database.
    """
    row = resolve_for_page(connection, identity, name, spec)
    publisher = Who(row.publisher, row.publisher_kind)
    view = view_of(identity)
    counted = _counts_by_group(view).rows(connection, of_skill=row.skill_id, **parameters(identity))
    facts = _FACTS.rows(connection, of_skill=row.skill_id, of_version=row.version_id)
    values: Sequence[Any] = facts[0] if facts else (None,) * 10
    stored, latest, owner, owner_kind, created_at, size, files_count, older, contact, looks_like = values
    if stored is None:
        files = row.unstored.files.values() if row.unstored is not None else ()
        size, files_count = sum(file.size for file in files), len(files)
    return VersionFacts(
        row.version,
        row.skill_id,
        stored,
        publisher,
        Who(owner, owner_kind) if owner is not None else publisher,
        in_utc(created_at),
        size,
        files_count,
        older,
        latest,
        days_of(connection, row.skill_id),
        loads_by_program(connection, row.skill_id),
        cast("dict[VersionGroup, int]", dict(counted)),
        contact or "",
        looks_like,
    )


@lru_cache(64)
def _counts_by_group(view: View | None) -> Statement:
    """Return the SELECT of the numbers of visible versions of a skill, by group."""
    of_skill = skill_versions.c.skill_id == bindparam("of_skill")
    columns: tuple[ColumnElement[Any], ...] = (_group, func.count())
    return Statement(select(*columns).where(of_skill, *seen_through_skill(view)).group_by(_group))


_shown = skill_versions.alias("one")
_first = skill_versions.alias("first")
_latest = skill_versions.alias("latest")
_lower = skill_versions.alias("lower")
_any = skill_versions.alias("any_version")


def _next_lower(*where: ColumnElement[bool]) -> ScalarSelect[str]:
    """Return a subquery for the next lower published version that meets the conditions `where`."""
    return (
        select(_lower.c.version)
        .where(_lower.c.skill_id == skills.c.id, _lower.c.precedence < _shown.c.precedence, *where)
        .where(_lower.c.status.in_([literal_column(f"'{status}'") for status in RESOLVABLE]))
        .order_by(_lower.c.precedence.desc())
        .limit(literal_column("1"))
        .correlate(skills, _shown)
        .scalar_subquery()
    )


# A release is compared with a release, if there is one.
_older = func.coalesce(case((_shown.c.is_release, _next_lower(_lower.c.is_release))), _next_lower())
_was_published = _any.c.status.in_([literal_column(f"'{status}'") for status in WAS_PUBLISHED])
_of_skill = select(func.min(_any.c.id)).where(_any.c.skill_id == skills.c.id).correlate(skills)
_first_id = func.coalesce(_of_skill.where(_was_published).scalar_subquery(), _of_skill.scalar_subquery())
# One statement, because each further one would be another round trip to Postgres.
_FACTS = Statement(
    select(
        _shown.c.id,
        _latest.c.version,
        _first.c.publisher,
        _first.c.publisher_kind,
        _shown.c.created_at,
        _shown.c.size_bytes,
        select(func.count()).where(skill_files.c.version_id == _shown.c.id).scalar_subquery(),
        _older,
        contact_for(skills.c.name),
        select(LOOKS_LIKE).where(catalogue.c.skill_id == skills.c.id, is_listed()).scalar_subquery(),
    )
    .select_from(skills)
    .outerjoin(_shown, _shown.c.id == bindparam("of_version"))
    .outerjoin(_first, _first.c.id == _first_id)
    .outerjoin(_latest, _latest.c.id == skills.c.latest_version_id)
    .where(skills.c.id == bindparam("of_skill"))
)


def _skill(connection: Connection, identity: Identity, name: str) -> int:
    """Return the id of a skill. Raise SkillNotFound if the identity sees no such skill."""
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        raise skill_not_found(connection, identity, name)
    return skill_id


def seen_through_skill(view: View | None) -> list[ColumnElement[bool]]:
    """Return the SQL condition, at most one, that the row of `skill_versions` is a version that the view sees."""
    if view is None:
        return []
    in_skills = select(skills.c.id).where(skills.c.id == skill_versions.c.skill_id, or_(seen_version(view)))
    return [in_skills.exists()]


def _tabled(row: Row[Any], label_names: list[str]) -> TabledVersion:
    """Return a version as a table shows it. `label_names` are the labels on it."""
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
        labels=label_names,
    )


def _counts(checks: Checks) -> FindingCounts:
    """Return the numbers of findings."""
    unwaived = [finding for finding in checks.findings if finding.waiver is None]
    return FindingCounts(
        errors=sum(finding.severity == "error" for finding in unwaived),
        warnings=sum(finding.severity == "warning" for finding in unwaived),
        waived=len(checks.findings) - len(unwaived),
    )
