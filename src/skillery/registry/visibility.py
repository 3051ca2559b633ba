"""Visibility of skills and versions. Every answer treats invisible skills and versions as absent.

The visibility of a skill decides which callers see it: all callers (`public`), callers with a grant for its name
(`namespace`), or publishers of one of its versions (`private`). Its reviewers and admins always see it. All callers who
see a skill see its published, deprecated and yanked versions, and the records of purged versions. Other versions are
visible only to their author, to reviewers of the skill and to admins.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
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
from skillery.identity import access

Visibility = Literal["public", "namespace", "private"]
WAS_PUBLISHED = ("published", "deprecated", "yanked")
SEEN_BY_ALL = (*WAS_PUBLISHED, "purged")
"""The statuses of versions that are visible to all callers who see the skill."""

_MOST_APART = 8
"""The maximum number of grants that get separate conditions with their own index ranges."""
_CHUNK = 100

_own_versions = skill_versions.alias("own_versions")
_OWN = Statement(
    select(_own_versions.c.id)
    .where(_own_versions.c.skill_id == bindparam("skill_id"), _own_versions.c.publisher == bindparam("me"))
    .limit(literal_column("1"))
)


class View(NamedTuple):
    """The properties of an identity that determine the text of an SQL statement. Its other properties are SQL
    parameters.
    """

    grants: tuple[int, ...]
    """For each grant, the number of namespaces that `_above` returns for its prefix. () if no grant needs a
    condition: there are no grants, or one covers all names.
    """
    grants_all: bool
    is_reviewer: bool


def view_of(identity: Identity) -> View | None:
    """Return the view of an identity, or None if the identity sees every skill, so that statements need no
    condition.
    """
    grants_all = "*" in identity.namespaces
    if access.is_admin(identity) or ("review" in identity.scopes and (not identity.namespaces or grants_all)):
        return None
    return View(tuple(len(_above(prefix)) for prefix in _prefixes(identity)), grants_all, "review" in identity.scopes)


def parameters(identity: Identity) -> dict[str, Any]:
    """Return the SQL parameters of the conditions in this module."""
    if view_of(identity) is None:
        return {}
    values: dict[str, Any] = {"me": identity.name}
    for place, prefix in enumerate(_prefixes(identity)):
        # "/" follows "." in the order of bytes.
        values |= {f"grant_low_{place}": f"{prefix}.", f"grant_high_{place}": f"{prefix}/"}
        values |= {f"grant_{place}_{number}": namespace for number, namespace in enumerate(_above(prefix))}
    return values


def seen_by_namespace(view: View) -> list[ColumnElement[bool]]:
    """Return conditions on the table `skills`. The identity sees a skill if one condition or `is_own` is true.

    With at most _MOST_APART grants, each condition reads a few ranges of the index (visibility, namespace, name), so
    that hidden skills are not read. More grants are combined into few conditions, which also read hidden skills.
    """
    conditions = [_is("public")]
    for visibility in _granted(view):
        if view.grants_all:
            conditions.append(_is(visibility))
        if len(view.grants) > _MOST_APART:
            conditions += _together(view, visibility)
            continue
        for place, above in enumerate(view.grants):
            low, high = _bound(f"grant_low_{place}"), _bound(f"grant_high_{place}")
            namespaces = [_bound(f"grant_{place}_{number}") for number in range(above)]
            inside = and_(skills.c.namespace >= low, skills.c.namespace < high)
            conditions.append(and_(_is(visibility), inside, _in_grant(place)))
            conditions.append(and_(_is(visibility), skills.c.namespace.in_(namespaces), _in_grant(place)))
        if view.grants:
            # A skill may state a namespace of others. Its name alone decides who sees it.
            # As text, because the condition of a partial index must be repeated word for word.
            conditions += [and_(_is(visibility), text(FOREIGN_NAMESPACE), grant) for grant in in_grants(view)]
    return conditions


def seen_by_name(view: View, rows: FromClause = skills) -> list[ColumnElement[bool]]:
    """Return conditions on `rows` like those of `seen_by_namespace`, for the index (visibility, name)."""
    conditions = [_is("public", rows)]
    for visibility in _granted(view):
        if view.grants_all:
            conditions.append(_is(visibility, rows))
        if len(view.grants) > _MOST_APART:
            conditions += _together(view, visibility, rows)
        else:
            conditions += [and_(_is(visibility, rows), _in_grant(place, rows)) for place in range(len(view.grants))]
    return conditions


def is_own() -> ColumnElement[bool]:
    """Return the SQL condition for private skills with a version that the identity published.

    The concatenation prevents the use of an index on `visibility`, so that the database starts with the identity's
    versions.
    """
    own = select(_own_versions.c.skill_id).where(_own_versions.c.publisher == bindparam("me"))
    return and_(skills.c.id.in_(own), skills.c.visibility.concat(literal_column("''")) == literal_column("'private'"))


def seen_version(view: View) -> ColumnElement[bool]:
    """Return the SQL condition for visible versions, in statements that read only visible skills. See
    `sees_version`.
    """
    statuses: list[ColumnElement[str]] = [literal_column(f"'{status}'") for status in SEEN_BY_ALL]
    conditions = [skill_versions.c.status.in_(statuses), skill_versions.c.publisher == bindparam("me")]
    if view.is_reviewer:
        conditions += in_grants(view)
    return or_(*conditions)


def sees_each(view: View, rows: FromClause, skill_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Return the SQL condition that checks each row of `rows`, a table with the `name` and `visibility` of skills.

    Use this condition if another condition already finds the rows by an index.
    """
    own = exists().where(_own_versions.c.publisher == bindparam("me"), _own_versions.c.skill_id == skill_id)
    return or_(*seen_by_name(view, rows), and_(_is("private", rows), own))


