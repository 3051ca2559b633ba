"""Who sees which skill and which version. What one may not see is not there, in every answer.

A skill is seen by everybody (`public`), by whose grants cover its name (`namespace`), or by who published a version of
it (`private`); by its reviewers and by admins always. Of a skill that is seen, a version is seen by everybody once it
was published; before that, and where it was rejected, by its author, its reviewers and admins.
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
)

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import skill_versions, skills
from skillery.identity import access

Visibility = Literal["public", "namespace", "private"]
WAS_PUBLISHED = ("published", "deprecated", "yanked")

_MOST_APART = 8
"""Grants that are looked up one by one."""
_CHUNK = 100

_own_versions = skill_versions.alias("own_versions")
_OWN = Statement(
    select(_own_versions.c.id)
    .where(_own_versions.c.skill_id == bindparam("skill_id"), _own_versions.c.publisher == bindparam("me"))
    .limit(literal_column("1"))
)


class View(NamedTuple):
    """What of an identity decides the text of a statement; the rest are parameters. None: it sees all skills."""

    grants: tuple[int, ...]
    """For each the number of namespaces above its names; () where it has no grants, or one for all names."""
    grants_all: bool
    is_reviewer: bool


def view_of(identity: Identity) -> View | None:
    """None where it sees every skill, so that nothing is to be asked of a row."""
    grants_all = "*" in identity.namespaces
    if access.is_admin(identity) or ("review" in identity.scopes and (not identity.namespaces or grants_all)):
        return None
    return View(tuple(len(_above(one)) for one in _prefixes(identity)), grants_all, "review" in identity.scopes)


def parameters(identity: Identity) -> dict[str, Any]:
    """For statements with the conditions below."""
    if view_of(identity) is None:
        return {}
    found: dict[str, Any] = {"me": identity.name}
    for place, prefix in enumerate(_prefixes(identity)):
        # "." is followed by "/" in the order of bytes.
        found |= {f"grant_low_{place}": f"{prefix}.", f"grant_high_{place}": f"{prefix}/"}
        found |= {f"grant_{place}_{number}": one for number, one in enumerate(_above(prefix))}
    return found


def seen_by_namespace(view: View) -> list[ColumnElement[bool]]:
    """Conditions on `skills`, one of which holds for each row that is seen and of which some hold for no other.

    Each is a range of (visibility, namespace, name) or a few: what is hidden is not even looked at. `is_own` is apart.
    """
    found = [_is("public")]
    for visibility in _granted(view):
        if view.grants_all:
            found.append(_is(visibility))
        if len(view.grants) > _MOST_APART:
            found += _together(view, visibility)
            continue
        for place, above in enumerate(view.grants):
            low, high = _bound(f"grant_low_{place}"), _bound(f"grant_high_{place}")
            namespaces = [_bound(f"grant_{place}_{number}") for number in range(above)]
            found.append(and_(_is(visibility), skills.c.namespace >= low, skills.c.namespace < high))
            found.append(and_(_is(visibility), skills.c.namespace.in_(namespaces), _in_grant(place)))
    return found


def seen_by_name(view: View, rows: FromClause = skills) -> list[ColumnElement[bool]]:
    """As `seen_by_namespace`, by ranges of (visibility, name)."""
    found = [_is("public", rows)]
    for visibility in _granted(view):
        if view.grants_all:
            found.append(_is(visibility, rows))
        if len(view.grants) > _MOST_APART:
            found += _together(view, visibility, rows)
        else:
            found += [and_(_is(visibility, rows), _in_grant(place, rows)) for place in range(len(view.grants))]
    return found


def is_own() -> ColumnElement[bool]:
    """A private skill of which the identity has published a version. Without an order, so that it starts from those."""
    own = select(_own_versions.c.skill_id).where(_own_versions.c.publisher == bindparam("me"))
    return and_(skills.c.id.in_(own), skills.c.visibility.concat(literal_column("''")) == literal_column("'private'"))


def seen_version(view: View) -> ColumnElement[bool]:
    """Of skills that are seen, the versions that are: `sees_version` as a condition."""
    statuses: list[ColumnElement[str]] = [literal_column(f"'{status}'") for status in WAS_PUBLISHED]
    found = [skill_versions.c.status.in_(statuses), skill_versions.c.publisher == bindparam("me")]
    if view.is_reviewer:
        found += _in_grants(view)
    return or_(*found)


def sees_each(view: View, rows: FromClause, skill_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Condition on each row of a table with `visibility` and `name` of a skill, that something else has found."""
    own = exists().where(_own_versions.c.publisher == bindparam("me"), _own_versions.c.skill_id == skill_id)
    return or_(*seen_by_name(view, rows), and_(_is("private", rows), own))


def sees_skill(connection: Connection, identity: Identity, skill_id: int, name: str, visibility: str) -> bool:
    """The same of one skill that was found."""
    if visibility == "public" or access.reviews(identity, name):
        return True
    if visibility == "namespace":
        return access.covers(identity, name)
    return bool(_OWN.rows(connection, skill_id=skill_id, me=identity.name))


def sees_version(identity: Identity, name: str, status: str, publisher: str) -> bool:
    """Of a skill that it sees."""
    return status in WAS_PUBLISHED or publisher == identity.name or access.reviews(identity, name)


def _together(view: View, visibility: Visibility, rows: FromClause = skills) -> list[ColumnElement[bool]]:
    """Many grants as few conditions: a database takes only so many in one statement."""
    return [and_(_is(visibility, rows), one) for one in _in_grants(view, rows)]


def _in_grants(view: View, rows: FromClause = skills) -> list[ColumnElement[bool]]:
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
    """`sales` for each grant `sales.*`; none beside a grant of all names."""
    if "*" in identity.namespaces:
        return []
    return sorted({grant[:-2] for grant in identity.namespaces if grant.endswith(".*")})


def _above(prefix: str) -> list[str]:
    """The namespaces that a skill below the prefix can be in, other than those below the prefix."""
    parts = prefix.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]
