"""list_failures: which skills fail, how often, for how many callers and since which version.

The transaction that ends a failed run counts it in the table `failure_days`: skillery.registry.usage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from sqlalchemy import Connection, Row, distinct, func, select, tuple_

from skillery.backends import Identity
from skillery.database import as_list, in_utc, is_among
from skillery.database.registry import Registry
from skillery.database.tables import RESOLVABLE, failure_days, labels, skill_versions, skills, version_usage
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.tracebacks import pattern_of
from skillery.identity import access
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.registry.cursors import NextCursor, make_cursor, read_cursor
from skillery.registry.usage import DAYS, INSIGHT_DAYS, first_day
from skillery.registry.visibility import parameters, seen_version, sees_each, view_of

# -- Groups of the same failure ----------------------------------------------------------------------------------------


ENOUGH_RUNS = 20
"""The runs without a failure after which a version counts as one that does not fail this way."""
MOST_OF_RATE = 0.2
"""The part of the failing version's failure rate that the version before may have, so that a label rolls back to it."""


class VersionBefore(Struct, frozen=True):
    """The release before the first version that failed this way."""

    version: str
    runs: Annotated[int, Meta(description="Its completed and failed runs, none of which failed this way")]


class Rollback(Struct, frozen=True):
    """The labels that point to a failing version, and the version that set_label can point them to."""

    labels: list[str]
    version: str


class FailureGroup(Struct, frozen=True):
    """Failed runs of a skill that have the type, the failing function and the pattern of the message in common."""

    skill: str
    error_type: str
    message: Annotated[str, Meta(description="Of the last run. Only its caller and admins see the values in it")]
    place: Annotated[str, Meta(description='The failing line of the skill; "" if there is none')]
    runs: int
    callers: int
    days: Annotated[list[int], Meta(description="The failed runs of each day in UTC, oldest first")]
    since_version: Annotated[str, Meta(description="The lowest version with this failure in the last 90 days")]
    last_version: str
    first_day: Annotated[str, Meta(description="Day in UTC")]
    last_at: datetime
    last_run_id: Annotated[str | None, Meta(description="null for a run of another caller, except for admins")]
    before: Annotated[VersionBefore | None, Meta(description="null if it has fewer than 20 runs")]
    rollback: Annotated[Rollback | None, Meta(description="null if there is no label to move, or no good version")]


class FailurePage(Struct, frozen=True):
    """A page of failures."""

    failures: list[FailureGroup]
    next_cursor: NextCursor


class _Group(NamedTuple):
    """The sums of a group in the requested days."""

    skill_id: int
    shape: str
    runs: int
    callers: int


def read_failure(
    connection: Connection, identity: Identity, skill_id: int, name: str, shape: str | None = None
) -> FailureGroup | None:
    """Return the group of a shape in the last 30 days, or without a shape the group with the most failed runs.

    Return None if no such failure is counted.
    """
    runs, callers = func.sum(failure_days.c.runs), func.count(distinct(failure_days.c.caller))
    of_skill = failure_days.c.skill_id == skill_id, failure_days.c.day >= first_day().isoformat()
    sums = select(failure_days.c.shape, runs, callers).where(*of_skill).group_by(failure_days.c.shape)
    if shape is not None:
        sums = sums.where(failure_days.c.shape == shape)
    rows = connection.execute(sums.order_by(runs.desc(), failure_days.c.shape).limit(1))
    groups = [_Group(skill_id, key, int(count), of_callers) for key, count, of_callers in rows]
    return next(iter(_described(connection, identity, groups, {skill_id: name}, DAYS)), None)


Sort = Literal["harm", "newest"]


