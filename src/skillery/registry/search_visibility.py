"""The condition for skills that a search may visit, in the form that suits how many skills the identity sees.

For an identity that sees few skills, the condition lists their ids: a walk over all postings of a frequent word would
find hardly any of them. For all others, the condition checks the visibility of each row, and a limit ends the walk
soon.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, FromClause, Select, func, literal_column, select, union_all
from sqlalchemy import bindparam as bound

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import skills
from skillery.registry.visibility import View, is_own, parameters, seen_by_name, sees_each, view_of

FEW = 1000
"""Limit on the skills that the condition lists by id."""
_KEPT = 64


class VisibilityShape(NamedTuple):
    """The values that determine the text of the condition."""

    dialect: str
    view: View | None
    is_few: bool


class VisibleSkills(NamedTuple):
    """The visibility condition of an identity: its shape and its parameters."""

    visibility_shape: VisibilityShape
    parameters: dict[str, Any]


def seen_by(connection: Connection, identity: Identity) -> VisibleSkills:
    """Return the visibility condition of the identity as of now."""
    dialect, view = connection.dialect.name, view_of(identity)
    if view is None:
        return VisibleSkills(VisibilityShape(dialect, None, False), {})
    given = parameters(identity)
    ids = sorted({row[0] for row in _first(view).rows(connection, **given)})
    if len(ids) > FEW:
        return VisibleSkills(VisibilityShape(dialect, view, False), given)
    return VisibleSkills(
        VisibilityShape(dialect, view, True), {"seen_ids": ids if dialect == "postgresql" else _json(ids)}
    )


def is_seen(
    visibility_shape: VisibilityShape, rows: FromClause, skill_id: ColumnElement[int]
) -> list[ColumnElement[bool]]:
    """Return the conditions on rows with `name` and `visibility` of a skill; none if the identity sees every skill."""
    if visibility_shape.view is None:
        return []
    if not visibility_shape.is_few:
        return [sees_each(visibility_shape.view, rows, skill_id)]
    if visibility_shape.dialect == "postgresql":
        return [skill_id == func.any(bound("seen_ids"))]
    values: Select[Any] = select(literal_column("value")).select_from(func.json_each(bound("seen_ids")))
    return [skill_id.in_(values)]


@lru_cache(_KEPT)
def _first(view: View) -> Statement:
    """Return the statement for the first visible skills, by each of the conditions. Each is a range of an index."""
    conditions = [*seen_by_name(view), is_own()]
    parts = [
        select(skills.c.id).where(skills.c.latest_version_id.is_not(None), one).limit(literal_column(str(FEW + 1)))
        for one in conditions
    ]
    return Statement(union_all(*(select(part.subquery()) for part in parts)))


def _json(ids: list[int]) -> str:
    return msgspec.json.encode(ids).decode()
