"""Pages of the catalogue: list_skills with filters, another order, entries or counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache, lru_cache, partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import BindParameter, ColumnElement, Connection, Select, bindparam, func, literal_column, select, tuple_

from skillery.backends import Identity
from skillery.database import Statement, as_stored, in_utc
from skillery.database.tables import catalogue, labels, skill_versions
from skillery.database.tables.base import Moment
from skillery.formats.manifest import Kind
from skillery.formats.media_types import SkillLanguage
from skillery.registry.cursors import NextCursor, fitting, make_cursor, read_cursor, read_until_full
from skillery.registry.uses import read_by_day
from skillery.registry.version_rows import Object, standing_warnings, with_warnings
from skillery.registry.visibility import View, view_of
from skillery.skills.catalogue_counts import Counts, CountsCache, Facets, count_catalogue
from skillery.skills.catalogue_filters import CatalogueFilter, FilterStatus, Manifest, condition_parameters, conditions
from skillery.skills.catalogue_order import ORDERS, Order, Sort
from skillery.skills.catalogue_rows import COPY_OF, LOOKS_LIKE, SOURCE

# -- The entries of the catalogue: what a page shows of a version next to its item of list_skills ----------------------


class Deprecation(msgspec.Struct, frozen=True):
    """The message of a deprecated skill, and its successor."""

    message: str
    successor: str | None


class CatalogueEntry(msgspec.Struct, frozen=True):
    """Facts about a version and the usage of its skill, for a row of a catalogue."""

    status: FilterStatus
    language: Annotated[SkillLanguage, Meta(description="markdown for a skill without code")]
    scripts: Annotated[int, Meta(description="Number of scripts that describe_skill lists")]
    tags: list[str]
    verified: Annotated[bool, Meta(description="Whether it has examples and all passed")]
    labels: Annotated[list[str], Meta(description="Labels that point to this version")]
    hosts: Annotated[int, Meta(description="Number of entries of permissions.network")]
    secrets: Annotated[int, Meta(description="Number of entries of permissions.secrets")]
    published_at: Annotated[datetime, Meta(description="Time of the approval, or of the publication without a review")]
    callers_30d: Annotated[int, Meta(description="Different callers of the uses")]
    uses_30d: Annotated[int, Meta(description="Ended runs, and loads by programs of agents, in the last 30 days")]
    loads_30d: int
    runs_30d: int
    uses_by_day: Annotated[list[int], Meta(description="Of each of the last 30 days, oldest first")]
    failed_by_day: Annotated[list[int], Meta(description="Failed runs of these days")]
    success_rate_30d: Annotated[
        float | None, Meta(description="Completed runs divided by completed and failed runs; null without any")
    ]
    deprecated: Deprecation | None
    looks_like: Annotated[
        str | None,
        Meta(description="An older skill of another publisher with the same description or nearly the same name"),
    ]
    copy_of: Annotated[str | None, Meta(description="An older public skill with the same description and files")]
    source: Annotated[str | None, Meta(description="Where the skill was imported from")]
    licence: Annotated[str, Meta(description="Open licence in SKILL.md, as its SPDX expression; or other, or none")]


class Shown(msgspec.Struct, frozen=True):
    """The stored items of a version, and its entry."""

    version_id: int
    names_json: str
    summary_json: str
    entry: CatalogueEntry
    warnings: list[str]


class _Stored(msgspec.Struct):
    deprecated: Deprecation | None = None  # in the standing of a version
    scripts: list[msgspec.Raw] = []  # in its check results


_manifest = msgspec.json.Decoder(Manifest)
_stored_parts = msgspec.json.Decoder(_Stored)
_SIZES = (1, 20, 50)
"""Numbers of versions that statements are compiled for. A shorter list repeats its last version."""
_labels = func.aggregate_strings(labels.c.label, literal_column("','"))  # type: ignore[arg-type]
_COLUMNS = (
    catalogue.c.version_id,
    skill_versions.c.names_json,
    skill_versions.c.summary_json,
    skill_versions.c.manifest_json,
    skill_versions.c.checks_json,
    skill_versions.c.standing_json,
    catalogue.c.status,
    catalogue.c.language,
    catalogue.c.verified,
    catalogue.c.published_at,
    catalogue.c.callers_30d,
    catalogue.c.uses_30d,
    catalogue.c.loads_30d,
    catalogue.c.runs_30d,
    catalogue.c.completed_30d,
    catalogue.c.failed_30d,
    catalogue.c.uses_by_day,
    LOOKS_LIKE,
    COPY_OF,
    SOURCE,
    catalogue.c.licence,
    # A column of each row, because a separate statement would be another round trip to Postgres.
    select(_labels).where(labels.c.version_id == catalogue.c.version_id).scalar_subquery(),
)


@cache
def _entries_statement(count: int) -> Statement:
    wanted: list[BindParameter[int]] = [bindparam(f"version_{place}") for place in range(count)]
    both = catalogue.join(skill_versions, skill_versions.c.id == catalogue.c.version_id)
    return Statement(select(*_COLUMNS).select_from(both).where(catalogue.c.version_id.in_(wanted)))


def show(connection: Connection, version_ids: Sequence[int]) -> list[Shown]:
    """Return the items and entries of these versions, in this order, without versions that have left the catalogue."""
    shown: dict[int, Shown] = {}
    for start in range(0, len(version_ids), _SIZES[-1]):
        wanted = version_ids[start : start + _SIZES[-1]]
        count = next(size for size in _SIZES if size >= len(wanted))
        values = {f"version_{place}": wanted[min(place, len(wanted) - 1)] for place in range(count)}
        shown |= {row[0]: _shown(*row) for row in _entries_statement(count).rows(connection, **values)}
    return [shown[version_id] for version_id in version_ids if version_id in shown]


def _shown(
    version_id: int,
    names_json: str,
    summary_json: str,
    manifest_json: str,
    checks_json: str | None,
    standing_json: str | None,
    status: FilterStatus,
    language: SkillLanguage,
    verified: bool,
    published_at: datetime | str,
    callers: int,
    uses: int,
    loads: int,
    runs: int,
    completed: int,
    failed: int,
    by_day: str,
    looks_like: str | None,
    copy_of: str | None,
    source: str | None,
    licence: str,
    labels_text: str | None,
) -> Shown:
    manifest = _manifest.decode(manifest_json)
    uses_by_day, failed_by_day = read_by_day(by_day)
    entry = CatalogueEntry(
        status=status,
        language=language,
        scripts=len(_stored_parts.decode(checks_json).scripts) if checks_json else 0,
        tags=manifest.tags,
        verified=bool(verified),
        labels=sorted(labels_text.split(",")) if labels_text else [],
        hosts=len(manifest.permissions.network),
        secrets=len(manifest.permissions.secrets),
        published_at=in_utc(published_at),
        callers_30d=callers,
        uses_30d=uses,
        loads_30d=loads,
        runs_30d=runs,
        uses_by_day=uses_by_day,
        failed_by_day=failed_by_day,
        success_rate_30d=round(completed / (completed + failed), 4) if completed or failed else None,
        deprecated=_stored_parts.decode(standing_json).deprecated if standing_json else None,
        looks_like=looks_like,
        copy_of=copy_of,
        source=source or None,
        licence=licence or "none",
    )
    return Shown(version_id, names_json, summary_json, entry, standing_warnings(standing_json))


def with_entry(item_json: str, entry: CatalogueEntry) -> str:
    """Return the JSON text of an item with the member `catalogue` added."""
    return f'{item_json[:-1]},"catalogue":{msgspec.json.encode(entry).decode()}}}'


# With one row for each skill, the name is unique. Cursors of list_skills without filters have the same position.
_BY_UNIQUE_NAME = Order((catalogue.c.namespace, catalogue.c.name), False)


def list_catalogue(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    filters: CatalogueFilter,
    sort: Sort = "name",
    detail: Literal["names", "summary"] = "names",
    limit: int,
    cursor: str,
    entries: bool = False,
    counts: CountsCache | None = None,
) -> msgspec.Raw:
    """Return a page of `list_skills` as JSON: the rows that pass the filters and that the identity sees.

    `entries` adds an entry to each item. `counts` adds the totals and facets of all pages. Development versions are not
    in the catalogue. Raise InvalidCursor if the cursor belongs to another listing.
    """
    order = _order_of(sort, filters)
    bound_to = _bound_to(filters, sort, detail)
    after = read_cursor(key, bound_to, cursor, len(order.columns)) if cursor else None
    keys = _keys(connection, identity, filters, sort, after, limit + 1)
    rows = read_until_full(partial(_read, connection, keys), min(limit, len(keys)), partial(_size_of, detail))
    page = fitting(rows, map(partial(_size_of, detail), rows))
    answered = _count_up_to(page[-1], keys) if page else 0
    next_cursor = make_cursor(key, bound_to, _position(order, keys[answered - 1])) if 0 < answered < len(keys) else None
    counted = count_catalogue(connection, identity, filters, counts) if counts is not None else None
    return _answer([_item(row, detail, entries) for row in page], next_cursor, counted)


def cursor_after_name(key: bytes, filters: CatalogueFilter, namespace: str, name: str) -> str:
    """Return a cursor for `list_catalogue` that continues after the given skill, by name. It need not exist."""
    return make_cursor(key, _bound_to(filters, "name", "names"), (namespace, name))


def _bound_to(filters: CatalogueFilter, sort: Sort, detail: str) -> tuple[str, ...]:
    """Return the query that a cursor is valid for: that of list_skills if there is no further filter and no order."""
    is_plain = filters == CatalogueFilter(filters.namespace, hidden=filters.hidden) and "internal" in filters.hidden
    if sort == "name" and is_plain:
        return "list_skills", filters.namespace, detail
    return "list_skills", filters.namespace, detail, sort, msgspec.json.encode(filters).decode()


def _order_of(sort: Sort, filters: CatalogueFilter) -> Order:
    return _BY_UNIQUE_NAME if sort == "name" and filters.of_listed else ORDERS[sort]


def _keys(
    connection: Connection,
    identity: Identity,
    filters: CatalogueFilter,
    sort: Sort,
    after: tuple[str, ...] | None,
    rows: int,
) -> Sequence[Any]:
    """Return a key for each of the next versions: its position, and the version id at the end."""
    values = condition_parameters(filters, identity)
    if after is not None:
        columns = _order_of(sort, filters).columns
        values |= {f"after_{at}": _value(connection, column, after[at]) for at, column in enumerate(columns)}
    return _statement(filters.shape, view_of(identity), sort, after is not None, rows).rows(connection, **values)


# A statement for many grants is large, and callers choose the filters.
@lru_cache(256)
def _statement(shape: CatalogueFilter, view: View | None, sort: Sort, is_after: bool, rows: int) -> Statement:
    order = _order_of(sort, shape)
    statement: Select[Any] = select(*order.columns, catalogue.c.version_id).where(*conditions(shape, view))
    if is_after:
        start = tuple_(*(bindparam(f"after_{place}", type_=column.type) for place, column in enumerate(order.columns)))
        columns = tuple_(*order.columns)
        statement = statement.where(columns < start if order.is_descending else columns > start)
    statement = statement.order_by(*(column.desc() if order.is_descending else column for column in order.columns))
    # A literal, as in the listing by names: Postgres plans a statement once for all parameters.
    return Statement(statement.limit(literal_column(str(rows))))


def _value(connection: Connection, column: ColumnElement[Any], text: str) -> object:
    if column.type is Moment:
        return as_stored(connection, datetime.fromisoformat(text))
    return int(text) if column.type.python_type is int else text


def _position(order: Order, row: Any) -> tuple[str, ...]:
    values = zip(order.columns, row, strict=False)
    return tuple(in_utc(value).isoformat() if column.type is Moment else str(value) for column, value in values)


def _read(connection: Connection, keys: Sequence[Any], wanted: int, last: Shown | None) -> list[Shown]:
    """Return at most `wanted` rows after `last`, with their items."""
    start = _count_up_to(last, keys) if last is not None else 0
    return show(connection, [key[-1] for key in keys[start : start + wanted]])


def _count_up_to(row: Shown, keys: Sequence[Any]) -> int:
    """Return the number of keys up to the one of `row`."""
    return next(count for count, key in enumerate(keys, 1) if key[-1] == row.version_id)


def _size_of(detail: Literal["names", "summary"], row: Shown) -> int:
    return len(_stored(row, detail).encode())


def _stored(row: Shown, detail: Literal["names", "summary"]) -> str:
    return row.names_json if detail == "names" else row.summary_json


def _item(row: Shown, detail: Literal["names", "summary"], entries: bool) -> str:
    stored = with_warnings(_stored(row, detail), row.warnings)
    return with_entry(stored, row.entry) if entries else stored


def _answer(items: Sequence[str], next_cursor: str | None, counted: Counts | None) -> msgspec.Raw:
    closing = f'"{next_cursor}"' if next_cursor else "null"
    further = f",{msgspec.json.encode(counted)[1:-1].decode()}" if counted is not None else ""
    return msgspec.Raw(f'{{"skills":[{",".join(items)}],"next_cursor":{closing}{further}}}'.encode())


# Structs of results. The registry mostly returns stored JSON text instead; a test decodes such answers into these
# structs.


TITLE = Meta(description="For people, if the author states one that says more than the name")
SUMMARY = Meta(description="With detail 'summary'")
DEPRECATED = Meta(description="If the version is deprecated or yanked, with the successor")
CATALOGUE = Meta(description="With catalogue: true")
TOTAL = Meta(description="With counts: true: the number of matching rows of all pages, at most 1000")
IS_MORE = Meta(description="With counts: true: whether there are more than total")
FACETS = Meta(description="With counts: true")


class SkillRow(Struct, frozen=True):
    """The latest version of a skill."""

    name: str
    version: str
    description: str
    namespace: str
    kind: Kind
    title: Annotated[str | UnsetType, TITLE] = UNSET
    tags: Annotated[list[str] | UnsetType, SUMMARY] = UNSET
    inputs: Annotated[Object | UnsetType, SUMMARY] = UNSET
    tools: Annotated[list[str] | UnsetType, SUMMARY] = UNSET
    warnings: Annotated[list[str] | UnsetType, DEPRECATED] = UNSET
    catalogue: Annotated[CatalogueEntry | UnsetType, CATALOGUE] = UNSET


class SkillPage(Struct, frozen=True):
    """A page of skills, sorted by the bytes of (namespace, name)."""

    skills: list[SkillRow]
    next_cursor: NextCursor
    total: Annotated[int | UnsetType, TOTAL] = UNSET
    total_is_more: Annotated[bool | UnsetType, IS_MORE] = UNSET
    facets: Annotated[Facets | UnsetType, FACETS] = UNSET