def read_failures(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    skill: str,
    namespace: str,
    days: int,
    sort: Sort,
    limit: int,
    cursor: str,
) -> FailurePage:
    """Return a page of the failures of the skills that the identity may publish, or of all skills for an admin.

    Raise InvalidCursor if the cursor belongs to another listing.
    """
    bound_to = ("list_failures", skill, namespace, str(days), sort)
    first = first_day(days).isoformat()
    names = _names(connection, identity, skill, namespace, first)
    dialect, view = connection.dialect.name, view_of(identity)
    of_skills = failure_days.c.day >= first, is_among(dialect, failure_days.c.skill_id, "ids")
    runs, callers = func.sum(failure_days.c.runs), func.count(distinct(failure_days.c.caller))
    sums = select(
        failure_days.c.skill_id,
        failure_days.c.shape,
        runs.label("runs"),
        callers.label("callers"),
        (runs * callers if sort == "harm" else func.max(failure_days.c.last_at)).label("rank"),
    ).where(*of_skills)
    if view is not None:
        sums = sums.join(skill_versions, skill_versions.c.id == failure_days.c.version_id).where(seen_version(view))
    grouped = sums.group_by(failure_days.c.skill_id, failure_days.c.shape).subquery()
    position = (grouped.c.rank, grouped.c.skill_id, grouped.c.shape)
    statement = select(grouped).order_by(*(column.desc() for column in position)).limit(limit + 1)
    if cursor:
        rank, skill_id, shape = read_cursor(key, bound_to, cursor, 3)
        last: Any = int(rank) if sort == "harm" else datetime.fromisoformat(rank)
        types = [column.type for column in position]
        statement = statement.where(tuple_(*position) < tuple_(last, int(skill_id), shape, types=types))
    values = {"ids": as_list(dialect, list(names)), **parameters(identity)}
    rows = connection.execute(statement, values).all() if names else []
    next_cursor = make_cursor(key, bound_to, _position(rows[limit - 1], sort)) if len(rows) > limit else None
    groups = [_Group(row.skill_id, row.shape, int(row.runs), row.callers) for row in rows[:limit]]
    return FailurePage(_described(connection, identity, groups, names, days) if groups else [], next_cursor)


def _position(row: Row[Any], sort: Sort) -> tuple[str, str, str]:
    rank = str(int(row.rank)) if sort == "harm" else in_utc(row.rank).isoformat()
    return rank, str(row.skill_id), row.shape


def _names(connection: Connection, identity: Identity, skill: str, namespace: str, first: str) -> dict[int, str]:
    """Return the skills that failed, whose failures the identity may see, by id."""
    if not access.allows(identity, "publish"):
        return {}
    is_failing = skills.c.id.in_(select(failure_days.c.skill_id).where(failure_days.c.day >= first))
    statement = select(skills.c.id, skills.c.name).where(is_failing)
    if skill:
        statement = statement.where(skills.c.name == skill)
    if namespace:
        # "/" follows "." in ASCII, so the names below a namespace are those between the two.
        statement = statement.where(skills.c.name >= f"{namespace}.", skills.c.name < f"{namespace}/")
    if (view := view_of(identity)) is not None:
        statement = statement.where(sees_each(view, skills, skills.c.id))
    rows = connection.execute(statement, parameters(identity))
    return {row.id: row.name for row in rows if access.covers(identity, row.name)}


# -- What a group has besides its sums ---------------------------------------------------------------------------------


class _Version(NamedTuple):
    id: int
    skill_id: int
    version: str
    precedence: bytes


_VERSIONS = select(*(skill_versions.c[name] for name in _Version._fields))


class _Ends(NamedTuple):
    """The ended runs of a version."""

    completed: int = 0
    failed: int = 0

    @property
    def rate(self) -> float:
        return self.failed / max(1, self.completed + self.failed)


class _Details(NamedTuple):
    """The versions and the days of a group, and its last run."""

    failing: list[_Version]
    """The failing versions, lowest first."""
    before: _Version | None
    runs_by_day: dict[str, int]
    last: Row[Any]


def _described(
    connection: Connection, identity: Identity, groups: Sequence[_Group], names: dict[int, str], days: int
) -> list[FailureGroup]:
    """Return the groups with their versions, their days and their last run."""
    of_skills = [group.skill_id for group in groups]
    details = _details(connection, identity, groups)
    versions = [version for of_group in details.values() for version in (*of_group.failing, of_group.before) if version]
    counted = select(version_usage.c.version_id, version_usage.c.outcome, func.sum(version_usage.c.runs))
    of_versions = version_usage.c.version_id.in_({version.id for version in versions})
    ends = defaultdict[int, _Ends](_Ends)
    grouped = counted.where(of_versions, version_usage.c.outcome != "cancelled").group_by(*counted.selected_columns[:2])
    for version_id, outcome, runs in connection.execute(grouped):
        ends[version_id] = ends[version_id]._replace(**{outcome: int(runs)})
    pointing = connection.execute(select(labels).where(labels.c.skill_id.in_(of_skills)).order_by(labels.c.label))
    labels_of = defaultdict[int, list[str]](list)
    for row in pointing:
        labels_of[row.version_id].append(row.label)
    return [
        _answer(identity, names[group.skill_id], group, of_group, ends, labels_of, days)
        for group in groups
        if (of_group := details.get(group))
    ]


