"""search_skills: skills by words, the best first; both databases find and rank alike.

`search_terms` says what the words of a query are looked up as, `search_ranking` ranks, and this module answers. A
cursor carries what the words meant on the first page, so that the pages of one query agree whatever is published.
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
from skillery.registry.search_ranking import Filters, most_points, ranking_of
from skillery.registry.search_terms import Meaning, understand
from skillery.registry.search_visibility import Seen, seen_by

Kind = Literal["", "action", "instruction"]
MOST_TAGS = 16
_LEAST_SCORE = 0.001
_meanings = msgspec.json.Decoder(list[Meaning])
_rows = msgspec.json.Decoder(SkillRow)

_DETAILS = (
    select(search_words.c.skill_id, skill_versions.c.summary_json, skill_versions.c.skill_md_start, objects.c.data)
    .join_from(search_words, skill_versions, skill_versions.c.id == search_words.c.version_id)
    .outerjoin(skill_files, and_(skill_files.c.version_id == skill_versions.c.id, skill_files.c.path == SKILL_MD))
    .outerjoin(objects, objects.c.sha256 == skill_files.c.sha256)
    .where(search_words.c.skill_id.in_(bindparam("skill_ids", expanding=True)))
)


class Place(msgspec.Struct, frozen=True):
    """Where a page begins, and what the words of its query mean."""

    meanings: list[Meaning]
    after: tuple[int, str] | None


class Result(msgspec.Struct, frozen=True):
    """One skill that was found."""

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
    """Return `skills` as list_skills gives them with `summary`, plus `score` (above 0, at most 1), `snippet` and
    `copies`, and `next_cursor`.

    Only what the identity sees is looked at. A query without a word finds nothing. Raises InvalidParams, InvalidCursor.
    """
    terms = parse_query(query)
    asked_tags = _check_tags(tags)
    bound_to = ("search_skills", msgspec.json.encode([terms, kind, asked_tags, namespace]).decode())
    seen = seen_by(connection, identity)
    place = _place(connection, seen, key, bound_to, terms, cursor)
    if not place.meanings:
        return FoundSkillPage([], None)
    filters = Filters(seen.sight, bool(kind), bool(namespace), len(asked_tags))
    ranking = ranking_of(filters, place.meanings, place.after, limit + 1)
    given = seen.parameters | _filtering(kind, asked_tags, namespace) | ranking.parameters
    ranked = ranking.statement.rows(connection, **given)
    found = read_until_full(partial(_read, connection, ranked), min(limit, len(ranked)), _size_of)
    page = fitting(found, _size_of)
    more = len(ranked) > len(page)
    next_cursor = make_cursor(key, bound_to, _goes_on(place, page[-1])) if more else None
    return FoundSkillPage([_item(one, place.meanings) for one in page], next_cursor)


def _place(
    connection: Connection,
    seen: Seen,
    key: bytes,
    bound_to: tuple[str, ...],
    terms: Sequence[Term],
    cursor: str,
) -> Place:
    if not cursor:
        return Place(understand(connection, seen, terms), None)
    points, name, meanings = read_cursor(key, bound_to, cursor, 3)
    return Place(_meanings.decode(meanings), (int(points), name))


def _goes_on(place: Place, last: Result) -> tuple[str, str, str]:
    return str(last.points), last.name, msgspec.json.encode(place.meanings).decode()


def _filtering(kind: Kind, tags: Sequence[str], namespace: str) -> dict[str, str]:
    given: dict[str, str] = {f"tag_{number}": tag_word(tag) for number, tag in enumerate(tags)}
    # "." is followed by "/" in the order of bytes.
    given |= {"namespace": namespace, "below": f"{namespace}.", "past": f"{namespace}/"} if namespace else {}
    return given | ({"kind": kind} if kind else {})


def _read(connection: Connection, ranked: Sequence[Any], wanted: int, last: Result | None) -> list[Result]:
    """The next results behind `last` with what is shown of them."""
    start = next((at for at, row in enumerate(ranked, 1) if last is not None and row[1] == last.name), 0)
    rows = ranked[start : start + wanted]
    details = {row.skill_id: row for row in connection.execute(_DETAILS, {"skill_ids": [row[0] for row in rows]})}
    # A skill that was hidden or yanked since it was ranked has no details.
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
            f"'tags' has {len(tags)} tags, at most {MOST_TAGS} are allowed", hint="Ask for fewer.", param="tags"
        )
    if not all(tag.isprintable() for tag in tags):
        raise InvalidParams(
            "'tags' holds a character that no tag has", hint="Write them as list_skills shows them.", param="tags"
        )
    return sorted({tag.strip().casefold() for tag in tags if tag.strip()})
