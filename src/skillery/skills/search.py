"""search_skills: skills by words, best first. SQLite and Postgres find and rank the same skills.

`search_terms` finds the stored words for each word of a query, `search_statements` ranks the skills, and this module
builds the answer. A cursor contains the stored words of the first page. All pages of a query therefore use the same
words, even if skills are published in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.formats.names import parse_namespace
from skillery.formats.words import Term, parse_query
from skillery.method import HIDDEN, Method, about, or_none
from skillery.registry.cursors import fitting, make_cursor, read_cursor, read_until_full
from skillery.registry.resolution import near_names
from skillery.registry.searches import Searches
from skillery.registry.visibility import Hidden, hidden_audiences
from skillery.skills.catalogue_counts import Counts, count_found
from skillery.skills.catalogue_filters import Facts, ListedStatus, SkillFilters, check_tags, fact_parameters
from skillery.skills.catalogue_listings import CatalogueEntry, show
from skillery.skills.catalogue_order import Sort as ListSort
from skillery.skills.catalogue_order import in_order
from skillery.skills.search_fusion import MOST_POINTS, Meanings, Nearest, fused
from skillery.skills.search_index import VisibleSkills, seen_by, tag_word
from skillery.skills.search_order import Group, Ranked, Shown, below_successors, in_groups, originals
from skillery.skills.search_results import FoundSkillPage, Kind, Result, items_of, page_of, read_results
from skillery.skills.search_statements import MOST_FOUND, Filters, most_points, near_rows, ranking_of
from skillery.skills.search_terms import Meaning, meanings_of, similar_words

Detail = Literal["brief", "summary"]
Sort = Literal["best"] | ListSort
NO_FACTS = Facts()
BY_WORDS = Nearest([])
_meanings = msgspec.json.Decoder(list[Meaning])
_nearest = msgspec.json.Decoder(Nearest)


class PageStart(msgspec.Struct, frozen=True):
    """The start of a page of results: the stored words for each word of the query, the nearest skills, and the position
    after the previous page.

    A cursor contains all three, so that all pages have the same order. `after` is (points, name) of the previous
    result, or None for the first page.
    """

    meanings: list[Meaning]
    nearest: Nearest
    after: tuple[int, str] | None

    @property
    def most_points(self) -> int:
        return MOST_POINTS if self.nearest.skill_ids else most_points(self.meanings)


class _Narrowing(NamedTuple):
    """The filters of a search, and their values as SQL parameters."""

    filters: Filters
    values: dict[str, Any]


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
    nearest: Nearest = BY_WORDS,
) -> FoundSkillPage:
    """Return a page of skills for a query, best first, or sorted by `sort`.

    With detail `summary`, each item has the fields of list_skills with `summary`, and `score` (above 0, at most 1),
    `snippet` and `copies`. With `brief`, an item has what a model needs to choose a skill. The first items have the
    inputs in compact form too.
    `nearest` are the skills that the ranker found: the first page combines them with those by words.
    `entries` adds the entry of the catalogue to each item. `counts` adds the totals and facets of all pages.
    Only skills that the identity sees are searched. A query without words finds nothing. Raise InvalidParams if `query`
    or `tags` is invalid, and InvalidCursor if the cursor belongs to another query.
    """
    terms, warnings = parse_query(query)
    asked_tags = check_tags(tags)
    hidden = hidden_audiences(identity, internal=internal)
    bound_to = (*_bound_to(terms, kind, asked_tags, namespace, facts, sort), *(["internal"] if internal else []))
    visible = seen_by(connection, identity)
    page_start = _page_start(connection, visible, key, bound_to, terms, nearest, cursor)
    by_words = page_start.nearest.failed
    if not (page_start.meanings or page_start.nearest.skill_ids):
        counted = count_found(connection, [], namespace, False) if counts else None
        return page_of([], None, warnings, counted, by_words=by_words)
    narrowing = _narrowing(visible, kind, asked_tags, namespace, facts, hidden)
    ranked = _ranked(connection, narrowing, page_start.meanings)
    groups = _groups(connection, narrowing, ranked, page_start.nearest.skill_ids)
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
    items = items_of(page, page_start.meanings, page_start.most_points, listed, is_brief=detail == "brief")
    return page_of(items, next_cursor, warnings, counted, by_words=by_words)


def suggest(connection: Connection, identity: Identity, query: str) -> tuple[str, list[str]]:
    """Return similar words for a query without results, or "", and similar names of skills."""
    terms = parse_query(query)[0]
    words = similar_words(connection, seen_by(connection, identity), terms)
    return words, near_names(connection, identity, ".".join(query.lower().split()))


def see_skills(
    connection: Connection,
    identity: Identity,
    skill_ids: Sequence[int],
    *,
    kind: Kind,
    tags: Sequence[str],
    namespace: str,
    facts: Facts = NO_FACTS,
    internal: bool = False,
) -> list[int]:
    """Return those of the skills that the identity sees and that pass the filters, in the same order."""
    hidden = hidden_audiences(identity, internal=internal)
    narrowing = _narrowing(seen_by(connection, identity), kind, check_tags(tags), namespace, facts, hidden)
    seen = {row.skill_id for row in near_rows(connection, narrowing.filters, narrowing.values, skill_ids)}
    return [skill_id for skill_id in skill_ids if skill_id in seen]


def _narrowing(
    visible: VisibleSkills, kind: Kind, tags: Sequence[str], namespace: str, facts: Facts, hidden: Hidden
) -> _Narrowing:
    filters = Filters(visible.visibility_shape, bool(kind), bool(namespace), len(tags), tuple(facts.values), hidden)
    return _Narrowing(filters, visible.parameters | _filtering(kind, tags, namespace) | fact_parameters(facts))


def _ranked(connection: Connection, narrowing: _Narrowing, meanings: Sequence[Meaning]) -> list[Ranked]:
    """Return the skills that match words, best first."""
    if not meanings:
        return []
    ranking = ranking_of(narrowing.filters, meanings)
    return [*map(Ranked._make, ranking.statement.rows(connection, **narrowing.values, **ranking.parameters))]


def _groups(
    connection: Connection, narrowing: _Narrowing, ranked: Sequence[Ranked], near: Sequence[int]
) -> Sequence[Group]:
    """Return the results as groups of look-alikes, best first."""
    if not near:
        return below_successors(in_groups(connection, ranked))
    matched = {row.skill_id for row in ranked}
    others = {row.skill_id: row for row in near_rows(connection, narrowing.filters, narrowing.values, near)}
    further = [others[skill_id] for skill_id in near if skill_id in others and skill_id not in matched]
    return below_successors(fused(in_groups(connection, [*ranked, *further]), near))


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


def _page_start(
    connection: Connection,
    visible: VisibleSkills,
    key: bytes,
    bound_to: tuple[str, ...],
    terms: Sequence[Term],
    nearest: Nearest,
    cursor: str,
) -> PageStart:
    if not cursor:
        return PageStart(meanings_of(connection, visible, terms), nearest, None)
    points, name, meanings, near = read_cursor(key, bound_to, cursor, 4)
    return PageStart(_meanings.decode(meanings), _nearest.decode(near), (int(points), name))


def _next_position(page_start: PageStart, last: Result) -> tuple[str, ...]:
    kept = (msgspec.json.encode(part).decode() for part in (page_start.meanings, page_start.nearest))
    return (str(last.shown.points), last.shown.position, *kept)


def _filtering(kind: Kind, tags: Sequence[str], namespace: str) -> dict[str, str]:
    values: dict[str, str] = {f"tag_{number}": tag_word(tag) for number, tag in enumerate(tags)}
    # "/" follows "." in the order of bytes.
    values |= {"namespace": namespace, "below": f"{namespace}.", "past": f"{namespace}/"} if namespace else {}
    return values | ({"kind": kind} if kind else {})


def _read(connection: Connection, rest: Sequence[Shown], wanted: int, last: Result | None) -> list[Result]:
    """Return at most `wanted` results after `last`, with their details."""
    start = rest.index(last.shown) + 1 if last is not None else 0
    return read_results(connection, rest[start : start + wanted])


def _size_of(result: Result) -> int:
    return result.size


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


class Search:
    """The registry, the ranker if the server has one, and the words of recent searches."""

    def __init__(self, registry: Registry, meanings: Meanings, searches: Searches) -> None:
        self.registry = registry
        self.meanings = meanings
        self.searches = searches


async def search_skills(search: Search, identity: Identity, params: SearchSkills) -> FoundSkillPage:
    registry = search.registry
    filters: dict[str, Any] = {
        "kind": or_none(params.kind) or "",
        "tags": params.tags,
        "namespace": parse_namespace(params.namespace) if params.namespace else "",
        "facts": params.facts(params.status),
        "internal": params.include_internal,
    }
    nearest = BY_WORDS
    if not params.cursor and parse_query(params.query)[0]:
        nearest = await search.meanings.nearest(params.query, partial(_see, registry, identity, filters))
    work = partial(
        find_skills,
        identity=identity,
        key=registry.cursor_key,
        query=params.query,
        limit=params.limit,
        cursor=params.cursor,
        sort=params.sort,
        entries=params.catalogue,
        counts=params.counts,
        detail=params.detail,
        nearest=nearest,
        **filters,
    )
    # Slow: a search for a word that every skill has reads all skills.
    page = await registry.read_page(work)
    if not params.cursor:
        search.searches.note(identity.name, params.query, (skill.name for skill in page.skills))
    return page


async def _see(registry: Registry, identity: Identity, filters: dict[str, Any], skill_ids: Sequence[int]) -> list[int]:
    return await registry.read_page(partial(see_skills, identity=identity, skill_ids=skill_ids, **filters))


METHODS = (Method(search_skills, "read", audits=""),)
