"""The stored words that stand for each word of a query.

A word of a query stands for its stem, its synonyms, words that it may begin (if it is the last and unfinished), and
corrections (if it is misspelt). Only words of visible skills count: a word that only hidden skills contain is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Select, cast, column, func, literal_column, select, table
from sqlalchemy import bindparam as bound
from sqlalchemy.dialects.postgresql import TSQUERY

from skillery.database import Statement
from skillery.database.tables import search_postings, search_spellings, search_words, skills
from skillery.formats.search_fields import (
    WHOLE,
    distance,
    is_known_spelling,
    may_be_misspelt,
    mistakes_allowed,
    pieces_of,
    synonyms_in,
)
from skillery.formats.wording import near_words
from skillery.formats.words import Term, beginning_of, stem_of
from skillery.skills.search_index import VisibilityShape, VisibleSkills, is_seen

MOST_COUNTED = 4096
"""The highest count of a word's postings. Higher counts would not change the weight of the word."""
MOST_TEXTS = 300
"""The maximum number of texts with a word that are searched. A more frequent word says too little about each text."""
EXACT, UNFINISHED, CORRECTED, SYNONYM = 10, 8, 6, 5
"""Factors of a posting's points: exact word, completion of an unfinished word, correction of a misspelt word, synonym.
"""
_MOST_WEIGHT = MOST_COUNTED.bit_length()
_RARE = 2
_TIMES_AS_OFTEN = 20
"""A rare word counts as misspelt if a similar word is at least this many times as frequent."""
_MOST_NEAR, _MOST_CORRECTIONS, _MOST_UNFINISHED = 60, 5, 10
_MOST_SUGGESTED, _FARTHEST = 5, 3
_LEAST_OF_TEXT_PREFIX = 3
_KEPT = 128
_FTS = table("search_index", column("rowid"))

Texts = Literal["none", "few", "first"]
"""The texts with a word that count: none, all (if they are few), or only the first texts that are found."""


class Meaning(msgspec.Struct, frozen=True, array_like=True):
    """The stored words that stand for one word of a query. Cursors contain these words."""

    words: dict[str, int]
    """The factor of a posting's points, by stem."""
    prefix: str
    """Words of texts that begin with this prefix count too. "" means that no prefix counts."""
    stem: str
    rows: int
    """The number of postings of all words in `words`."""
    texts: Texts
    weight: int
    """The weight of the query's word, from 1 to 12. Rarer words have higher weights."""

    def matches(self, word: str) -> bool:
        return word == self.stem or word in self.words or (self.prefix != "" and word.startswith(self.prefix))

    def beginnings(self) -> list[str]:
        # Keys of groups of synonyms begin with a tab, as no word of a text does.
        beginnings = [beginning_of(word) for word in (self.stem, *self.words) if not word.startswith("\t")]
        return [*beginnings, self.prefix] if self.prefix else beginnings


def meanings_of(connection: Connection, visible: VisibleSkills, terms: Sequence[Term]) -> list[Meaning]:
    """Return the stored words for each word of the query. Words that no visible skill has are omitted."""
    joined = _joined(terms)
    synonyms = synonyms_in([term.word for term in terms])
    stems = [*(term.word for term in terms), *(word for words in joined.values() for word in words)]
    counts = count_postings(connection, visible, [*stems, *(key for keys in synonyms for key in keys)])
    looked_up = [
        _look_up(connection, visible, term, counts, joined[term.spelt], keys)
        for term, keys in zip(terms, synonyms, strict=True)
    ]
    in_texts = _count_texts(connection, visible, looked_up)
    meanings = [_meaning(connection, visible, word, in_texts.get(word.term.word, 0)) for word in looked_up]
    return [meaning for meaning in meanings if meaning.words or meaning.texts != "none"]


class _LookedUp(msgspec.Struct, frozen=True):
    """A word of a query, with the stored words of names, descriptions and tags that it equals or begins."""

    term: Term
    postings: dict[str, int]
    """The number of postings, by stem."""
    counts: int
    prefix: str
    synonyms: dict[str, int]
    """The number of postings of each group of synonyms."""

    @property
    def rows(self) -> int:
        return sum(self.postings.values())


def _look_up(
    connection: Connection,
    visible: VisibleSkills,
    term: Term,
    counts: Mapping[str, int],
    joined: Sequence[str],
    groups: Sequence[str],
) -> _LookedUp:
    stems = {word: counts[word] for word in (term.word, *joined) if counts[word]}
    synonyms = {key: counts[key] for key in groups if counts[key]}
    if stems or synonyms or not term.is_last:
        return _LookedUp(term, stems, EXACT, "", synonyms)
    begun = _begun(connection, visible, term.spelt)
    is_open = not begun and len(term.spelt) >= _LEAST_OF_TEXT_PREFIX
    return _LookedUp(term, begun, UNFINISHED, term.spelt if is_open else "", {})


