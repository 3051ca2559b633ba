"""list_skills: one row a skill, its latest version, by keyset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Select, bindparam, select, tuple_, union_all

from skillery.database import Statement
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.tables import skill_versions, skills

Detail = Literal["names", "summary"]
ITEMS: dict[Detail, Column[str]] = {"names": skill_versions.c.names_json, "summary": skill_versions.c.summary_json}


def _page(detail: Detail, *where: ColumnElement[bool]) -> Select[Any]:
    return (
        select(skills.c.namespace, skills.c.name, ITEMS[detail].label("item"))
        .join_from(skills, skill_versions, skill_versions.c.id == skills.c.latest_version_id)
        .where(skills.c.latest_version_id.is_not(None), *where)
        .order_by(skills.c.namespace, skills.c.name)
        .limit(bindparam("rows"))
    )


def _after() -> ColumnElement[bool]:
    return tuple_(skills.c.namespace, skills.c.name) > tuple_(bindparam("after_namespace"), bindparam("after_name"))


def _in_namespace(detail: Detail) -> Any:
    """The namespace itself, then all below it: two ranges of one index.

    Between the two lie its look-alikes (`a`, `a-b`, `a.c`), so one range with a filter would read them all.
    """
    itself = _page(detail, skills.c.namespace == bindparam("namespace"), _after()).subquery()
    below = _page(
        detail,
        skills.c.namespace >= bindparam("below"),
        skills.c.namespace < bindparam("past"),
        _after(),
    ).subquery()
    both = union_all(select(itself), select(below)).subquery()
    return select(both).order_by(both.c.namespace, both.c.name).limit(bindparam("rows"))


_ALL = {detail: Statement(_page(detail, _after())) for detail in ITEMS}
_BELOW = {detail: Statement(_in_namespace(detail)) for detail in ITEMS}


def list_skills(
    connection: Connection, key: bytes, *, namespace: str, detail: Detail, limit: int, cursor: str
) -> msgspec.Raw:
    """`{"skills": […], "next_cursor": …}` as JSON, sorted by the bytes of (namespace, name).

    `namespace` "" is all of them; it matches itself and all below it by whole segments. Raises InvalidCursor.
    """
    bound_to = ("list_skills", namespace, detail)
    after = read_cursor(key, bound_to, cursor, 2) if cursor else ("", "")
    parameters = {"after_namespace": after[0], "after_name": after[1], "rows": limit + 1}
    if namespace:
        # "." is followed by "/" in the order of bytes.
        parameters |= {"namespace": namespace, "below": f"{namespace}.", "past": f"{namespace}/"}
        rows = _BELOW[detail].rows(connection, **parameters)
    else:
        rows = _ALL[detail].rows(connection, **parameters)
    page, more = rows[:limit], len(rows) > limit
    next_cursor = make_cursor(key, bound_to, (page[-1][0], page[-1][1])) if more else None
    return _answer([row[2] for row in page], next_cursor)


def _answer(items: Sequence[str], next_cursor: str | None) -> msgspec.Raw:
    closing = f'"{next_cursor}"' if next_cursor else "null"
    return msgspec.Raw(f'{{"skills":[{",".join(items)}],"next_cursor":{closing}}}'.encode())
