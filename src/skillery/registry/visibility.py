"""The visibility of skills and versions. Answers treat invisible skills and versions as absent.

The visibility of a skill says which callers see it: all callers (`public`), callers with a grant for its name
(`namespace`), or publishers of one of its versions (`private`). Its reviewers and admins always see it. Callers who see
a skill see its published, deprecated and yanked versions, and the records of its purged versions. Other versions are
visible only to their author, to reviewers of the skill and to admins.

For one skill in Python: `sees_skill`. For one version in Python: `sees_version`. In SQL: `seen_by_namespace` and
`seen_by_name` for index ranges (with `is_own`), `sees_each` for rows that are found otherwise, and `seen_version` for
versions of visible skills.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    bindparam,
    exists,
    literal_column,
    or_,
    select,
    text,
)

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import FOREIGN_NAMESPACE, skill_versions, skills
from skillery.errors import PeopleOnly
from skillery.formats.foreign_skill import Audience
from skillery.identity import access

Visibility = Literal["public", "namespace", "private"]
Hidden = tuple[Audience, ...]
"""The audiences whose skills a list or a search omits."""
WAS_PUBLISHED = ("published", "deprecated", "yanked")
SEEN_BY_ALL = (*WAS_PUBLISHED, "purged")
"""The statuses of versions that are visible to all callers who see the skill."""

_MOST_APART = 8
"""The maximum number of grants that get separate conditions, each with its own index range."""
_CHUNK = 100
"""The number of grants that one condition combines."""

_own_versions = skill_versions.alias("own_versions")
_OWN = Statement(
    select(_own_versions.c.id)
    .where(_own_versions.c.skill_id == bindparam("skill_id"), _own_versions.c.publisher == bindparam("me"))
    .limit(literal_column("1"))
)


class View(NamedTuple):
    """The properties of an identity that determine the text of SQL statements. Its other properties are parameters."""

    grants: tuple[int, ...]
    """For each grant, the number of namespaces that `_above` returns for its prefix.

    () if no grant needs a condition, because there are no grants or one covers all names.
    """
    grants_all: bool
    is_reviewer: bool


def view_of(identity: Identity) -> View | None:
    """Return the view of an identity, or None if the identity sees all skills and statements need no condition."""
    grants_all = "*" in identity.namespaces
    if access.is_admin(identity) or ("review" in identity.scopes and (not identity.namespaces or grants_all)):
        return None
    return View(tuple(len(_above(prefix)) for prefix in _prefixes(identity)), grants_all, "review" in identity.scopes)


def parameters(identity: Identity) -> dict[str, Any]:
    """Return the SQL parameters of the conditions in this module, for an identity."""
    if view_of(identity) is None:
        return {}
    values: dict[str, Any] = {"me": identity.name}
    for place, prefix in enumerate(_prefixes(identity)):
        # "/" follows "." in the order of bytes.
        values |= {f"grant_low_{place}": f"{prefix}.", f"grant_high_{place}": f"{prefix}/"}
        values |= {f"grant_{place}_{number}": namespace for number, namespace in enumerate(_above(prefix))}
    return values


def seen_by_namespace(view: View) -> list[ColumnElement[bool]]:
    """Return conditions on the table `skills`. The identity sees a skill if one of them or `is_own` is true.

    With at most _MOST_APART grants, each condition reads a few ranges of the index (visibility, namespace, name), so
    that hidden skills are not read. More grants are combined into few conditions, which also read hidden skills.
    """
    conditions = [has_visibility("public")]
    for visibility in _granted(view):
        if view.grants_all:
            conditions.append(has_visibility(visibility))
        if len(view.grants) > _MOST_APART:
            conditions += _together(view, visibility)
            continue
        for place, above in enumerate(view.grants):
            low, high = _bound(f"grant_low_{place}"), _bound(f"grant_high_{place}")
            namespaces = [_bound(f"grant_{place}_{number}") for number in range(above)]
            is_below = and_(skills.c.namespace >= low, skills.c.namespace < high)
            conditions.append(and_(has_visibility(visibility), is_below, _in_grant(place)))
            conditions.append(and_(has_visibility(visibility), skills.c.namespace.in_(namespaces), _in_grant(place)))
        if view.grants:
            # A skill may state a namespace of others. Its name alone decides who sees it.
            # As text, because the condition of a partial index must be repeated word for word.
            conditions += [
                and_(has_visibility(visibility), text(FOREIGN_NAMESPACE), grant) for grant in in_grants(view)
            ]
    return conditions


def seen_by_name(view: View, rows: FromClause = skills) -> list[ColumnElement[bool]]:
    """Return the conditions of `seen_by_namespace` in a form for the index (visibility, name), on the table `rows`."""
    conditions = [has_visibility("public", rows)]
    for visibility in _granted(view):
        if view.grants_all:
            conditions.append(has_visibility(visibility, rows))
        if len(view.grants) > _MOST_APART:
            conditions += _together(view, visibility, rows)
        else:
            conditions += [
                and_(has_visibility(visibility, rows), _in_grant(place, rows)) for place in range(len(view.grants))
            ]
    return conditions


def is_own() -> ColumnElement[bool]:
    """Return the SQL condition for private skills that the identity has published a version of.

    The concatenation prevents the use of an index on `visibility`, so that the database starts with the versions of the
    identity.
    """
    own_skill_ids = select(_own_versions.c.skill_id).where(_own_versions.c.publisher == bindparam("me"))
    return and_(
        skills.c.id.in_(own_skill_ids), skills.c.visibility.concat(literal_column("''")) == literal_column("'private'")
    )


def seen_version(view: View) -> ColumnElement[bool]:
    """Return the SQL condition for visible versions of skills that are visible, like `sees_version` in Python."""
    statuses: list[ColumnElement[str]] = [literal_column(f"'{status}'") for status in SEEN_BY_ALL]
    return or_(skill_versions.c.status.in_(statuses), *written_or_reviewed(view))


def written_or_reviewed(
    view: View, versions: FromClause = skill_versions, names: FromClause = skills
) -> list[ColumnElement[bool]]:
    """Return conditions on `versions`, of which one is true if the identity has published the version or may review it.

    `names` is the table with the `name` of the skill.
    """
    return [versions.c.publisher == bindparam("me"), *(in_grants(view, names) if view.is_reviewer else [])]


def sees_each(view: View, rows: FromClause, skill_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the SQL condition for visible skills, on the table `rows` with their `name` and `visibility`.

    Use this condition if another condition finds the rows by an index, because it is checked for each row.
    """
    is_publisher = exists().where(_own_versions.c.publisher == bindparam("me"), _own_versions.c.skill_id == skill_id)
    return or_(*seen_by_name(view, rows), and_(has_visibility("private", rows), is_publisher))