def sees_skill(connection: Connection, identity: Identity, skill_id: int, name: str, visibility: str) -> bool:
    """Return whether the identity sees a skill."""
    if visibility == "public" or access.reviews(identity, name):
        return True
    if visibility == "namespace":
        return access.covers(identity, name)
    return bool(_OWN.rows(connection, skill_id=skill_id, me=identity.name))


def sees_version(identity: Identity, name: str, status: str, publisher: str) -> bool:
    """Return whether the identity sees a version. The caller has checked that the identity sees the skill."""
    return status in SEEN_BY_ALL or publisher == identity.name or access.reviews(identity, name)


def _together(view: View, visibility: Visibility, rows: FromClause = skills) -> list[ColumnElement[bool]]:
    """Combine many grants into few conditions, because databases limit the number of conditions in a statement."""
    return [and_(_is(visibility, rows), grant) for grant in in_grants(view, rows)]


def in_grants(view: View, rows: FromClause = skills) -> list[ColumnElement[bool]]:
    """Return conditions on `rows`, a table with the `name` of skills. A grant covers a skill if one of them is true."""
    places = range(len(view.grants))
    chunks = [places[start : start + _CHUNK] for start in range(0, len(places), _CHUNK)]
    return [or_(*(_in_grant(place, rows) for place in chunk)) for chunk in chunks]


def _in_grant(place: int, rows: FromClause = skills) -> ColumnElement[bool]:
    return and_(rows.c.name >= _bound(f"grant_low_{place}"), rows.c.name < _bound(f"grant_high_{place}"))


def _is(visibility: Visibility, rows: FromClause = skills) -> ColumnElement[bool]:
    value: ColumnElement[str] = literal_column(f"'{visibility}'")
    return rows.c.visibility == value


def _bound(name: str) -> BindParameter[str]:
    return bindparam(name)


def _granted(view: View) -> tuple[Visibility, ...]:
    return ("namespace", "private") if view.is_reviewer else ("namespace",)


def _prefixes(identity: Identity) -> list[str]:
    """Return the prefixes of the grants (`sales` for `sales.*`), or [] if a grant covers all names."""
    if "*" in identity.namespaces:
        return []
    return sorted({grant[:-2] for grant in identity.namespaces if grant.endswith(".*")})


def _above(prefix: str) -> list[str]:
    """Return the prefix and all namespaces above, including "": a manifest below the prefix may state any of them."""
    parts = prefix.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]
