"""Skills in the order of their creation, for `/v1/skills` with `order`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from sqlalchemy import Connection, Select, bindparam, literal_column, not_, or_, select

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import RESOLVABLE, labels, skill_versions, skills
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.resolution import find_skill, skill_not_found
from skillery.registry.visibility import (
    Hidden,
    View,
    has_audience,
    hidden_audiences,
    is_own,
    parameters,
    seen_by_name,
    view_of,
)
from skillery.skills.catalogue_listings import SkillPage, SkillRow

Order = Literal["asc", "desc"]


def list_by_creation(
    connection: Connection, identity: Identity, key: bytes, *, order: Order, limit: int, cursor: str
) -> SkillPage:
    """Return a page of the skills that the identity sees, in the order of their creation.

    Development versions are not in the list. Raise InvalidCursor if the cursor belongs to another listing.
    """
    values = parameters(identity)
    if cursor:
        values |= {"after": int(read_cursor(key, _bound_to(order), cursor, 1)[0])}
    statement = _statement(view_of(identity), hidden_audiences(identity), order, bool(cursor), limit + 1)
    rows = statement.rows(connection, **values)
    page = rows[:limit]
    more = make_cursor(key, _bound_to(order), (str(page[-1][0]),)) if len(rows) > limit else None
    return SkillPage([msgspec.json.decode(item, type=SkillRow) for _, item in page], more)


def cursor_after_creation(connection: Connection, *, identity: Identity, key: bytes, order: Order, name: str) -> str:
    """Return a cursor with which list_by_creation continues after the skill `name`.

    Raise SkillNotFound if the identity sees no such skill.
    """
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        raise skill_not_found(connection, identity, name)
    return make_cursor(key, _bound_to(order), (str(skill_id),))


def labelled_versions(connection: Connection, *, names: Sequence[str], label: str) -> dict[str, str]:
    """Return the versions that a label points to, by the names of skills, if they are published or deprecated."""
    statement = (
        select(skills.c.name, skill_versions.c.version)
        .join_from(labels, skills, skills.c.id == labels.c.skill_id)
        .join(skill_versions, skill_versions.c.id == labels.c.version_id)
        .where(skills.c.name.in_(names), labels.c.label == label, skill_versions.c.status.in_(RESOLVABLE))
    )
    return {row.name: row.version for row in connection.execute(statement)}


def _bound_to(order: Order) -> tuple[str, str]:
    return "list_by_creation", order


# Callers choose the limit, and a compiled statement holds up to a megabyte.
@lru_cache(64)
def _statement(view: View | None, hidden: Hidden, order: Order, is_after: bool, rows: int) -> Statement:
    statement: Select[tuple[int, str]] = (
        select(skills.c.id, skill_versions.c.names_json)
        .join_from(skills, skill_versions, skill_versions.c.id == skills.c.latest_version_id)
        .where(not_(has_audience(hidden)))
        .order_by(skills.c.id.asc() if order == "asc" else skills.c.id.desc())
        .limit(literal_column(str(rows)))
    )
    if view is not None:
        statement = statement.where(or_(*seen_by_name(view), is_own()))
    if is_after:
        after = bindparam("after", type_=skills.c.id.type)
        statement = statement.where(skills.c.id > after if order == "asc" else skills.c.id < after)
    return Statement(statement)