def sees_skill(connection: Connection, identity: Identity, skill_id: int, name: str, visibility: str) -> bool:
    """Return whether the identity sees a skill."""
    if visibility == "public" or access.reviews(identity, name):
        return True
    if visibility == "namespace":
        return access.covers(identity, name)
    return bool(_OWN.rows(connection, skill_id=skill_id, me=identity.name))


def seen_names(connection: Connection, identity: Identity, names: Collection[str]) -> set[str]:
    """Return those of the skills that the identity sees."""
    rows = connection.execute(select(skills.c.id, skills.c.name, skills.c.visibility).where(skills.c.name.in_(names)))
    return {row.name for row in rows if sees_skill(connection, identity, *row)}


def hidden_audiences(identity: Identity, *, internal: bool = False) -> Hidden:
    """Return the audiences whose skills lists and searches omit for an identity. `internal` shows internal skills."""
    hidden: dict[Audience, bool] = {"people": is_model(identity), "internal": not internal}
    return tuple(audience for audience, is_hidden in hidden.items() if is_hidden)


def is_model(identity: Identity) -> bool:
    """Return whether the caller is a model: through MCP, or with the token of an agent. CI jobs are no models."""
    return identity.through_mcp or (identity.kind == "agent" and identity.provenance is None)


def require_audience(identity: Identity, name: str, audience: Audience | None) -> None:
    """Raise PeopleOnly if a model asks for a version of the skill `name` that only people may start."""
    if audience == "people" and is_model(identity):
        raise PeopleOnly(name)


def has_audience(audiences: Sequence[Audience]) -> ColumnElement[bool]:
    """Return the SQL condition on `skill_versions` for these audiences, in the form that the partial index needs."""
    values: list[ColumnElement[str]] = [literal_column(f"'{audience}'") for audience in audiences]
    return and_(skill_versions.c.audience.is_not(None), skill_versions.c.audience.in_(values))


def versions_for(audiences: Sequence[Audience]) -> Select[Any]:
    """Return the statement for the ids of all versions with these audiences."""
    return select(skill_versions.c.id).where(has_audience(audiences))


def is_for(identity: Identity, version_id: ColumnElement[int]) -> list[ColumnElement[bool]]:
    """Return conditions for versions that an identity may start: for a model, not those for people."""
    hidden = hidden_audiences(identity, internal=True)
    return [version_id.not_in(versions_for(hidden))] if hidden else []


def sees_version(identity: Identity, name: str, status: str, publisher: str) -> bool:
    """Return whether the identity sees a version with this status and publisher, if it sees the skill `name`."""
    return status in SEEN_BY_ALL or publisher == identity.name or access.reviews(identity, name)


def _together(view: View, visibility: Visibility, rows: FromClause = skills) -> list[ColumnElement[bool]]:
    """Return few conditions for many grants, because databases limit the number of conditions in a statement."""
    return [and_(has_visibility(visibility, rows), grant) for grant in in_grants(view, rows)]


def in_grants(view: View, rows: FromClause = skills) -> list[ColumnElement[bool]]:
    """Return conditions on `rows`, a table with the `name` of skills. A grant covers a skill if one of them is true.

    More than _CHUNK grants need several conditions.
    """
    places = range(len(view.grants))
    chunks = [places[start : start + _CHUNK] for start in range(0, len(places), _CHUNK)]
    return [or_(*(_in_grant(place, rows) for place in chunk)) for chunk in chunks]


def _in_grant(place: int, rows: FromClause = skills) -> ColumnElement[bool]:
    """Return the condition that the grant with the number `place` covers the name of a skill."""
    return and_(rows.c.name >= _bound(f"grant_low_{place}"), rows.c.name < _bound(f"grant_high_{place}"))


def has_visibility(visibility: Visibility, rows: FromClause = skills) -> ColumnElement[bool]:
    """Return the SQL condition that a skill has the given visibility."""
    value: ColumnElement[str] = literal_column(f"'{visibility}'")
    return rows.c.visibility == value


def _bound(name: str) -> BindParameter[str]:
    return bindparam(name)


def _granted(view: View) -> tuple[Visibility, ...]:
    """Return the visibilities that a grant makes visible."""
    return ("namespace", "private") if view.is_reviewer else ("namespace",)


def _prefixes(identity: Identity) -> list[str]:
    """Return the prefixes of the identity's grants (`sales` for `sales.*`), or [] if a grant covers all names."""
    if "*" in identity.namespaces:
        return []
    return sorted({grant[:-2] for grant in identity.namespaces if grant.endswith(".*")})


def _above(prefix: str) -> list[str]:
    """Return `prefix` and all namespaces above it, including "".

    A manifest with a name below `prefix` may state any of these namespaces.
    """
    parts = prefix.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]
