"""Insight for admins and for publishers of a namespace: what is used and by whom, and what callers search for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    and_,
    case,
    cast,
    func,
    null,
    or_,
    select,
    true,
)

from skillery.backends import Identity
from skillery.database.tables import catalogue, search_days, skill_versions, skills, use_days
from skillery.errors import NotAllowed
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.identity import access
from skillery.method import Method, Params, about
from skillery.registry.searches import COUNTED as SEARCHED
from skillery.registry.usage import DETAILED_DAYS, durations_by_day, first_day, p95_buckets, p95_of, percentiles_of
from skillery.registry.uses import ContentParts
from skillery.registry.visibility import View, parameters, seen_version, sees_each, view_of
from skillery.skills.catalogue_filters import is_listed

MOST_VERSIONS = 50
FEWEST_CALLERS = 3
"""Publishers see the words of searches by at least this many callers. Admins see all words."""
Days = Annotated[int, Meta(ge=1, le=90), about("Number of days until today", default=30)]
InNamespace = Annotated[str, about("Only skills of this namespace and below it")]
MostRows = Annotated[int, Meta(ge=1, le=1000), about("Maximum number of rows", default=20)]


def has_insight(identity: Identity) -> bool:
    return access.is_admin(identity) or ("publish" in identity.scopes and bool(identity.namespaces))


def require_insight(identity: Identity) -> None:
    """Raise NotAllowed for callers who are neither admins nor publishers with a namespace grant."""
    if not has_insight(identity):
        raise NotAllowed(
            f"'{identity.name}' is no admin, and has no namespace to publish in",
            hint="Ask an admin for a token with the scope 'publish' and a namespace grant.",
        )


def insight_into(identity: Identity, namespace: str, rows: FromClause, skill_id: ColumnElement[int]) -> Any:
    """Return the SQL condition for the skills that an identity has insight into: those that its grants cover and that
    it sees. `parameters` has the parameters.
    """
    where: list[ColumnElement[bool]] = [_below(rows, namespace) if namespace else true()]
    if not access.is_admin(identity) and "*" not in identity.namespaces:
        wide = [_below(rows, grant[:-2]) for grant in identity.namespaces if grant.endswith(".*")]
        where.append(or_(rows.c.name.in_(identity.namespaces), *wide))
    if (view := view_of(identity)) is not None:
        where.append(sees_each(view, rows, skill_id))
    return and_(*where)


def _below(rows: FromClause, namespace: str) -> ColumnElement[bool]:
    # "/" follows "." in ASCII, so the names below a namespace are those between the two.
    return and_(rows.c.name >= f"{namespace}.", rows.c.name < f"{namespace}/")


# -- get_activity ------------------------------------------------------------------------------------------------------


class Activity(msgspec.Struct, frozen=True):
    """Sums of uses in a period."""

    runs: int
    """Ended runs, with runs that other runs started."""
    completed: int
    failed: int
    loads: int
    """Reads of SKILL.md, of `describe_skill` in full, and of whole versions, by programs."""
    busy_ms: int
    callers: Annotated[int, Meta(description="Different callers. They are known for the last 35 days")]


class ActivityDay(Activity, frozen=True):
    """The uses of one day."""

    day: date
    """The day in UTC."""
    p95_ms: float | None


class SkillActivity(Activity, frozen=True):
    """The uses of a skill."""

    name: str
    p95_ms: Annotated[float | None, Meta(description="95th percentile of completed runs of the last 35 days")]
    last_day: Annotated[date | None, Meta(description="Of an unused skill, the last day before the period")]


class CallerActivity(Activity, frozen=True):
    """The uses by a caller."""

    caller: str
    skills: int
    last_day: date | None


class VersionActivity(Activity, frozen=True):
    """The uses of a version of a skill."""

    version: Annotated[str | None, Meta(description="null for uses before versions were counted")]
    uses_by_day: Annotated[list[int], Meta(description="Runs and loads of each day, oldest first")]


class ActivityReport(msgspec.Struct, frozen=True):
    """The result of get_activity."""

    total: Activity
    before: Annotated[Activity, Meta(description="The same number of days before")]
    p95_ms: Annotated[float | None, Meta(description="95th percentile of completed runs of the last 35 days")]
    p95_before_ms: Annotated[float | None, Meta(description="That of the days before, if all are in the last 35 days")]
    days: Annotated[list[ActivityDay], Meta(description="Each day, oldest first")]
    skills: list[SkillActivity]
    callers: Annotated[list[CallerActivity], Meta(description="Empty with insight.callers = false")]
    unused: Annotated[int, Meta(description="Number of listed skills without a use")]
    versions: Annotated[list[VersionActivity], Meta(description="Of the requested skill, highest version first")]


class GetActivity(Params, frozen=True, kw_only=True):
    """Return what is used and by whom: sums, days, skills and callers."""

    namespace: InNamespace = ""
    skill: Annotated[str, about("Only this skill, with its versions")] = ""
    days: Days = 30
    sort: Annotated[
        Literal["used", "callers", "failed", "busy", "slow", "deprecated", "unused"],
        about(
            "Order of the skills: by uses, callers, failed runs, busy time or 95th percentile; deprecated skills that "
            "are used; or the skills without a use"
        ),
    ] = "used"
    limit: MostRows = 20


_SUMMED = ("runs", "completed", "failed", "loads", "busy_ms")
_used = or_(use_days.c.runs > 0, use_days.c.loads > 0)
_caller = case((_used, func.nullif(use_days.c.caller, "")), else_=null())
_CALLERS = func.count(_caller.distinct()).label("callers")
_SUMS = (*(func.coalesce(func.sum(use_days.c[name]), 0).label(name) for name in _SUMMED), _CALLERS)
_USES, _LAST = func.sum(use_days.c.runs + use_days.c.loads), func.max(case((_used, use_days.c.day), else_=null()))
_ORDERS: Mapping[str, ColumnElement[Any]] = {
    "used": _USES,
    "callers": _CALLERS,
    "failed": func.sum(use_days.c.failed),
    "busy": func.sum(use_days.c.busy_ms),
}


def read_activity(
    connection: Connection, identity: Identity, params: GetActivity, names_callers: bool
) -> ActivityReport:
    """Return the activity of the skills that the identity has insight into."""
    first, values = first_day(params.days), parameters(identity)
    empty: dict[str, Any] = dict.fromkeys((*_SUMMED, "callers"), 0)
    days = [first + timedelta(days=number) for number in range(-params.days, params.days)]
    scope = insight_into(identity, params.namespace, skills, skills.c.id)
    if params.skill:
        scope = and_(scope, skills.c.name == params.skill)

    def rows(*columns: Any, since: date = first) -> Any:
        # An outer join begins with the uses. In an inner join, SQLite reads all skills first.
        statement = select(*columns).outerjoin_from(use_days, skills, skills.c.id == use_days.c.skill_id)
        return statement.where(use_days.c.day >= since.isoformat(), scope)

    def read(statement: Any) -> Sequence[Any]:
        return connection.execute(statement, values).all()

    is_recent = case((use_days.c.day >= first.isoformat(), 1), else_=0).label("is_recent")
    callers_of = dict(map(tuple, read(rows(is_recent, _CALLERS, since=days[0]).group_by("is_recent"))))
    by_day = {row.day: _counts(row) for row in read(rows(use_days.c.day, *_SUMS, since=days[0]).group_by("day"))}
    durations = durations_by_day(connection, days[0], scope, values)
    activity = [
        ActivityDay(**by_day.get(day.isoformat(), empty), day=day, p95_ms=p95_of([durations[day.isoformat()]]))
        for day in days
    ]
    callers: Sequence[Any] = ()
    if names_callers:
        of_skills = func.count(use_days.c.skill_id.distinct()).label("skills")
        named = rows(use_days.c.caller, *_SUMS, of_skills, _LAST.label("last_day"))
        named = named.where(use_days.c.caller != "", _used).group_by(use_days.c.caller)
        callers = read(named.order_by(_USES.desc(), use_days.c.caller).limit(params.limit))
    used_ids = rows(use_days.c.skill_id).where(_used)
    listed = insight_into(identity, params.namespace, catalogue, catalogue.c.skill_id)
    unused = select(catalogue.c.name).where(is_listed(), listed, catalogue.c.skill_id.not_in(used_ids))
    if params.sort == "unused":
        page = unused.add_columns(catalogue.c.skill_id).order_by(catalogue.c.name).limit(params.limit).subquery()
        earlier = select(use_days.c.day).where(use_days.c.skill_id == page.c.skill_id, _used)
        last_day = earlier.order_by(use_days.c.day.desc()).limit(1).scalar_subquery()
        top: Sequence[Any] = [
            SkillActivity(**empty, name=name, p95_ms=None, last_day=_day(day))
            for name, day in read(select(page.c.name, last_day).order_by(page.c.name))
        ]
    else:
        by_skill = rows(skills.c.id, skills.c.name, *_SUMS, _LAST.label("last_day")).where(_used)
        by_skill = by_skill.group_by(skills.c.id, skills.c.name)
        order = _ORDERS.get(params.sort, _USES)
        if params.sort == "deprecated":
            deprecated = select(catalogue.c.skill_id).where(catalogue.c.status == "deprecated")
            by_skill = by_skill.where(skills.c.id.in_(deprecated))
        elif params.sort == "slow":
            slowest = p95_buckets(first)
            by_skill, order = by_skill.join(slowest, slowest.c.skill_id == skills.c.id), func.max(slowest.c.bucket)
        used_rows = read(by_skill.order_by(order.desc(), skills.c.name).limit(params.limit))
        slow = percentiles_of(connection, first, [row.id for row in used_rows])
        top = [
            SkillActivity(**_counts(row), name=row.name, p95_ms=slow.get(row.id), last_day=_day(row.last_day))
            for row in used_rows
        ]
    return ActivityReport(
        total=_total(activity[params.days :], callers_of.get(1, 0)),
        before=_total(activity[: params.days], callers_of.get(0, 0)),
        p95_ms=p95_of(durations[day.isoformat()] for day in days[params.days :]),
        p95_before_ms=p95_of(durations[day.isoformat()] for day in days[: params.days] if len(days) <= DETAILED_DAYS),
        days=activity[params.days :],
        skills=list(top),
        callers=[
            CallerActivity(**_counts(row), caller=row.caller, skills=row.skills, last_day=_day(row.last_day))
            for row in callers
        ],
        unused=connection.scalar(select(func.count()).select_from(unused.subquery()), values) or 0,
        versions=_versions(read, rows, view_of(identity), days[params.days :]) if params.skill else [],
    )


def _versions(
    read: Callable[[Any], Sequence[Any]], rows: Callable[..., Any], view: View | None, days: Sequence[date]
) -> list[VersionActivity]:
    """Return the uses of each version that the view sees. `rows` makes a statement about the uses of the skill."""
    of_day, uses = (use_days.c.version_id, use_days.c.day), func.sum(use_days.c.runs + use_days.c.loads)
    uses_of = {(row[0], row[1]): int(row[2]) for row in read(rows(*of_day, uses).group_by(*of_day))}
    sums = rows(use_days.c.version_id, skill_versions.c.version, *_SUMS).where(_used)
    sums = sums.outerjoin(skill_versions, skill_versions.c.id == use_days.c.version_id)
    if view is not None:
        sums = sums.where(or_(skill_versions.c.id.is_(None), seen_version(view)))
    precedence = skill_versions.c.precedence
    sums = sums.group_by(use_days.c.version_id, skill_versions.c.version, precedence).order_by(precedence.desc())
    return [
        VersionActivity(
            **_counts(row),
            version=row.version,
            uses_by_day=[uses_of.get((row.version_id, day.isoformat()), 0) for day in days],
        )
        for row in read(sums.limit(MOST_VERSIONS))
    ]


def _counts(row: Any) -> dict[str, Any]:
    return {name: int(getattr(row, name)) for name in (*_SUMMED, "callers")}


def _total(days: Sequence[ActivityDay], callers: int) -> Activity:
    return Activity(**{name: sum(getattr(day, name) for day in days) for name in _SUMMED}, callers=callers)


def _day(text: str | None) -> date | None:
    return date.fromisoformat(text) if text else None


async def get_activity(contents: ContentParts, identity: Identity, params: GetActivity) -> ActivityReport:
    require_insight(identity)
    parse_namespace(params.namespace)
    if params.skill:
        parse_skill_name(params.skill)
    work = partial(read_activity, identity=identity, params=params, names_callers=contents.uses.searches.names_callers)
    return await contents.registry.read_page(work)


# -- list_searches -----------------------------------------------------------------------------------------------------


class SearchedWords(msgspec.Struct, frozen=True):
    """The searches for the same words."""

    words: str
    times: int
    matched: Annotated[int, Meta(description="Searches with at least one result")]
    opened: Annotated[int, Meta(description="Searches after which the caller described, read or ran a result")]
    callers: Annotated[int, Meta(description="Different callers; 0 with insight.callers = false")]
    last_day: date


class SearchesPage(msgspec.Struct, frozen=True):
    """Searches, those of most callers first."""

    searches: list[SearchedWords]


class ListSearches(Params, frozen=True, kw_only=True):
    """List what callers searched for. `wanted` selects the words that led to no skill."""

    wanted: Annotated[bool, about("Only words whose searches found nothing or led nowhere", default=False)] = False
    days: Days = 30
    limit: MostRows = 20


def read_searches(connection: Connection, identity: Identity, params: ListSearches) -> SearchesPage:
    """Return the searches of the last days. Publishers see words that several callers used."""
    sums = {name: cast(func.sum(search_days.c[name]), BigInteger).label(name) for name in SEARCHED}
    callers = func.count(func.nullif(search_days.c.caller, "").distinct()).label("callers")
    statement = (
        select(search_days.c.words, *sums.values(), callers, func.max(search_days.c.day).label("last_day"))
        .where(search_days.c.day >= first_day(params.days).isoformat())
        .group_by(search_days.c.words)
        .having(sums["times"] > 0)
        .order_by(callers.desc(), sums["times"].desc(), search_days.c.words)
        .limit(params.limit)
    )
    if params.wanted:
        statement = statement.having(sums["opened"] == 0)
    if not access.is_admin(identity):
        statement = statement.having(callers >= FEWEST_CALLERS)
    return SearchesPage(
        [
            SearchedWords(row.words, row.times, row.matched, row.opened, row.callers, date.fromisoformat(row.last_day))
            for row in connection.execute(statement)
        ]
    )


async def list_searches(contents: ContentParts, identity: Identity, params: ListSearches) -> SearchesPage:
    require_insight(identity)
    return await contents.registry.read_page(partial(read_searches, identity=identity, params=params))


METHODS = (Method(get_activity, "publish", audits=""), Method(list_searches, "publish", audits=""))
