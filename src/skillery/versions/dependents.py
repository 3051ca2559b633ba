"""The versions that require a version: list_dependents, the findings about withdrawn required versions, and the skills
around a skill.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, cast

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, FromClause, and_, bindparam, exists, func, select

from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.database.tables import (
    RESOLVABLE,
    catalogue,
    skill_versions,
    skills,
    use_days,
    version_closure,
    version_requires,
)
from skillery.formats.version_spec import Latest, VersionSpec, parse_named
from skillery.method import Cursor, Method, PageLimit, Params, SkillName, about
from skillery.registry.cursors import NextCursor, make_cursor, read_cursor
from skillery.registry.requires import declared_by, read_rows, withdrawn_finding
from skillery.registry.resolution import find_skill, resolve, skill_not_found
from skillery.registry.usage import first_day
from skillery.registry.version_rows import Status, VersionRow, record_findings
from skillery.registry.visibility import parameters, seen_version, sees_each, view_of
from skillery.skills.catalogue_filters import is_listed

_MOST_TOLD = 500
"""The maximum number of dependents whose finding is an event: an event for each would hold the transaction up."""
_required = skill_versions.alias("required")
_DEPENDENTS = (
    select(
        skills.c.id.label("skill_id"),
        skills.c.name,
        skill_versions.c.id,
        skill_versions.c.version,
        skill_versions.c.status,
        skill_versions.c.digest,
        skill_versions.c.publisher,
        _required.c.version.label("requires"),
        version_closure.c.depth,
        version_closure.c.depends_on_id,
    )
    .join_from(version_closure, skill_versions, skill_versions.c.id == version_closure.c.version_id)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .join(_required, _required.c.id == version_closure.c.depends_on_id)
    .order_by(version_closure.c.version_id.desc())
)

# The dependents of each version are one range of the index, in order: a skill may have a million of them.
_REQUIRED = (
    select(_required.c.id)
    .where(
        _required.c.skill_id == bindparam("skill_id"), exists().where(version_closure.c.depends_on_id == _required.c.id)
    )
    .order_by(_required.c.id.desc())
)


class Dependent(msgspec.Struct, frozen=True):
    """A version that requires a version of the skill."""

    name: str
    version: str
    status: Status
    requires: Annotated[str, Meta(description="The version of the skill that it requires")]
    direct: Annotated[bool, Meta(description="Whether its skill.toml names the skill")]
    range: Annotated[str, Meta(description="As in its skill.toml. Empty if another required skill requires the skill")]
    runs_30d: Annotated[int, Meta(description="Ended runs of the last 30 days")]


class DependentsPage(msgspec.Struct, frozen=True):
    """A page of dependents: those of the newest required version first, each most recently created first."""

    dependents: list[Dependent]
    next_cursor: NextCursor


class ListDependents(Params, frozen=True, kw_only=True):
    """List the versions that require a skill, directly or because another required skill requires it."""

    name: SkillName
    version: Annotated[str, about("Only those that require this version (omit for all versions)")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


def read_dependents(
    connection: Connection, identity: Identity, key: bytes, name: str, spec: VersionSpec, limit: int, cursor: str
) -> DependentsPage:
    """Return a page of the dependents that the identity sees. Raise SkillNotFound, VersionNotFound or LabelNotFound if
    it does not see the skill or the version, and InvalidCursor if the cursor belongs to another listing.
    """
    if isinstance(spec, Latest):
        skill_id = find_skill(connection, identity, name)
        if skill_id is None:
            raise skill_not_found(connection, identity, name)
        required_ids = list(connection.scalars(_REQUIRED, {"skill_id": skill_id}))
    else:
        required_ids = [resolve(connection, identity, name, spec, manages=True).version_id]
    bound_to = ("list_dependents", identity.name, name, str(spec))
    last = tuple(map(int, read_cursor(key, bound_to, cursor, 2))) if cursor else (max(required_ids, default=0) + 1, 0)
    view, rows = view_of(identity), list[Any]()
    where = [sees_each(view, skills, skills.c.id), seen_version(view)] if view is not None else []
    for required_id in required_ids:
        after = [version_closure.c.version_id < last[1]] if required_id == last[0] else []
        if required_id <= last[0] and len(rows) <= limit:
            of_version = version_closure.c.depends_on_id == required_id, *after, *where
            statement = _DEPENDENTS.where(*of_version).limit(limit + 1 - len(rows))
            rows += connection.execute(statement, parameters(identity)).all()
    page = rows[:limit]
    position = (str(page[-1].depends_on_id), str(page[-1].id)) if len(rows) > limit else None
    return DependentsPage(_with_uses(connection, name, page), position and make_cursor(key, bound_to, position))


def _with_uses(connection: Connection, name: str, page: Sequence[Any]) -> list[Dependent]:
    ids = [row.id for row in page]
    of_page = select(version_requires.c.version_id, version_requires.c.spec).where(version_requires.c.name == name)
    named = connection.execute(of_page.where(version_requires.c.version_id.in_(ids)))
    ranges = {row.version_id: row.spec for row in named}
    sums = select(use_days.c.version_id, func.sum(use_days.c.runs)).group_by(use_days.c.version_id)
    of_skills = use_days.c.skill_id.in_({row.skill_id for row in page}), use_days.c.day >= first_day().isoformat()
    counts = connection.execute(sums.where(*of_skills, use_days.c.version_id.in_(ids)))
    runs = {version_id: int(count) for version_id, count in counts}
    return [
        Dependent(
            name=row.name,
            version=row.version,
            status=cast(Status, row.status),
            requires=row.requires,
            direct=row.depth == 1,
            range=ranges.get(row.id, ""),
            runs_30d=runs.get(row.id, 0),
        )
        for row in page
    ]


async def list_dependents(registry: Registry, identity: Identity, params: ListDependents) -> DependentsPage:
    name, spec = parse_named(params.name, params.version)
    work = partial(
        read_dependents,
        identity=identity,
        key=registry.cursor_key,
        name=name,
        spec=spec,
        limit=params.limit,
        cursor=params.cursor,
    )
    return await registry.read_page(work)


def tell_dependents(connection: Connection, identity: Identity, withdrawn: VersionRow, verb: str, reason: str) -> None:
    """Record the event `finding` for each version that requires a version which is yanked or purged now."""
    is_of = version_closure.c.depends_on_id == withdrawn.version_id, skill_versions.c.status.in_(RESOLVABLE)
    finding = withdrawn_finding(withdrawn, verb, reason)
    for row in connection.execute(_DEPENDENTS.where(*is_of).limit(_MOST_TOLD)).all():
        about = {"by": identity.name, "by_kind": identity.kind, "digest": row.digest, "publisher": row.publisher}
        record_findings(connection, row.name, [finding], version=row.version, status=row.status, **about)


# -- The skills around a skill, for its page ---------------------------------------------------------------------------
# Code of a skill imports and calls only skills that its version requires: `version_closure` has all these edges.

MOST_AROUND = 20
_MOST_REQUIRED, _MOST_DEPENDENTS = 50, 200
_MOST_USES = 60
_MOST_IN_A_DAY = 50
"""A caller with more rows of uses on a day is left out: programs that read all skills do not use them together."""


class NeededBy(NamedTuple):
    """A skill whose latest version requires a skill. `is_called` says whether each call is a separate run."""

    name: str
    range: str
    is_called: bool


class UsedTogether(NamedTuple):
    """A skill that the same callers used on the same days. `times` counts callers on each day."""

    name: str
    times: int


class Around(NamedTuple):
    """The skills around a skill that an identity sees, those with the most uses first."""

    needed_by: list[NeededBy]
    together: list[UsedTogether]


_direct = (
    select(version_closure.c.version_id, version_closure.c.depends_on_id)
    .where(version_closure.c.depends_on_id.in_(bindparam("required_ids", expanding=True)), version_closure.c.depth == 1)
    .order_by(version_closure.c.depends_on_id.desc(), version_closure.c.version_id.desc())
    .limit(_MOST_DEPENDENTS)
    .subquery("direct")
)
_spec = select(version_requires.c.spec).where(
    version_requires.c.version_id == _direct.c.version_id, version_requires.c.name == bindparam("required_name")
)
_NEEDED_BY = (
    select(catalogue.c.name, _spec.scalar_subquery().label("spec"), _direct.c.depends_on_id)
    .join_from(_direct, catalogue, catalogue.c.version_id == _direct.c.version_id)
    .where(is_listed())
    .order_by(catalogue.c.uses_30d.desc(), catalogue.c.name)
    .limit(MOST_AROUND)
)


def _is_use(rows: FromClause) -> ColumnElement[bool]:
    return (rows.c.runs + rows.c.loads > 0) & (rows.c.caller != "")


# The last uses of the skill, each day of a caller once; then the other skills that the caller used on that day.
_other, _any = use_days.alias("other"), use_days.alias("any_of_day")
_last_uses = (
    select(use_days.c.day, use_days.c.caller)
    .where(use_days.c.skill_id == bindparam("skill_id"), use_days.c.day >= bindparam("first"), _is_use(use_days))
    .order_by(use_days.c.day.desc())
    .limit(_MOST_USES)
    .subquery("last_uses")
)
_days = select(_last_uses).distinct().subquery("days")
_too_many = select(_any.c.skill_id).where(_any.c.day == _days.c.day, _any.c.caller == _days.c.caller)
_same_days = (
    select(_other.c.skill_id, _days.c.day, _days.c.caller)
    .distinct()
    .join_from(_days, _other, and_(_other.c.day == _days.c.day, _other.c.caller == _days.c.caller))
    .where(_other.c.skill_id != bindparam("skill_id"), _is_use(_other))
    .where(_too_many.limit(1).offset(_MOST_IN_A_DAY).scalar_subquery().is_(None))
    .subquery("same_days")
)
_times = (
    select(_same_days.c.skill_id, func.count().label("times"))
    .group_by(_same_days.c.skill_id)
    # Once is a coincidence.
    .having(func.count() > 1)
    .subquery("times")
)
_TOGETHER = (
    select(catalogue.c.name, _times.c.times)
    .join_from(_times, catalogue, catalogue.c.skill_id == _times.c.skill_id)
    .where(is_listed())
    .order_by(_times.c.times.desc(), catalogue.c.name)
    .limit(MOST_AROUND)
)


def read_around(connection: Connection, identity: Identity, skill_id: int, name: str) -> Around:
    """Return the skills around a skill that the identity sees, at most MOST_AROUND of each kind.

    No skill makes its page slow: `needed_by` comes from _MOST_DEPENDENTS versions that require the newest versions of
    the skill, and `together` from its last _MOST_USES uses in 30 days.
    """
    view, values = view_of(identity), {"skill_id": skill_id, **parameters(identity)}
    where = [sees_each(view, catalogue, catalogue.c.skill_id)] if view is not None else []
    together = connection.execute(_TOGETHER.where(*where), {**values, "first": first_day().isoformat()})
    around = Around([], [UsedTogether(row.name, int(row.times)) for row in together])
    if required_ids := list(connection.scalars(_REQUIRED.limit(_MOST_REQUIRED), values)):
        values |= {"required_ids": required_ids, "required_name": name}
        needing = connection.execute(_NEEDED_BY.where(*where), values).all()
        calls = {row.version_id for row in read_rows(connection, required_ids) if declared_by(row).is_called}
        around.needed_by.extend(NeededBy(row.name, row.spec, row.depends_on_id in calls) for row in needing)
    return around


METHODS = (Method(list_dependents, "read", audits=""),)