def _meaning(connection: Connection, visible: VisibleSkills, word: _LookedUp, in_texts: int) -> Meaning:
    words, rows = dict.fromkeys(word.postings, word.counts), word.rows
    is_begun = bool(word.postings) and word.counts == UNFINISHED
    if rows + in_texts <= _RARE and not is_begun and not word.synonyms and may_be_misspelt(word.term.spelt):
        near = _corrections(connection, visible, word.term, rows + in_texts)
        words |= dict.fromkeys(near, CORRECTED)
        rows += sum(near.values())
    texts: Texts = "few" if 0 < in_texts <= MOST_TEXTS else "first" if in_texts and not rows else "none"
    # Synonyms do not make a word more frequent, and therefore less important.
    often = rows + in_texts or sum(word.synonyms.values())
    weight = max(1, _MOST_WEIGHT - min(often, MOST_COUNTED).bit_length())
    words |= dict.fromkeys(word.synonyms, SYNONYM)
    rows += sum(word.synonyms.values())
    return Meaning(words, word.prefix, word.term.word, rows, texts, weight)


def _joined(terms: Sequence[Term]) -> dict[str, list[str]]:
    """Return, for each word of the query, the stems of this word joined with its neighbours: `power point` gives
    `powerpoint`.
    """
    joined: dict[str, list[str]] = {term.spelt: [] for term in terms}
    for left, right in pairwise(terms):
        both = left.spelt + right.spelt
        if may_be_misspelt(both):
            joined[left.spelt].append(stem_of(both))
            joined[right.spelt].append(stem_of(both))
    return joined


# -- how often ---------------------------------------------------------------------------------------------------


def count_postings(connection: Connection, visible: VisibleSkills, words: Sequence[str]) -> dict[str, int]:
    """Return the number of postings of each word in visible skills, counted up to MOST_COUNTED."""
    distinct = list(dict.fromkeys(words))
    if not distinct:
        return {}
    values = {f"word_{place}": word for place, word in enumerate(distinct)}
    statement = _counting(len(distinct), visible.visibility_shape)
    (row,) = statement.rows(connection, **values, **visible.parameters)
    return dict(zip(distinct, row, strict=True))


@lru_cache(_KEPT)
def _counting(words: int, visibility_shape: VisibilityShape) -> Statement:
    return Statement(select(*(_count(f"word_{place}", visibility_shape) for place in range(words))))


def _count(name: str, visibility_shape: VisibilityShape) -> Any:
    some: Select[Any] = select(literal_column("1").label("one")).where(search_postings.c.word == bound(name))
    some = some.where(*is_seen(visibility_shape, search_postings, search_postings.c.skill_id))
    limited = some.limit(literal_column(str(MOST_COUNTED))).subquery()
    return select(func.count()).select_from(limited).scalar_subquery()


def _count_texts(connection: Connection, visible: VisibleSkills, looked_up: Sequence[_LookedUp]) -> dict[str, int]:
    """Return the number of visible texts with each word, counted up to MOST_TEXTS + 1. Words with many postings are
    omitted.
    """
    rare = [word for word in looked_up if word.rows <= MOST_TEXTS]
    if not rare:
        return {}
    dialect = connection.dialect.name
    values = {f"text_{place}": text_query(dialect, word.term.word, word.prefix) for place, word in enumerate(rare)}
    (row,) = _counting_texts(dialect, len(rare), visible.visibility_shape).rows(
        connection, **values, **visible.parameters
    )
    return {word.term.word: count for word, count in zip(rare, row, strict=True)}


@lru_cache(_KEPT)
def _counting_texts(dialect: str, words: int, visibility_shape: VisibilityShape) -> Statement:
    return Statement(select(*(_count_of_texts(dialect, place, visibility_shape) for place in range(words))))


def _count_of_texts(dialect: str, place: int, visibility_shape: VisibilityShape) -> Any:
    some = texts_with(dialect, f"text_{place}")
    if visibility_shape.view is not None:
        matching = some.subquery("found")
        some = select(matching.c.skill_id).join_from(matching, skills, skills.c.id == matching.c.skill_id)
        some = some.where(*is_seen(visibility_shape, skills, skills.c.id))
    limited = some.limit(literal_column(str(MOST_TEXTS + 1))).subquery()
    return select(func.count()).select_from(limited).scalar_subquery()


def texts_with(dialect: str, parameter: str) -> Select[Any]:
    """Return the statement for the ids of skills whose text matches a `text_query`, given as the SQL parameter
    `parameter`.
    """
    if dialect == "sqlite":
        matches = literal_column("search_index").op("MATCH", is_comparison=True)(bound(parameter))
        return select(_FTS.c.rowid.label("skill_id")).where(matches)
    query = cast(bound(parameter), TSQUERY)
    return select(search_words.c.skill_id).where(search_words.c.words.op("@@", is_comparison=True)(query))


