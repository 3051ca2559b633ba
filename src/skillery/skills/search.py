"""search_skills: skills by words, best first. SQLite and Postgres find and rank the same skills.

`search_terms` finds the stored words for each word of a query, `search_statements` ranks the skills, and this module
builds the answer. A cursor contains the stored words of the first page. All pages of a query therefore use the same
words, even if skills are published in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import Connection, and_, bindparam, select

from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.database.tables import objects, search_words, skill_files, skill_versions
from skillery.formats.inputs import compact_inputs, inputs_in
from skillery.formats.names import parse_namespace
from skillery.formats.search_fields import snippet_of
from skillery.formats.words import Term, parse_query
from skillery.method import HIDDEN, Method, about, or_none
from skillery.registry.cursors import NextCursor, fitting, make_cursor, read_cursor, read_until_full
from skillery.registry.version_rows import Object, standing_warnings
from skillery.registry.visibility import hidden_audiences
from skillery.skills.catalogue_counts import Counts, Facets, count_found
from skillery.skills.catalogue_filters import Facts, ListedStatus, SkillFilters, check_tags, fact_parameters
from skillery.skills.catalogue_listings import (
    CATALOGUE,
    DEPRECATED,
    FACETS,
    IS_MORE,
    SUMMARY,
    TOTAL,
    CatalogueEntry,
    SkillRow,
    in_order,
    show,
)
from skillery.skills.catalogue_listings import Sort as ListSort
from skillery.skills.search_index import SKILL_MD, VisibleSkills, body_in, seen_by, tag_word
from skillery.skills.search_order import Ranked, Shown, in_groups, originals
from skillery.skills.search_statements import MOST_FOUND, Filters, most_points, ranking_of
from skillery.skills.search_terms import Meaning, meanings_of

Kind = Literal["", "action", "instruction"]
Detail = Literal["brief", "summary"]
WITH_INPUTS = 2
"""Number of items of a page that have the inputs in compact form."""
BRIEF_DESCRIPTION = 200
Sort = Literal["best"] | ListSort
NO_FACTS = Facts()
NOT_BRIEF = ("namespace", "tags", "inputs", "tools", "score", "snippet", "copies")
_LEAST_SCORE = 0.001
_meanings = msgspec.json.Decoder(list[Meaning])


class _StoredRow(SkillRow, frozen=True, kw_only=True):
    """The summary of a version as it was stored. Summaries that early releases stored do not have `namespace` and
    `kind`.
    """

    namespace: str = ""
    kind: Literal["action", "instruction"] = "action"


_rows = msgspec.json.Decoder(_StoredRow)

_DETAILS = (
    select(
        search_words.c.skill_id,
        search_words.c.version_id,
        skill_versions.c.summary_json,
        skill_versions.c.standing_json,
        skill_versions.c.skill_md_start,
        objects.c.data,
    )
    .join_from(search_words, skill_versions, skill_versions.c.id == search_words.c.version_id)
    .outerjoin(skill_files, and_(skill_files.c.version_id == skill_versions.c.id, skill_files.c.path == SKILL_MD))
    .outerjoin(objects, objects.c.sha256 == skill_files.c.sha256)
    .where(search_words.c.skill_id.in_(bindparam("skill_ids", expanding=True)))
)


class PageStart(msgspec.Struct, frozen=True):
    """The start of a page of results: the stored words for each word of the query, and the position after the previous
    page.

    A cursor contains both, so that all pages use the same words. `after` is (points, name) of the previous result, or
    None for the first page.
    """

    meanings: list[Meaning]
    after: tuple[int, str] | None


class Result(NamedTuple):
    """One skill in the results, with its details."""

    shown: Shown
    details: Any


def find_skills(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    query: str,
    kind: Kind,
    tags: Sequence[str],
    namespace: str,
    limit: int,
    cursor: str,
    facts: Facts = NO_FACTS,
    internal: bool = False,
    sort: Sort = "best",
    entries: bool = False,
    counts: bool = False,
    detail: Detail = "summary",
) -> FoundSkillPage:
    """Return a page of skills for a query, best first, or sorted by `sort`.

    With detail `summary`, each item has the fields of list_skills with `summary`, and `score` (above 0, at most 1),
    `snippet` and `copies`. With `brief`, an item has what a model needs to choose a skill. The first items have the
    inputs in compact form too.
    `entries` adds the entry of the catalogue to each item. `counts` adds the totals and facets of all pages.
    Only skills that the identity sees are searched. A query without words finds nothing. Raise InvalidParams if `query`
    or `tags` is invalid, and InvalidCursor if the cursor belongs to another query.
    """
    terms, warnings = parse_query(query)
    asked_tags = check_tags(tags)
    hidden = hidden_audiences(identity, internal=internal)
    bound_to = (*_bound_to(terms, kind, asked_tags, namespace, facts, sort), *(["internal"] if internal else []))
    visible = seen_by(connection, identity)
    page_start = _page_start(connection, visible, key, bound_to, terms, cursor)
    if not page_start.meanings:
        counted = count_found(connection, [], namespace, False) if counts else None
        return _page([], None, warnings, counted)
    shape = visible.visibility_shape
    filters = Filters(shape, bool(kind), bool(namespace), len(asked_tags), tuple(facts.values), hidden)
    values = visible.parameters | _filtering(kind, asked_tags, namespace) | fact_parameters(facts)
    ranking = ranking_of(filters, page_start.meanings)
    ranked = [*map(Ranked._make, ranking.statement.rows(connection, **values, **ranking.parameters))]
    groups = in_groups(connection, ranked)
    counted = None
    if counts or sort != "best":
        shown = originals(connection, groups)
        counted = _counts(connection, shown, len(ranked), namespace) if counts else None
        rest = _after(shown if sort == "best" else in_order(connection, shown, sort), page_start.after, sort)
        further = 0
    else:
        following = _after(groups, page_start.after)
        rest = originals(connection, following[:limit])
        further = len(following) - len(rest)
    results = read_until_full(partial(_read, connection, rest), min(limit, len(rest)), _size_of)
    page = fitting(results, map(_size_of, results))
    more = len(rest) + further > len(page)
    next_cursor = make_cursor(key, bound_to, _next_position(page_start, page[-1])) if more and page else None
    listed = _entries(connection, page) if entries else {}
    items = [_item(result, page_start.meanings, listed.get(result.details.version_id)) for result in page]
    items = [*map(_with_inputs, items[:WITH_INPUTS]), *items[WITH_INPUTS:]]
    return _page([_brief(item) for item in items] if detail == "brief" else items, next_cursor, warnings, counted)


def _bound_to(
    terms: Sequence[Term], kind: Kind, tags: Sequence[str], namespace: str, facts: Facts, sort: Sort
) -> tuple[str, ...]:
    """Return the query that a cursor is valid for."""
    further = (facts, sort) if facts.values or sort != "best" else ()
    return "search_skills", msgspec.json.encode([terms, kind, tags, namespace, *further]).decode()


def _counts(connection: Connection, shown: Sequence[Shown], matches: int, namespace: str) -> Counts:
    """Return the counts of all results. A search with MOST_FOUND matches, copies included, may have dropped others."""
    return count_found(connection, [row.skill_id for row in shown], namespace, matches >= MOST_FOUND)


def _after(rows: Sequence[Any], after: tuple[int, str] | None, sort: Sort = "best") -> Sequence[Any]:
    """Return the rows after the position of a cursor. All rows are read again for each page.

    If the skill at the position is no longer among the results, continue at its points. In another order than `best`,
    begin again: a repeated skill is better than a lost one.
    """
    if after is None:
        return rows
    at = next((number for number, row in enumerate(rows, 1) if row.position == after[1]), None)
    if at is not None:
        return rows[at:]
    if sort != "best":
        return rows
    return [row for row in rows if (-row.points, row.position) > (-after[0], after[1])]


def _entries(connection: Connection, page: Sequence[Result]) -> dict[int, CatalogueEntry]:
    return {
        result.version_id: result.entry for result in show(connection, [result.details.version_id for result in page])
    }


def _page(
    items: list[FoundSkill], next_cursor: str | None, warnings: list[str], counted: Counts | None
) -> FoundSkillPage:
    page = FoundSkillPage(items, next_cursor, warnings=warnings or UNSET)
    if counted is None:
        return page
    return msgspec.structs.replace(
        page, total=counted.total, total_is_more=counted.total_is_more, facets=counted.facets
    )


def _page_start(
    connection: Connection,
    visible: VisibleSkills,
    key: bytes,
    bound_to: tuple[str, ...],
    terms: Sequence[Term],
    cursor: str,
) -> PageStart:
    if not cursor:
        return PageStart(meanings_of(connection, visible, terms), None)
    points, name, meanings = read_cursor(key, bound_to, cursor, 3)
    return PageStart(_meanings.decode(meanings), (int(points), name))


def _next_position(page_start: PageStart, last: Result) -> tuple[str, str, str]:
    return str(last.shown.points), last.shown.position, msgspec.json.encode(page_start.meanings).decode()


def _filtering(kind: Kind, tags: Sequence[str], namespace: str) -> dict[str, str]:
    values: dict[str, str] = {f"tag_{number}": tag_word(tag) for number, tag in enumerate(tags)}
    # "/" follows "." in the order of bytes.
    values |= {"namespace": namespace, "below": f"{namespace}.", "past": f"{namespace}/"} if namespace else {}
    return values | ({"kind": kind} if kind else {})


def _read(connection: Connection, rest: Sequence[Shown], wanted: int, last: Result | None) -> list[Result]:
    """Return at most `wanted` results after `last`, with their details."""
    start = rest.index(last.shown) + 1 if last is not None else 0
    rows = rest[start : start + wanted]
    details = {row.skill_id: row for row in connection.execute(_DETAILS, {"skill_ids": [row.skill_id for row in rows]})}
    # A skill that was hidden or yanked after the ranking has no details.
    return [Result(row, details[row.skill_id]) for row in rows if row.skill_id in details]


def _size_of(result: Result) -> int:
    return len(result.details.summary_json.encode())


def _item(result: Result, meanings: Sequence[Meaning], entry: CatalogueEntry | None) -> FoundSkill:
    summary = _rows.decode(result.details.summary_json)
    body = body_in(result.details.skill_md_start, result.details.data)
    score = max(_LEAST_SCORE, round(result.shown.points / most_points(meanings), 3))
    snippet = snippet_of((summary.description, body), meanings)
    warnings = standing_warnings(result.details.standing_json)
    fields = {**msgspec.structs.asdict(summary), "catalogue": entry or UNSET, "warnings": warnings or UNSET}
    return FoundSkill(**fields, score=score, snippet=snippet, copies=result.shown.copies)


def _with_inputs(item: FoundSkill) -> FoundSkill:
    if item.kind == "instruction" or not isinstance(item.inputs, Mapping):
        return item
    return msgspec.structs.replace(item, compact_inputs=compact_inputs(inputs_in(item.inputs)))


def _brief(item: FoundSkill) -> FoundSkill:
    cut = item.description[: BRIEF_DESCRIPTION - 1] + "…"
    description = item.description if len(item.description) <= BRIEF_DESCRIPTION else cut
    return msgspec.structs.replace(item, description=description, **dict.fromkeys(NOT_BRIEF, UNSET))


# -- search_skills -----------------------------------------------------------------------------------------------------


class SearchSkills(SkillFilters, frozen=True, kw_only=True):
    """Find skills by words about the task, best first."""

    query: Annotated[str, about("Words or a question")]
    namespace: Annotated[str, HIDDEN, about("Only skills in this namespace and below it")] = ""
    limit: Annotated[int, Meta(ge=1, le=100), about("Maximum number of results", default=20)] = 20
    cursor: Annotated[str, HIDDEN, about("Pagination cursor from previous response")] = ""
    status: Annotated[ListedStatus | msgspec.UnsetType, HIDDEN, about("Only skills with this status")] = msgspec.UNSET
    sort: Annotated[
        Literal["best", "name", "newest", "used"],
        HIDDEN,
        about("Order: best match, by name, by publication, or by runs", default="best"),
    ] = "best"
    detail: Annotated[
        Literal["brief", "summary"], HIDDEN, about("brief: what a model needs to choose a skill", default="summary")
    ] = "summary"


async def search_skills(registry: Registry, identity: Identity, params: SearchSkills) -> FoundSkillPage:
    work = partial(
        find_skills,
        identity=identity,
        key=registry.cursor_key,
        query=params.query,
        kind=or_none(params.kind) or "",
        tags=params.tags,
        namespace=parse_namespace(params.namespace) if params.namespace else "",
        limit=params.limit,
        cursor=params.cursor,
        facts=params.facts(params.status),
        internal=params.include_internal,
        sort=params.sort,
        entries=params.catalogue,
        counts=params.counts,
        detail=params.detail,
    )
    # Slow: a search for a word that every skill has reads all skills.
    return await registry.read_page(work)


METHODS = (Method(search_skills, "read", audits=""),)


class FoundSkill(Struct, frozen=True):
    """A skill that a search found."""

    name: str
    version: str
    description: str
    kind: Kind
    namespace: Annotated[str | UnsetType, SUMMARY] = UNSET
    tags: Annotated[list[str] | UnsetType, SUMMARY] = UNSET
    inputs: Annotated[Object | UnsetType, SUMMARY] = UNSET
    tools: Annotated[list[str] | UnsetType, SUMMARY] = UNSET
    score: Annotated[float | UnsetType, SUMMARY] = UNSET
    snippet: Annotated[str | UnsetType, SUMMARY] = UNSET
    copies: Annotated[int | UnsetType, SUMMARY] = UNSET
    compact_inputs: Annotated[
        str | UnsetType, Meta(description="Of the first two skills; a question mark means optional")
    ] = UNSET
    warnings: Annotated[list[str] | UnsetType, DEPRECATED] = UNSET
    catalogue: Annotated[CatalogueEntry | UnsetType, CATALOGUE] = UNSET


class FoundSkillPage(Struct, frozen=True):
    """A page of search results, best first."""

    skills: list[FoundSkill]
    next_cursor: NextCursor
    total: Annotated[int | UnsetType, TOTAL] = UNSET
    total_is_more: Annotated[bool | UnsetType, IS_MORE] = UNSET
    facets: Annotated[Facets | UnsetType, FACETS] = UNSET
    warnings: Annotated[list[str] | UnsetType, Meta(description="If the query was cut")] = UNSET
