"""The SQL condition for skills that a search may return. Its form depends on the number of skills that the identity
sees.

If the identity sees few skills, the condition lists their ids: a scan of all postings of a frequent word would find
hardly any of these skills. Else the condition checks the visibility of each row: a limit ends the scan soon.
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
"""The highest number of skills that the condition lists by id."""
_KEPT = 64


class VisibilityShape(NamedTuple):
    """The values that determine the text of the condition."""

    dialect: str
    view: View | None
    is_few: bool


class VisibleSkills(NamedTuple):
    """The visibility condition of an identity: the shape of the condition, and its SQL parameters."""

    visibility_shape: VisibilityShape
    parameters: dict[str, Any]


def seen_by(connection: Connection, identity: Identity) -> VisibleSkills:
    """Return the visibility condition of the identity."""
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
    """Return the conditions on `rows`, a table with the `name` and `visibility` of skills, or [] if the identity
    sees every skill.
    """
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
    """Return the statement for the ids of the first FEW + 1 skills by each condition for visibility."""
    conditions = [*seen_by_name(view), is_own()]
    parts = [
        select(skills.c.id)
        .where(skills.c.latest_version_id.is_not(None), condition)
        .limit(literal_column(str(FEW + 1)))
        for condition in conditions
    ]
    return Statement(union_all(*(select(part.subquery()) for part in parts)))


def _json(ids: list[int]) -> str:
    return msgspec.json.encode(ids).decode()
