"""Who sees which skill and which version. What one may not see is not there, in every answer.

A skill is seen by everybody (`public`), by whose grants cover its name (`namespace`), or by who published a version of
it (`private`); by its reviewers and by admins always. Of a skill that is seen, a version is seen by everybody once it
was published; before that, and where it was rejected, by its author, its reviewers and admins.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, bindparam, exists, literal_column, or_, select

from skillery import access
from skillery.backends import Identity
from skillery.database import Statement
from skillery.tables import skill_versions, skills

Visibility = Literal["public", "namespace", "private"]
WAS_PUBLISHED = ("published", "deprecated", "yanked")

_ANY_NAME = ("", "~")
"""No character of a name sorts behind `~`."""

_own_versions = skill_versions.alias("own_versions")
_OWN = Statement(
    select(_own_versions.c.id)
    .where(_own_versions.c.skill_id == bindparam("skill_id"), _own_versions.c.publisher == bindparam("me"))
    .limit(literal_column("1"))
)


class View(NamedTuple):
    """What of an identity decides the text of a condition; the rest are parameters. None: it sees all skills."""

    grants: int
    is_reviewer: bool


def view_of(identity: Identity) -> View | None:
    """None where it sees every skill, so that nothing is to be asked of a row."""
    reviews_all = "review" in identity.scopes and (not identity.namespaces or "*" in identity.namespaces)
    if access.is_admin(identity) or reviews_all:
        return None
    return View(len(_ranges(identity)), "review" in identity.scopes)


def seen(view: View | None) -> list[ColumnElement[bool]]:
    """Which rows of `skills` an identity with this view sees, for a WHERE; `parameters` has the values."""
    if view is None:
        return []
    own = exists().where(_own_versions.c.skill_id == skills.c.id, _own_versions.c.publisher == bindparam("me"))
    ways = [_is("public"), and_(_is("private"), own)]
    if view.grants:
        in_grants = [
            and_(skills.c.name >= bindparam(f"grant_low_{place}"), skills.c.name < bindparam(f"grant_high_{place}"))
            for place in range(view.grants)
        ]
        granted = _is("public", negated=True) if view.is_reviewer else _is("namespace")
        ways.append(and_(granted, or_(*in_grants)))
    return [or_(*ways)]


def parameters(identity: Identity) -> dict[str, Any]:
    """For statements with `seen(view_of(identity))`."""
    if view_of(identity) is None:
        return {}
    found: dict[str, Any] = {"me": identity.name}
    for place, (low, high) in enumerate(_ranges(identity)):
        found |= {f"grant_low_{place}": low, f"grant_high_{place}": high}
    return found


def sees_skill(connection: Connection, identity: Identity, skill_id: int, name: str, visibility: str) -> bool:
    """As the condition of `seen`, for one skill that was found."""
    if visibility == "public" or access.reviews(identity, name):
        return True
    if visibility == "namespace":
        return access.covers(identity, name)
    return bool(_OWN.rows(connection, skill_id=skill_id, me=identity.name))


def sees_version(identity: Identity, name: str, status: str, publisher: str) -> bool:
    """Of a skill that it sees."""
    return status in WAS_PUBLISHED or publisher == identity.name or access.reviews(identity, name)


def _is(visibility: Visibility, *, negated: bool = False) -> ColumnElement[bool]:
    value: ColumnElement[str] = literal_column(f"'{visibility}'")
    return skills.c.visibility != value if negated else skills.c.visibility == value


def _ranges(identity: Identity) -> list[tuple[str, str]]:
    """The names that grants cover, as half-open ranges: "." is followed by "/" in the order of bytes."""
    if "*" in identity.namespaces:
        return [_ANY_NAME]
    prefixes = sorted({grant[:-2] for grant in identity.namespaces if grant.endswith(".*")})
    return [(f"{prefix}.", f"{prefix}/") for prefix in prefixes]