def _details(connection: Connection, identity: Identity, groups: Sequence[_Group]) -> dict[_Group, _Details]:
    """Return the details of the groups, as far as the identity sees their versions."""
    view = view_of(identity)
    counted = (
        select(failure_days.c.skill_id, failure_days.c.shape, failure_days.c.version_id, failure_days.c.day)
        .add_columns(func.sum(failure_days.c.runs).label("runs"))
        .where(failure_days.c.skill_id.in_({group.skill_id for group in groups}))
        .where(failure_days.c.shape.in_({group.shape for group in groups}))
    )
    rows = connection.execute(counted.group_by(*counted.selected_columns[:4])).all()
    of_rows = _VERSIONS.where(skill_versions.c.id.in_({row.version_id for row in rows}))
    if view is not None:
        of_rows = of_rows.join(skills, skills.c.id == skill_versions.c.skill_id).where(seen_version(view))
    versions = {row.id: _Version(*row) for row in connection.execute(of_rows, parameters(identity))}
    details = {}
    for group in groups:
        of_group = [row for row in rows if row[:2] == (group.skill_id, group.shape) and row.version_id in versions]
        if not of_group:
            continue
        failing = {versions[row.version_id] for row in of_group}
        by_day = defaultdict[str, int](int)
        for row in of_group:
            by_day[row.day] += int(row.runs)
        last = select(failure_days).where(
            failure_days.c.skill_id == group.skill_id,
            failure_days.c.shape == group.shape,
            failure_days.c.version_id.in_({version.id for version in failing}),
        )
        lowest_first = sorted(failing, key=lambda version: version.precedence)
        details[group] = _Details(
            lowest_first,
            _release_before(connection, lowest_first[0]),
            by_day,
            connection.execute(last.order_by(failure_days.c.last_at.desc()).limit(1)).one(),
        )
    return details


def _release_before(connection: Connection, version: _Version) -> _Version | None:
    """Return the highest release below a version, if there is one that resolves."""
    below = _VERSIONS.where(
        skill_versions.c.skill_id == version.skill_id,
        skill_versions.c.precedence < version.precedence,
        skill_versions.c.is_release,
        skill_versions.c.status.in_(RESOLVABLE),
    )
    row = connection.execute(below.order_by(skill_versions.c.precedence.desc()).limit(1)).one_or_none()
    return _Version(*row) if row else None


def _answer(
    identity: Identity,
    name: str,
    group: _Group,
    details: _Details,
    ends: Mapping[int, _Ends],
    labels_of: Mapping[int, list[str]],
    days: int,
) -> FailureGroup:
    last, before, failing = details.last, details.before, details.failing
    sees_run = last.caller == identity.name or access.is_admin(identity)
    ends_before = ends[before.id] if before else _Ends()
    is_known = sum(ends_before) >= ENOUGH_RUNS
    to_move = [
        label
        for version in failing
        for label in labels_of[version.id]
        if ends_before.completed >= ENOUGH_RUNS and ends_before.rate <= MOST_OF_RATE * ends[version.id].rate
    ]
    first = first_day(days)
    return FailureGroup(
        skill=name,
        error_type=last.error_type,
        message=last.message if sees_run else pattern_of(last.error_type, last.message),
        place=last.place,
        runs=group.runs,
        callers=group.callers,
        days=[details.runs_by_day.get((first + timedelta(days=number)).isoformat(), 0) for number in range(days)],
        since_version=failing[0].version,
        last_version=next(version.version for version in failing if version.id == last.version_id),
        first_day=min(details.runs_by_day),
        last_at=in_utc(last.last_at),
        last_run_id=last.last_run_id if sees_run else None,
        before=VersionBefore(before.version, sum(ends_before)) if before and is_known else None,
        rollback=Rollback(to_move, before.version) if before and to_move and access.publishes(identity, name) else None,
    )


# -- list_failures -----------------------------------------------------------------------------------------------------


class ListFailures(Params, frozen=True, kw_only=True):
    """List which skills fail, most harm first: the failures of your skills, or of all skills for admins."""

    skill: Annotated[str, about("Only failures of this skill")] = ""
    namespace: Annotated[str, about("Only skills of this namespace and below it")] = ""
    days: Annotated[int, Meta(ge=1, le=INSIGHT_DAYS), about("Only failures of this many days")] = DAYS
    sort: Annotated[Sort, about("By failed runs times callers (harm), or the last failure first (newest)")] = "harm"
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_failures(registry: Registry, identity: Identity, params: ListFailures) -> FailurePage:
    work = partial(
        read_failures,
        identity=identity,
        key=registry.cursor_key,
        skill=parse_skill_name(params.skill) if params.skill else "",
        namespace=parse_namespace(params.namespace) if params.namespace else "",
        days=params.days,
        sort=params.sort,
        limit=params.limit,
        cursor=params.cursor,
    )
    return await registry.read_page(work)


METHODS = (Method(list_failures, "read", audits=""),)
