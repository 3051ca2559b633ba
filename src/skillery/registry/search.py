"""search_skills: skills by words, best first. SQLite and Postgres find and rank the same skills.

`search_terms` finds the stored words for each word of a query, `search_ranking` ranks the skills, and this module
builds the answer. A cursor contains the stored words of the first page. All pages of a query therefore use the same
words, even if skills are published in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, and_, bindparam, select

from skillery.backends import Identity
from skillery.database.tables import objects, search_words, skill_files, skill_versions
from skillery.errors import InvalidParams
from skillery.formats.snippets import snippet_of
from skillery.formats.words import Term, parse_query
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.pages import fitting, read_until_full, text_bytes
from skillery.registry.results import FoundSkill, FoundSkillPage, SkillRow
from skillery.registry.search_index import SKILL_MD, body_in, tag_word
from skillery.registry.search_ranking import most_points, ranking_of
from skillery.registry.search_statements import Filters
from skillery.registry.search_terms import Meaning, meanings_of
from skillery.registry.search_visibility import VisibleSkills, seen_by

Kind = Literal["", "action", "instruction"]
MOST_TAGS = 16
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
    select(search_words.c.skill_id, skill_versions.c.summary_json, skill_versions.c.skill_md_start, objects.c.data)
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


class Result(msgspec.Struct, frozen=True):
    """One skill in the results, with its points and the number of its copies."""

    name: str
    points: int
    copies: int
    details: Any


def search_skills(
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
) -> FoundSkillPage:
    """Return a page of skills for a query, best first.

    Each item has the fields of list_skills with `summary`, and `score` (above 0, at most 1), `snippet` and `copies`.
    Only skills that the identity sees are searched. A query without words finds nothing. Raise InvalidParams if `query`
    or `tags` is invalid, and InvalidCursor if the cursor belongs to another query.
    """
    terms = parse_query(query)
    asked_tags = _check_tags(tags)
    bound_to = ("search_skills", msgspec.json.encode([terms, kind, asked_tags, namespace]).decode())
    visible = seen_by(connection, identity)
    page_start = _page_start(connection, visible, key, bound_to, terms, cursor)
    if not page_start.meanings:
        return FoundSkillPage([], None)
    filters = Filters(visible.visibility_shape, bool(kind), bool(namespace), len(asked_tags))
    ranking = ranking_of(filters, page_start.meanings, page_start.after, limit + 1)
    given = visible.parameters | _filtering(kind, asked_tags, namespace) | ranking.parameters
    ranked = ranking.statement.rows(connection, **given)
    found = read_until_full(partial(_read, connection, ranked), min(limit, len(ranked)), _size_of)
    page = fitting(found, _size_of)
    more = len(ranked) > len(page)
    next_cursor = make_cursor(key, bound_to, _next_position(page_start, page[-1])) if more else None
    return FoundSkillPage([_item(one, page_start.meanings) for one in page], next_cursor)


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
    return str(last.points), last.name, msgspec.json.encode(page_start.meanings).decode()


def _filtering(kind: Kind, tags: Sequence[str], namespace: str) -> dict[str, str]:
    given: dict[str, str] = {f"tag_{number}": tag_word(tag) for number, tag in enumerate(tags)}
    # "/" follows "." in the order of bytes.
    given |= {"namespace": namespace, "below": f"{namespace}.", "past": f"{namespace}/"} if namespace else {}
    return given | ({"kind": kind} if kind else {})


def _read(connection: Connection, ranked: Sequence[Any], wanted: int, last: Result | None) -> list[Result]:
    """Return at most `wanted` results after `last`, with their details."""
    start = next((at for at, row in enumerate(ranked, 1) if last is not None and row[1] == last.name), 0)
    rows = ranked[start : start + wanted]
    details = {row.skill_id: row for row in connection.execute(_DETAILS, {"skill_ids": [row[0] for row in rows]})}
    # A skill that was hidden or yanked after the ranking has no details.
    return [Result(name, points, copies, details[id_]) for id_, name, points, copies in rows if id_ in details]


def _size_of(one: Result) -> int:
    return text_bytes(one.details.summary_json)


def _item(one: Result, meanings: Sequence[Meaning]) -> FoundSkill:
    summary = _rows.decode(one.details.summary_json)
    body = body_in(one.details.skill_md_start, one.details.data)
    score = max(_LEAST_SCORE, round(one.points / most_points(meanings), 3))
    snippet = snippet_of((summary.description, body), meanings)
    return FoundSkill(**msgspec.structs.asdict(summary), score=score, snippet=snippet, copies=one.copies)


def _check_tags(tags: Sequence[str]) -> list[str]:
    if len(tags) > MOST_TAGS:
        raise InvalidParams(
            f"'tags' has {len(tags)} tags, at most {MOST_TAGS} are allowed", hint="Filter by fewer tags.", param="tags"
        )
    if not all(tag.isprintable() for tag in tags):
        raise InvalidParams(
            "'tags' holds a character that no tag has", hint="Write them as list_skills shows them.", param="tags"
        )
    return sorted({tag.strip().casefold() for tag in tags if tag.strip()})
