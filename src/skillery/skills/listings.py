"""list_skills: one row for each skill, with the data of its latest version. Pages continue from a (namespace, name)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    literal_column,
    not_,
    null,
    select,
    tuple_,
    union,
    union_all,
)

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.registry import Registry
from skillery.database.tables import skill_versions, skills
from skillery.formats.names import parse_namespace
from skillery.method import HIDDEN, Cursor, Json, Method, PageLimit, about, or_none
from skillery.registry.cursors import bytes_of, fitting, make_cursor, read_cursor, read_until_full
from skillery.registry.development import merged, overlay_of
from skillery.registry.version_rows import standing_warnings, with_warnings
from skillery.registry.visibility import (
    Hidden,
    View,
    has_audience,
    hidden_audiences,
    is_own,
    parameters,
    seen_by_namespace,
    versions_for,
    view_of,
)
from skillery.skills.catalogue_counts import CountsCache
from skillery.skills.catalogue_filters import FilterStatus, SkillFilters, filter_of
from skillery.skills.catalogue_listings import SkillPage, list_catalogue

Detail = Literal["names", "summary"]
Item = Literal["names", "summary", "key"]
_LINE: ColumnElement[str] = literal_column("'\n'")
_IS_DEPRECATED = skill_versions.c.status == literal_column("'deprecated'")


def _item_of(column: Column[Any]) -> ColumnElement[Any]:
    """Return the stored item of a version. A deprecated version has its standing before the item, both in lines."""
    return case((_IS_DEPRECATED, _LINE + skill_versions.c.standing_json + _LINE + column), else_=column)


ITEMS: dict[Item, ColumnElement[Any]] = {
    "names": _item_of(skill_versions.c.names_json),
    "summary": _item_of(skill_versions.c.summary_json),
    "key": skill_versions.c.id,
}


# The number of cached compiled statements. The row limit is part of a statement's text and not a parameter: Postgres
# plans a statement once for all parameters, and for a million skills the plan is good only if the limit is known.
_KEPT = 256


def _page(detail: Item, rows: int, only_public: bool, hidden: Hidden, *where: ColumnElement[bool]) -> Select[Any]:
    item: ColumnElement[Any] = ITEMS[detail]
    if only_public:
        # This column replaces the item: fetching both columns would make a listing a tenth slower.
        item = case((skills.c.visibility == literal_column("'public'"), item), else_=null())
    return (
        select(skills.c.namespace, skills.c.name, item.label("item"))
        .join_from(skills, skill_versions, skill_versions.c.id == skills.c.latest_version_id)
        .where(skills.c.latest_version_id.is_not(None), *where)
        # On the version, whose row is read anyway: a page reads no row of `skills`.
        .where(not_(has_audience(hidden)))
        .order_by(skills.c.namespace, skills.c.name)
        .limit(literal_column(str(rows)))
    )


def _after() -> ColumnElement[bool]:
    return tuple_(skills.c.namespace, skills.c.name) > tuple_(bindparam("after_namespace"), bindparam("after_name"))


def _ranges(is_below: bool) -> list[ColumnElement[bool]]:
    """Return the conditions for the ranges of the index (namespace, name) that a page is read from.

    With `is_below`, there are two ranges: the namespace, and the namespaces below. Similar names sort between the two
    (`a`, `a-b`, `a.c`), so one range with a filter would also read them.
    """
    if not is_below:
        return [_after()]
    inside = and_(skills.c.namespace >= bindparam("below"), skills.c.namespace < bindparam("past"))
    return [and_(skills.c.namespace == bindparam("namespace"), _after()), and_(inside, _after())]


@lru_cache(_KEPT)
def _whole(detail: Item, rows: int, is_below: bool, only_public: bool, hidden: Hidden) -> Statement:
    """Return the statement for the next `rows` skills after the position of the cursor, whether the caller sees them or
    not.

    With `is_below`, the statement also reads the namespaces below. With `only_public`, the column `item` is null for a
    skill that is not public.
    """
    ranges = _ranges(is_below)
    if len(ranges) == 1:
        return Statement(_page(detail, rows, only_public, hidden, ranges[0]))
    both = union_all(
        *(select(_page(detail, rows, only_public, hidden, inside).subquery()) for inside in ranges)
    ).subquery()
    return Statement(select(both).order_by(both.c.namespace, both.c.name).limit(literal_column(str(rows))))


@lru_cache(_KEPT)
def _visible_statement(detail: Item, rows: int, is_below: bool, view: View, hidden: Hidden) -> Statement:
    """Return the statement for the next `rows` skills after the position of the cursor that an identity with this view
    sees.

    Each condition of `seen_by_namespace` has its own subquery, which returns at most `rows` skills. The subquery for
    the identity's own skills has no limit.
    """
    ranges = _ranges(is_below)
    branches = [
        _keys(hidden, is_visible, inside).limit(literal_column(str(rows)))
        for inside in ranges
        for is_visible in seen_by_namespace(view)
    ]
    # Without an order, so that no database walks through all skills: the rows are limited by what one identity
    # published.
    branches += [_keys(hidden, is_own(), inside).order_by(None) for inside in ranges]
    # Distinct: a skill can be visible by two conditions.
    branch_keys = union(*(select(branch.subquery()) for branch in branches)).subquery()
    keys = (
        select(branch_keys)
        .order_by(branch_keys.c.namespace, branch_keys.c.name)
        .limit(literal_column(str(rows)))
        .subquery()
    )
    return Statement(
        select(keys.c.namespace, keys.c.name, ITEMS[detail].label("item"))
        .join_from(keys, skill_versions, skill_versions.c.id == keys.c.latest_version_id)
        .order_by(keys.c.namespace, keys.c.name)
    )


def _keys(hidden: Hidden, *where: ColumnElement[bool]) -> Select[Any]:
    is_shown = skills.c.latest_version_id.not_in(versions_for(hidden))
    return (
        select(skills.c.namespace, skills.c.name, skills.c.latest_version_id)
        .where(skills.c.latest_version_id.is_not(None), is_shown, *where)
        .order_by(skills.c.namespace, skills.c.name)
    )


def read_skills(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    namespace: str,
    detail: Detail,
    limit: int,
    cursor: str,
) -> msgspec.Raw:
    """Return `{"skills": […], "next_cursor": …}` as JSON: a page of the skills that the identity sees.

    The skills are sorted by the bytes of (namespace, name). If items are large, a page is shorter than `limit`.
    `namespace` selects the skills of this namespace and of the namespaces below; "" selects all skills. Raise
    InvalidCursor if the cursor belongs to another listing.
    """
    bound_to = _bound_to(namespace, detail)
    after = read_cursor(key, bound_to, cursor, 2) if cursor else ("", "")
    rows = _rows(connection, identity, detail, limit + 1, (after[0], after[1]), namespace)
    items = [row[2] for row in rows[:limit]]
    page = fitting(items, bytes_of(items))
    more = len(rows) > len(page)
    next_cursor = make_cursor(key, bound_to, tuple(rows[len(page) - 1][:2])) if more else None
    return _answer(page, next_cursor)


def cursor_after_skill(key: bytes, namespace: str, name: str) -> str:
    """Return a cursor for all skills (detail `names`) that continues after the given skill. The skill need not
    exist.
    """
    return make_cursor(key, _bound_to("", "names"), (namespace, name))


def _bound_to(namespace: str, detail: Detail) -> tuple[str, str, str]:
    """Return the query that a cursor is valid for."""
    return "list_skills", namespace, detail


def _rows(
    connection: Connection, identity: Identity, detail: Detail, count: int, after: tuple[str, str], namespace: str
) -> list[Any]:
    overlay = overlay_of(identity)

    def stored(wanted: int, position: tuple[str, str]) -> list[Any]:
        return seen_rows(connection, identity, detail, wanted, position, namespace)

    def read(wanted: int, last: Any) -> list[Any]:
        position = (last[0], last[1]) if last else after
        if overlay is None:
            return stored(wanted, position)
        hidden = frozenset(overlay.names)
        return merged(stored, overlay.items(detail, namespace), lambda row: row[1] in hidden, wanted, position)

    if detail == "names":
        # Items of this detail are small, and one statement is faster.
        return read(count, None)
    return read_until_full(read, count, _size_of)


def _size_of(row: Any) -> int:
    return len(row[2].encode())


def seen_rows(
    connection: Connection,
    identity: Identity,
    detail: Item,
    count: int,
    after: tuple[str, str],
    namespace: str = "",
) -> list[Any]:
    """Return (namespace, name, item) of the first `count` skills after the position `after` that the identity sees.

    The item belongs to the latest version of the skill: JSON text, or for `key` the id of the version.
    """
    view, hidden = view_of(identity), hidden_audiences(identity)
    values = {"after_namespace": after[0], "after_name": after[1]}
    if namespace:
        # "/" follows "." in the order of bytes.
        values |= {"namespace": namespace, "below": f"{namespace}.", "past": f"{namespace}/"}
    rows = _whole(detail, count, bool(namespace), view is not None, hidden).rows(connection, **values)
    if view is not None and None in [row[2] for row in rows]:
        # Most pages contain no hidden skill, so this second statement is rarely needed.
        rows = _visible_statement(detail, count, bool(namespace), view, hidden).rows(
            connection, **values, **parameters(identity)
        )
    return rows


class FirstSkill(msgspec.Struct, frozen=True):
    """An item of list_skills with `summary`. Items that early releases stored do not have all members."""

    name: str
    description: str = ""
    kind: str = ""
    inputs: msgspec.Raw = msgspec.Raw(b"{}")
    """Not decoded, because the inputs of a skill can be large."""
    warnings: Sequence[str] = ()


def first_skills(connection: Connection, identity: Identity, count: int) -> list[FirstSkill] | None:
    """Return the skills that the identity sees, or None if it sees more than `count`."""
    if len(seen_rows(connection, identity, "key", count + 1, ("", ""))) > count:
        return None
    rows = seen_rows(connection, identity, "summary", count, ("", ""))
    return [msgspec.json.decode(_with_warnings(row[2]), type=FirstSkill) for row in rows]


def _answer(items: Sequence[str], next_cursor: str | None) -> msgspec.Raw:
    shown = ",".join(items)
    if "\n" in shown:  # JSON has no line feeds: there is a deprecated version
        shown = ",".join(map(_with_warnings, items))
    closing = f'"{next_cursor}"' if next_cursor else "null"
    return msgspec.Raw(f'{{"skills":[{shown}],"next_cursor":{closing}}}'.encode())


def _with_warnings(item: str) -> str:
    if not item.startswith("\n"):
        return item
    standing_json, item_json = item[1:].split("\n")
    return with_warnings(item_json, standing_warnings(standing_json))


class CatalogueParts(NamedTuple):
    """The parts of the core that `list_skills` uses."""

    registry: Registry
    counts: CountsCache


# -- list_skills -------------------------------------------------------------------------------------------------------


class ListSkills(SkillFilters, frozen=True, kw_only=True):
    """Enumerate available skills, optionally filtering by namespace. Results are deterministically sorted."""

    namespace: Annotated[str, about("Optional namespace to filter skills (e.g., 'salesforce')")] = ""
    detail: Annotated[Literal["names", "summary"], about("Level of detail to return", default="names")] = "names"
    limit: PageLimit = 50
    cursor: Cursor = ""
    status: Annotated[
        FilterStatus | msgspec.UnsetType,
        HIDDEN,
        about("Only versions with this status; omit for latest versions, published or deprecated"),
    ] = msgspec.UNSET
    sort: Annotated[
        Literal["name", "newest", "used"], HIDDEN, about("Order: by name, by publication, or by runs", default="name")
    ] = "name"


async def list_skills(catalogue: CatalogueParts, identity: Identity, params: ListSkills) -> Json[SkillPage]:
    namespace = parse_namespace(params.namespace) if params.namespace else ""
    if params != ListSkills(namespace=params.namespace, detail=params.detail, limit=params.limit, cursor=params.cursor):
        return await _list_catalogue(catalogue, identity, params, namespace)
    work = partial(
        read_skills,
        identity=identity,
        key=catalogue.registry.cursor_key,
        namespace=namespace,
        detail=params.detail,
        limit=params.limit,
        cursor=params.cursor,
    )
    return Json(await catalogue.registry.read(work))


async def _list_catalogue(
    catalogue: CatalogueParts, identity: Identity, params: ListSkills, namespace: str
) -> Json[SkillPage]:
    hidden = hidden_audiences(identity, internal=params.include_internal)
    work = partial(
        list_catalogue,
        identity=identity,
        key=catalogue.registry.cursor_key,
        filters=filter_of(namespace, or_none(params.kind) or "", params.tags, params.facts(params.status), hidden),
        sort=params.sort,
        detail=params.detail,
        limit=params.limit,
        cursor=params.cursor,
        entries=params.catalogue,
        counts=catalogue.counts if params.counts else None,
    )
    # Slow: a filter that few skills pass reads an index of all skills.
    return Json(await catalogue.registry.read_page(work))


METHODS = (Method(list_skills, "read", audits="", develops=True),)
