"""list_versions: the versions of one skill or of all skills, for example with the status `in_review` or `yanked`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import (
    ColumnElement,
    Connection,
    Exists,
    Row,
    Select,
    and_,
    bindparam,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    union_all,
)

from skillery.backends import Identity, Provenance
from skillery.database import Statement, in_utc
from skillery.database.registry import Registry
from skillery.database.tables import RESOLVABLE, attestations, recertifications, skill_files, skill_versions, skills
from skillery.formats.manifest import Kind
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.npm import NPM_LOCK
from skillery.formats.requirements import LOCK
from skillery.formats.script_blocks import LOCK_ENDING, LOCKS
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.identity import access
from skillery.identity.access import Who
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.registry.cursors import NextCursor, make_cursor, read_cursor
from skillery.registry.resolution import find_skill, resolve, skill_not_found
from skillery.registry.version_rows import Status
from skillery.registry.visibility import View, in_grants, is_own, parameters, seen_by_name, seen_version, view_of


class ListedVersion(msgspec.Struct, frozen=True):
    """A version of a skill."""

    name: str
    version: str
    status: Status
    digest: str
    kind: Kind
    publisher: Who
    created_at: datetime
    size_bytes: int
    provenance: Annotated[Provenance | None, Meta(description="The CI job that published the version")] = None


class VersionPage(msgspec.Struct, frozen=True):
    """A page of versions, in the order of their creation, most recent first by default."""

    versions: list[ListedVersion]
    next_cursor: NextCursor


_provenance = msgspec.json.Decoder(Provenance)
_LISTED = select(
    skill_versions.c.id,
    skills.c.name,
    skill_versions.c.version,
    skill_versions.c.status,
    skill_versions.c.digest,
    skill_versions.c.kind,
    skill_versions.c.publisher,
    skill_versions.c.publisher_kind,
    skill_versions.c.created_at,
    skill_versions.c.size_bytes,
    skill_versions.c.provenance_json,
).join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)


_passed = attestations.alias()


def _is_published(version_id: ColumnElement[int]) -> Exists:
    # Not a join: in a join with a small table, SQLite reads all versions.
    published = skill_versions.c.status.in_([literal_column(f"'{status}'") for status in RESOLVABLE])
    return exists().where(skill_versions.c.id == version_id, published)


# Each part uses a partial index, which needs literal statuses.
_WAITING = union_all(
    select(skill_versions.c.id).where(
        # SQLite uses the partial index only for its own condition.
        skill_versions.c.status.in_([literal_column("'draft'"), literal_column("'in_review'")]),
        skill_versions.c.status == literal_column("'in_review'"),
    ),
    select(attestations.c.version_id).where(
        attestations.c.predicate == literal_column("'passed'"),
        attestations.c.ended_at.is_not(None),
        _is_published(attestations.c.version_id),
        ~exists().where(
            _passed.c.version_id == attestations.c.version_id,
            _passed.c.predicate == literal_column("'passed'"),
            _passed.c.ended_at.is_(None),
        ),
    ),
    select(recertifications.c.version_id).where(_is_published(recertifications.c.version_id)),
)


def read_versions(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    name: str,
    status: Status | Literal["", "waiting"],
    namespace: str,
    limit: int,
    cursor: str,
    oldest_first: bool = False,
) -> VersionPage:
    """Return a page of the versions that the identity sees, most recently created first, or `oldest_first`.

    "" as `name`, `status` or `namespace` matches all versions. The status `waiting` matches versions that wait for a
    reviewer. `key` signs the cursors.

    Raise SkillNotFound if the identity sees no skill `name`, and InvalidCursor if the cursor belongs to another list.
    """
    bound_to = _bound_to(identity, name, status, namespace, oldest_first)
    where = [*_conditions_for(identity), *_filters(status, namespace)]
    if name:
        skill_id = find_skill(connection, identity, name)
        if skill_id is None:
            raise skill_not_found(connection, identity, name)
        where.append(skill_versions.c.skill_id == skill_id)
    if cursor:
        last = int(read_cursor(key, bound_to, cursor, 1)[0])
        where.append(skill_versions.c.id > last if oldest_first else skill_versions.c.id < last)
    order = skill_versions.c.id.asc() if oldest_first else skill_versions.c.id.desc()
    statement: Select[Any] = _LISTED.where(*where).order_by(order).limit(limit + 1)
    rows = connection.execute(statement, parameters(identity)).all()
    page = rows[:limit]
    next_cursor = make_cursor(key, bound_to, (str(page[-1].id),)) if len(rows) > limit else None
    return VersionPage([_row(row) for row in page], next_cursor)


def find_version(connection: Connection, *, identity: Identity, name: str, version: str) -> ListedVersion:
    """Return one version as list_versions shows it.

    Raise SkillNotFound or VersionNotFound if the identity sees no such version.
    """
    return _row(_find(connection, identity, name, version))


def cursor_after_version(
    connection: Connection, *, identity: Identity, key: bytes, name: str, version: str, oldest_first: bool = False
) -> str:
    """Return a cursor for list_versions, with which the list continues after the given version of the skill.

    Raise SkillNotFound or VersionNotFound if the identity sees no such version.
    """
    row = _find(connection, identity, name, version)
    return make_cursor(key, _bound_to(identity, name, "", "", oldest_first), (str(row.id),))


def _bound_to(identity: Identity, name: str, status: str, namespace: str, oldest_first: bool) -> tuple[str, ...]:
    """Return the texts of the query for which a cursor is valid."""
    bound_to = ("list_versions", identity.name, name, status, namespace)
    return (*bound_to, "asc") if oldest_first else bound_to


def descriptions_of(connection: Connection, *, name: str, versions: Sequence[str]) -> dict[str, str]:
    """Return the descriptions of versions of a skill, by version number. The description of a purged version is ""."""
    statement = (
        select(skill_versions.c.version, skill_versions.c.names_json)
        .join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
        .where(skills.c.name == name, skill_versions.c.version.in_(versions))
    )
    rows = connection.execute(statement)
    return {version: msgspec.json.decode(item).get("description", "") for version, item in rows}


def _find(connection: Connection, identity: Identity, name: str, version: str) -> Row[Any]:
    """Return the row of a version for list_versions. Raise SkillNotFound or VersionNotFound."""
    row = resolve(connection, identity, name, Exact(Version.parse(version)), manages=True)
    statement: Select[Any] = _LISTED.where(skill_versions.c.id == row.version_id)
    return connection.execute(statement).one()


def ages(
    connection: Connection, *, identity: Identity, names: Sequence[str]
) -> dict[str, tuple[datetime | None, datetime | None]]:
    """Return the creation times of the first and the last version of each skill in `names`, by name.

    Only versions that the identity sees count.
    """
    first, last = func.min(skill_versions.c.created_at), func.max(skill_versions.c.created_at)
    statement = (
        select(skills.c.name, first, last)
        .join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
        .where(skills.c.name.in_(names), *_conditions_for(identity))
        .group_by(skills.c.name)
    )
    rows = connection.execute(statement, parameters(identity))
    return {name: (in_utc(first_at), in_utc(last_at)) for name, first_at, last_at in rows}


def _filters(status: str, namespace: str) -> list[ColumnElement[bool]]:
    """Return the SQL conditions for versions with a status, in a namespace and below it. "" adds no condition."""
    where: list[ColumnElement[bool]] = []
    if status == "waiting":
        where.append(skill_versions.c.id.in_(_WAITING))
    elif status:
        # Written into the statement: only then can a database use a partial index.
        where.append(skill_versions.c.status == literal_column(f"'{status}'"))
    if namespace:
        # "/" follows "." in the order of bytes.
        below = skill_versions.c.namespace.between(f"{namespace}.", f"{namespace}/")
        where.append(or_(skill_versions.c.namespace == namespace, below))
    return where


def _conditions_for(identity: Identity) -> list[ColumnElement[bool]]:
    """Return the SQL conditions, on `skills` and `skill_versions`, for the versions that the identity sees."""
    view = view_of(identity)
    if view is None:
        return []
    return [or_(*seen_by_name(view), is_own()), seen_version(view)]


def _row(row: Row[Any]) -> ListedVersion:
    """Return a row of _LISTED as list_versions shows it."""
    return ListedVersion(
        name=row.name,
        version=row.version,
        status=row.status,
        digest=row.digest,
        kind=row.kind,
        publisher=Who(row.publisher, row.publisher_kind),
        created_at=in_utc(row.created_at),
        size_bytes=row.size_bytes,
        provenance=_provenance.decode(row.provenance_json) if row.provenance_json else None,
    )


def versions_with_lock(connection: Connection, identity: Identity, sha256: str, limit: int) -> list[dict[str, str]]:
    """Return at most `limit` visible versions of which a lock has the given SHA-256.

    Each item has `name`, `version` and `status`. The items are sorted by name, the newest version first.
    """
    declares = skill_versions.c.manifest_json.contains('"dependencies":')
    is_lock = and_(skill_files.c.path == LOCK, declares)
    other_lock = or_(skill_files.c.path == NPM_LOCK, skill_files.c.path.like(f"{LOCKS}%{LOCK_ENDING}"))
    statement = (
        select(skills.c.name, skill_versions.c.version, skill_versions.c.status)
        .join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
        .join(skill_files, skill_files.c.version_id == skill_versions.c.id)
        .where(skill_files.c.sha256 == sha256, or_(is_lock, other_lock))
        .where(*_conditions_for(identity))
        .order_by(skills.c.name, skill_versions.c.id.desc())
        .limit(limit)
    )
    return [dict(row._mapping) for row in connection.execute(statement, parameters(identity))]


def count_waiting_reviews(connection: Connection, identity: Identity, most: int) -> int:
    """Return how many versions wait for a review that the identity may make, at most `most`."""
    names = [namespace for namespace in identity.namespaces if not namespace.endswith("*")]
    values = parameters(identity) | {f"name_{place}": name for place, name in enumerate(names)}
    rows = _waiting_names(view_of(identity), len(names)).rows(connection, most=most, **values)
    return sum(access.reviews(identity, name) for (name,) in rows)


@lru_cache(256)
def _waiting_names(view: View | None, names: int) -> Statement:
    """Return the statement for identities with this view and with grants for this number of single skills.

    To build and compile it takes ten times as long as to execute it.
    """
    of_versions = skill_versions.c.skill_id == skills.c.id, skill_versions.c.id.in_(_WAITING)
    statement = select(skills.c.name).where(*of_versions).limit(bindparam("most"))
    if view is not None and not view.grants_all:
        named = [skills.c.name == bindparam(f"name_{place}") for place in range(names)]
        statement = statement.where(or_(false(), *named, *in_grants(view)))
    return Statement(statement)


# -- list_versions -----------------------------------------------------------------------------------------------------


class ListVersions(Params, frozen=True, kw_only=True):
    """List versions of a skill or of all skills, the most recently created first."""

    name: Annotated[str, about("Only versions of this skill")] = ""
    status: Annotated[
        Literal["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"] | msgspec.UnsetType,
        about("Only versions with this status (e.g., 'in_review' for versions that wait for a reviewer)"),
    ] = msgspec.UNSET
    waiting: Annotated[
        bool,
        about("Only versions that wait for a reviewer: in review, or published and to be approved again"),
    ] = False
    namespace: Annotated[str, about("Only versions in this namespace and below it")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_versions(registry: Registry, identity: Identity, params: ListVersions) -> VersionPage:
    work = partial(
        read_versions,
        identity=identity,
        key=registry.cursor_key,
        name=parse_skill_name(params.name) if params.name else "",
        status="waiting" if params.waiting else "" if params.status is msgspec.UNSET else params.status,
        namespace=parse_namespace(params.namespace) if params.namespace else "",
        limit=params.limit,
        cursor=params.cursor,
    )
    # Slow: with a filter, one page may read many rows.
    return await registry.read_page(work)


METHODS = (Method(list_versions, "read", audits=""),)
