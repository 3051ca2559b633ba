"""list_skills: one row a skill, its latest version, by keyset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    literal_column,
    select,
    tuple_,
    union_all,
)

from skillery.backends import Identity
from skillery.database import Statement
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.seeing import View, parameters, seen, view_of
from skillery.tables import skill_versions, skills

Detail = Literal["names", "summary"]
ITEMS: dict[Detail, Column[str]] = {"names": skill_versions.c.names_json, "summary": skill_versions.c.summary_json}


# Up to here compiled statements are kept; the number of rows stands in them as text, not as a parameter: Postgres plans
# a statement once for all parameters, and can plan well for a million skills only where it knows how few are wanted.
_KEPT = 256


def _page(detail: Detail, rows: int, view: View | None, *where: ColumnElement[bool]) -> Select[Any]:
    return (
        select(skills.c.namespace, skills.c.name, ITEMS[detail].label("item"))
        .join_from(skills, skill_versions, skill_versions.c.id == skills.c.latest_version_id)
        .where(skills.c.latest_version_id.is_not(None), *where, *seen(view))
        .order_by(skills.c.namespace, skills.c.name)
        .limit(literal_column(str(rows)))
    )


def _after() -> ColumnElement[bool]:
    return tuple_(skills.c.namespace, skills.c.name) > tuple_(bindparam("after_namespace"), bindparam("after_name"))


@lru_cache(_KEPT)
def _all(detail: Detail, rows: int, view: View | None) -> Statement:
    return Statement(_page(detail, rows, view, _after()))


@lru_cache(_KEPT)
def _below(detail: Detail, rows: int, view: View | None) -> Statement:
    """The namespace itself, then all below it: two ranges of one index.

    Between the two lie its look-alikes (`a`, `a-b`, `a.c`), so one range with a filter would read them all.
    """
    itself = _page(detail, rows, view, skills.c.namespace == bindparam("namespace"), _after()).subquery()
    inside = and_(skills.c.namespace >= bindparam("below"), skills.c.namespace < bindparam("past"))
    below = _page(detail, rows, view, inside, _after()).subquery()
    both = union_all(select(itself), select(below)).subquery()
    page = select(both).order_by(both.c.namespace, both.c.name).limit(literal_column(str(rows)))
    return Statement(page)


def list_skills(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    namespace: str,
    detail: Detail,
    limit: int,
    cursor: str,
) -> msgspec.Raw:
    """`{"skills": […], "next_cursor": …}` as JSON, sorted by the bytes of (namespace, name): the skills that the
    identity sees.

    `namespace` "" is all of them; it matches itself and all below it by whole segments. Raises InvalidCursor.
    """
    bound_to = ("list_skills", namespace, detail)
    after = read_cursor(key, bound_to, cursor, 2) if cursor else ("", "")
    view = view_of(identity)
    values = {"after_namespace": after[0], "after_name": after[1], **parameters(identity)}
    if namespace:
        # "." is followed by "/" in the order of bytes.
        values |= {"namespace": namespace, "below": f"{namespace}.", "past": f"{namespace}/"}
        rows = _below(detail, limit + 1, view).rows(connection, **values)
    else:
        rows = _all(detail, limit + 1, view).rows(connection, **values)
    page, more = rows[:limit], len(rows) > limit
    next_cursor = make_cursor(key, bound_to, (page[-1][0], page[-1][1])) if more else None
    return _answer([row[2] for row in page], next_cursor)


def _answer(items: Sequence[str], next_cursor: str | None) -> msgspec.Raw:
    closing = f'"{next_cursor}"' if next_cursor else "null"
    return msgspec.Raw(f'{{"skills":[{",".join(items)}],"next_cursor":{closing}}}'.encode())
