"""Pages of the catalogue: list_skills with filters, another order, entries or counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, bindparam, literal_column, select, tuple_

from skillery.backends import Identity
from skillery.database import Statement, as_stored, in_utc
from skillery.database.tables import catalogue
from skillery.database.tables.base import Moment
from skillery.registry.catalogue_counts import Counts, CountsCache, count_catalogue
from skillery.registry.catalogue_entries import Shown, show, with_entry
from skillery.registry.catalogue_filters import CatalogueFilter, condition_parameters, conditions, is_listed
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.pages import fitting, read_until_full, text_bytes
from skillery.registry.version_rows import with_warnings
from skillery.registry.visibility import View, view_of

Sort = Literal["name", "newest", "used"]


class _Order(NamedTuple):
    """An order: its columns, the last one unique, and whether the highest values are first."""

    columns: tuple[ColumnElement[Any], ...]
    is_descending: bool


_ORDERS: dict[Sort, _Order] = {
    "name": _Order((catalogue.c.namespace, catalogue.c.name, catalogue.c.version_id), False),
    "newest": _Order((catalogue.c.published_at, catalogue.c.version_id), True),
    "used": _Order((catalogue.c.runs_30d, catalogue.c.version_id), True),
}
# With one row for each skill, the name is unique. Cursors of list_skills without filters have the same position.
_BY_UNIQUE_NAME = _Order((catalogue.c.namespace, catalogue.c.name), False)


def list_catalogue(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    asked: CatalogueFilter,
    sort: Sort,
    detail: Literal["names", "summary"],
    limit: int,
    cursor: str,
    entries: bool,
    counts: CountsCache | None,
) -> msgspec.Raw:
    """Return a page of `list_skills` as JSON: the rows that pass the filters and that the identity sees.

    `entries` adds an entry to each item. `counts` adds the totals and facets of all pages. Development versions are not
    in the catalogue. Raise InvalidCursor if the cursor belongs to another listing.
    """
    order = _order_of(sort, asked)
    bound_to = _bound_to(asked, sort, detail)
    after = read_cursor(key, bound_to, cursor, len(order.columns)) if cursor else None
    keys = _keys(connection, identity, asked, sort, after, limit + 1)
    found = read_until_full(partial(_read, connection, keys), min(limit, len(keys)), partial(_size_of, detail))
    page = fitting(found, partial(_size_of, detail))
    last = len(page) and next(at for at, row in enumerate(keys, 1) if row[-1] == page[-1].version_id)
    next_cursor = make_cursor(key, bound_to, _position(order, keys[last - 1])) if 0 < last < len(keys) else None
    counted = count_catalogue(connection, identity, asked, counts) if counts is not None else None
    return _answer([_item(one, detail, entries) for one in page], next_cursor, counted)


def in_order(connection: Connection, found: Sequence[Any], sort: Sort) -> list[Any]:
    """Return rows that begin with the id of a skill in the order of the catalogue, by their latest versions."""
    order = _ORDERS[sort]
    listed = select(catalogue.c.skill_id, *order.columns).where(
        is_listed(), catalogue.c.skill_id.in_(bindparam("skill_ids", expanding=True))
    )
    by_id = {row[0]: tuple(row[1:]) for row in connection.execute(listed, {"skill_ids": [row[0] for row in found]})}
    present = [row for row in found if row[0] in by_id]
    return sorted(present, key=lambda row: by_id[row[0]], reverse=order.is_descending)


def _bound_to(asked: CatalogueFilter, sort: Sort, detail: str) -> tuple[str, ...]:
    """Return the query that a cursor is valid for: that of list_skills if there is no further filter and no order."""
    if sort == "name" and asked == CatalogueFilter(asked.namespace):
        return "list_skills", asked.namespace, detail
    return "list_skills", asked.namespace, detail, sort, msgspec.json.encode(asked).decode()


def _order_of(sort: Sort, asked: CatalogueFilter) -> _Order:
    return _BY_UNIQUE_NAME if sort == "name" and asked.of_listed else _ORDERS[sort]


def _keys(
    connection: Connection,
    identity: Identity,
    asked: CatalogueFilter,
    sort: Sort,
    after: tuple[str, ...] | None,
    rows: int,
) -> Sequence[Any]:
    """Return the position and the id of the next versions."""
    given = condition_parameters(asked, identity)
    if after is not None:
        columns = _order_of(sort, asked).columns
        given |= {f"after_{at}": _value(connection, one, after[at]) for at, one in enumerate(columns)}
    return _statement(asked.shape, view_of(identity), sort, after is not None, rows).rows(connection, **given)


# A statement for many grants is large, and callers choose the filters.
@lru_cache(256)
def _statement(shape: CatalogueFilter, view: View | None, sort: Sort, is_after: bool, rows: int) -> Statement:
    order = _order_of(sort, shape)
    statement: Select[Any] = select(*order.columns, catalogue.c.version_id).where(*conditions(shape, view))
    if is_after:
        start = tuple_(*(bindparam(f"after_{place}", type_=one.type) for place, one in enumerate(order.columns)))
        columns = tuple_(*order.columns)
        statement = statement.where(columns < start if order.is_descending else columns > start)
    statement = statement.order_by(*(column.desc() if order.is_descending else column for column in order.columns))
    # A literal, as in the listing by names: Postgres plans a statement once for all parameters.
    return Statement(statement.limit(literal_column(str(rows))))


def _value(connection: Connection, column: ColumnElement[Any], text: str) -> object:
    if column.type is Moment:
        return as_stored(connection, datetime.fromisoformat(text))
    return int(text) if column.type.python_type is int else text


def _position(order: _Order, row: Any) -> tuple[str, ...]:
    values = zip(order.columns, row, strict=False)
    return tuple(in_utc(one).isoformat() if column.type is Moment else str(one) for column, one in values)


def _read(connection: Connection, keys: Sequence[Any], wanted: int, last: Shown | None) -> list[Shown]:
    """Return at most `wanted` rows after `last`, with their items."""
    start = next((at for at, row in enumerate(keys, 1) if last is not None and row[-1] == last.version_id), 0)
    return show(connection, [row[-1] for row in keys[start : start + wanted]])


def _size_of(detail: Literal["names", "summary"], row: Shown) -> int:
    return text_bytes(_stored(row, detail))


def _stored(row: Shown, detail: Literal["names", "summary"]) -> str:
    return row.names_json if detail == "names" else row.summary_json


def _item(row: Shown, detail: Literal["names", "summary"], entries: bool) -> str:
    stored = with_warnings(_stored(row, detail), row.warnings)
    return with_entry(stored, row.entry) if entries else stored


def _answer(items: Sequence[str], next_cursor: str | None, counted: Counts | None) -> msgspec.Raw:
    closing = f'"{next_cursor}"' if next_cursor else "null"
    further = f",{msgspec.json.encode(counted)[1:-1].decode()}" if counted is not None else ""
    return msgspec.Raw(f'{{"skills":[{",".join(items)}],"next_cursor":{closing}{further}}}'.encode())