def text_query(dialect: str, word: str, prefix: str) -> str:
    """Return the search expression for a word in the syntax of the database. With `prefix`, words with this prefix
    match too.

    Nothing is escaped: words have only letters, digits and marks.
    """
    if dialect == "sqlite":
        return f'"{word}" OR "{prefix}" *' if prefix else f'"{word}"'
    return f"'{word}' | '{prefix}':*" if prefix else f"'{word}'"


# -- unfinished and misspelt words -------------------------------------------------------------------------------


def _begun(connection: Connection, visible: VisibleSkills, beginning: str) -> dict[str, int]:
    """Return stems of visible words that begin with `beginning`, shortest word first, with their number of postings."""
    if not is_known_spelling(beginning):
        return {}
    values = {"piece": WHOLE, "low": beginning, "high": beginning + "\U0010ffff"}
    rows = _beginning(visible.visibility_shape).rows(connection, **values, **visible.parameters)
    return _counted(connection, visible, [stem for _, stem in rows])


@lru_cache(_KEPT)
def _beginning(visibility_shape: VisibilityShape) -> Statement:
    word = search_spellings.c.word
    begun = select(word, search_spellings.c.stem).where(
        search_spellings.c.piece == bound("piece"),
        word >= bound("low"),
        word < bound("high"),
        _is_used(visibility_shape),
    )
    return Statement(begun.order_by(func.length(word), word).limit(literal_column(str(_MOST_UNFINISHED))))


def _corrections(connection: Connection, visible: VisibleSkills, term: Term, number: int) -> dict[str, int]:
    """Return stems of the most similar visible words, with their number of postings.

    `number` is the number of postings and texts with the word itself. If the word exists, only much more frequent words
    are returned.
    """
    most = mistakes_allowed(term.spelt)
    pieces = pieces_of(term.spelt)
    values: dict[str, Any] = {f"piece_{place}": piece for place, piece in enumerate(pieces)}
    values |= {"low": len(term.spelt) - most, "high": len(term.spelt) + most}
    rows = _near(len(pieces), visible.visibility_shape).rows(connection, **values, **visible.parameters)
    far = [(distance(term.spelt, word, most), stem) for word, stem, _ in rows if stem != term.word]
    nearest = min((mistakes for mistakes, _ in far), default=most + 1)
    stems = [stem for mistakes, stem in far if mistakes == nearest <= most]
    counted = _counted(connection, visible, stems[:_MOST_CORRECTIONS])
    return {stem: count for stem, count in counted.items() if count >= max(1, number * _TIMES_AS_OFTEN)}


def similar_words(connection: Connection, visible: VisibleSkills, terms: Sequence[Term]) -> str:
    """Return the words of a query without results, each replaced by the most similar visible word, or "" if none is.

    The words may differ more than `_corrections` allows, because a person decides about them.
    """
    near = {term.spelt: _similar_word(connection, visible, term.spelt) for term in terms[:_MOST_SUGGESTED]}
    return " ".join(near.get(term.spelt) or term.spelt for term in terms) if any(near.values()) else ""


def _similar_word(connection: Connection, visible: VisibleSkills, spelt: str) -> str:
    if not may_be_misspelt(spelt):
        return ""
    pieces = pieces_of(spelt)
    values: dict[str, Any] = {f"piece_{place}": piece for place, piece in enumerate(pieces)}
    values |= {"low": len(spelt) - _FARTHEST, "high": len(spelt) + _FARTHEST}
    rows = _near(len(pieces), visible.visibility_shape).rows(connection, **values, **visible.parameters)
    return next(iter(near_words(spelt, [row[0] for row in rows], most=1)), "")


@lru_cache(_KEPT)
def _near(pieces: int, visibility_shape: VisibilityShape) -> Statement:
    columns = search_spellings.c
    shared = func.count().label("shared")
    some = (
        select(columns.word, columns.stem, shared)
        .where(columns.piece.in_([bound(f"piece_{place}") for place in range(pieces)]))
        .where(func.length(columns.word).between(bound("low"), bound("high")))
        .group_by(columns.word, columns.stem)
        .having(shared >= literal_column("2"))
    ).subquery("near")
    near = select(some).where(_is_used(visibility_shape, some.c.stem)).order_by(some.c.shared.desc(), some.c.word)
    return Statement(near.limit(literal_column(str(_MOST_NEAR))))


def _is_used(visibility_shape: VisibilityShape, stem: Any = search_spellings.c.stem) -> Any:
    """Return the SQL condition that a visible skill has the word with this stem."""
    some: Select[Any] = select(literal_column("1")).where(search_postings.c.word == stem)
    some = some.where(*is_seen(visibility_shape, search_postings, search_postings.c.skill_id))
    return some.exists()


def _counted(connection: Connection, visible: VisibleSkills, stems: Sequence[str]) -> dict[str, int]:
    counts = count_postings(connection, visible, stems)
    return {stem: count for stem, count in counts.items() if count}
