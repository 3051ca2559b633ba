"""The versions that require a version: list_dependents, and the findings about withdrawn required versions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, bindparam, exists, func, select

from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.database.tables import RESOLVABLE, skill_versions, skills, use_days, version_closure, version_requires
from skillery.formats.version_spec import Latest, VersionSpec, parse_named
from skillery.method import Cursor, Method, PageLimit, Params, SkillName, about
from skillery.registry.cursors import NextCursor, make_cursor, read_cursor
from skillery.registry.requires import withdrawn_finding
from skillery.registry.resolution import find_skill, resolve, skill_not_found
from skillery.registry.usage import first_day
from skillery.registry.version_rows import Status, VersionRow, record_findings
from skillery.registry.visibility import parameters, seen_version, sees_each, view_of

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


METHODS = (Method(list_dependents, "read", audits=""),)
