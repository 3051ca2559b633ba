"""search_skills: skills by words, the best first. SQLite finds them with FTS5, Postgres with tsvector and GIN.

Both are told what the words are (`formats.words`) and both count alike, so that they find the same and rank it the
same: a word in the name counts more than one in a tag, that more than one in the description, that more than one in
SKILL.md. How often it stands there does not matter: nobody gets to the top by repeating themselves. Since points depend
on nothing but the skill and the query, a page goes on where the one before it ended, whatever was published meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    or_,
    select,
    table,
)
from sqlalchemy.dialects.postgresql import TSQUERY

from skillery.backends import Identity
from skillery.errors import InvalidParams
from skillery.formats.snippets import snippet_of
from skillery.formats.words import Term, parse_query
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.indexing import SKILL_MD, body_in
from skillery.registry.pages import fitting, read_until_full, text_bytes
from skillery.registry.seeing import owns, parameters, seen_by_name, view_of
from skillery.tables import objects, search_words, skill_files, skill_versions, skills

Kind = Literal["", "action", "instruction"]
Field = Literal["name", "tags", "description", "words"]
POINTS: dict[Field, int] = {"name": 8, "tags": 4, "description": 2}
"""Of each word, beside the one for being there at all."""
MOST_POINTS = 1 + sum(POINTS.values())
MOST_TAGS = 16

_FTS = table("search_index", column("rowid"))
_FTS_MATCHES = literal_column("search_index").op("MATCH", is_comparison=True)


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
) -> dict[str, Any]:
    """`skills` as list_skills gives them with `summary`, plus `score` (above 0, at most 1) and `snippet`, and
    `next_cursor`.

    Only what the identity sees is looked at. A query without a word finds nothing. Raises InvalidParams, InvalidCursor.
    """
    terms = parse_query(query)
    asked_tags = _check_tags(tags)
    bound_to = ("search_skills", msgspec.json.encode([terms, kind, asked_tags, namespace]).decode())
    after = read_cursor(key, bound_to, cursor, 2) if cursor else None
    if not terms:
        return {"skills": [], "next_cursor": None}
    found = _found(connection.dialect.name, identity, terms, kind, asked_tags, namespace)

    def read(wanted: int, last: Any) -> Sequence[Any]:
        place = (str(last.points), last.name) if last is not None else after
        return connection.execute(_page(found, place, wanted), parameters(identity)).all()

    rows = read_until_full(read, limit + 1, _size_of)
    page = fitting(rows[:limit], _size_of)
    more = len(rows) > len(page)
    return {
        "skills": [_item(row, terms) for row in page],
        "next_cursor": make_cursor(key, bound_to, (str(page[-1].points), page[-1].name)) if more else None,
    }


def _size_of(row: Any) -> int:
    return text_bytes(row.summary_json)


def _item(row: Any, terms: Sequence[Term]) -> dict[str, Any]:
    summary: dict[str, Any] = msgspec.json.decode(row.summary_json)
    snippet = snippet_of((summary["description"], body_in(row.skill_md_start, row.data)), terms)
    return {**summary, "score": round(row.points / (MOST_POINTS * len(terms)), 3), "snippet": snippet}


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


# -- the statement -------------------------------------------------------------------------------------------------


def _found(
    dialect: str, identity: Identity, terms: Sequence[Term], kind: Kind, tags: Sequence[str], namespace: str
) -> Select[Any]:
    """Every skill that is seen and matches, with its points."""
    # Its words first: Postgres knows little of how many skills a condition on who sees them leaves, and would rather
    # begin with that, a hundred thousand skills for a word that stands in three.
    words = select(search_words.c.skill_id, search_words.c.tag_list, _points(dialect, terms).label("points"))
    matched = words.where(_has(dialect, "words", terms)).cte("matched")
    if dialect == "postgresql":
        matched = matched.prefix_with("MATERIALIZED")
    found = (
        select(skills.c.name, skills.c.latest_version_id, matched.c.points)
        .join_from(matched, skills, skills.c.id == matched.c.skill_id)
        .where(skills.c.latest_version_id.is_not(None))
    )
    view = view_of(identity)
    if view is not None:
        found = found.where(or_(*seen_by_name(view), owns()))
    if kind:
        version = skill_versions.alias("of_kind")
        found = found.join(version, version.c.id == skills.c.latest_version_id).where(version.c.kind == kind)
    if namespace:
        # "." is followed by "/" in the order of bytes.
        below = and_(skills.c.namespace >= f"{namespace}.", skills.c.namespace < f"{namespace}/")
        found = found.where(or_(skills.c.namespace == namespace, below))
    place = func.instr if dialect == "sqlite" else func.strpos
    # A line end stands before and after each, and in none.
    return found.where(*(place(matched.c.tag_list, f"\n{tag}\n") > 0 for tag in tags))


def _page(found: Select[Any], after: tuple[str, ...] | None, rows: int) -> Select[Any]:
    every = found.subquery("every")
    page = select(every)
    if after is not None:
        points, name = int(after[0]), after[1]
        page = page.where(or_(every.c.points < points, and_(every.c.points == points, every.c.name > name)))
    one = page.order_by(every.c.points.desc(), every.c.name).limit(rows).subquery("page")
    return (
        select(one.c.name, one.c.points, skill_versions.c.summary_json, skill_versions.c.skill_md_start, objects.c.data)
        .join_from(one, skill_versions, skill_versions.c.id == one.c.latest_version_id)
        .outerjoin(skill_files, and_(skill_files.c.version_id == skill_versions.c.id, skill_files.c.path == SKILL_MD))
        .outerjoin(objects, objects.c.sha256 == skill_files.c.sha256)
        .order_by(one.c.points.desc(), one.c.name)
    )


def _points(dialect: str, terms: Sequence[Term]) -> ColumnElement[int]:
    points: ColumnElement[int] = literal(len(terms))
    for term in terms:
        for field, more in POINTS.items():
            points = points + case((_has(dialect, field, [term]), more), else_=0)
    return points


def _has(dialect: str, field: Field, terms: Sequence[Term]) -> ColumnElement[bool]:
    """Whether a skill has all these words in a field."""
    if dialect == "sqlite":
        # As a set that is made once: FTS5 is asked for each word and field, not for each skill.
        expression = f"{field} : ({' AND '.join(map(_fts_term, terms))})"
        return search_words.c.skill_id.in_(select(_FTS.c.rowid).where(_FTS_MATCHES(literal(expression))))
    expression = " & ".join(map(_ts_term, terms))
    return search_words.c[field].op("@@", is_comparison=True)(cast(literal(expression), TSQUERY))


def _fts_term(term: Term) -> str:
    """Words hold letters, digits and marks only: there is nothing in them to escape."""
    return f'"{term.word}"' if term.prefix is None else f'("{term.word}" OR "{term.prefix}" *)'


def _ts_term(term: Term) -> str:
    return f"'{term.word}'" if term.prefix is None else f"('{term.word}' | '{term.prefix}':*)"
