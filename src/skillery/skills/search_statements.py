"""The SQL statements that rank the skills found by a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, literal_column, or_, select, union_all
from sqlalchemy import bindparam as bound

from skillery.database import Statement, as_list, is_among
from skillery.database.tables import catalogue, search_postings, search_words, skill_versions, skills
from skillery.formats.search_fields import IN_TEXT, LEAST_SHARE, MOST_IMPACT
from skillery.registry.visibility import Hidden, has_audience
from skillery.skills.catalogue_filters import fact_conditions, is_listed
from skillery.skills.search_index import VisibilityShape, is_seen
from skillery.skills.search_order import Ranked
from skillery.skills.search_terms import EXACT, MOST_TEXTS, Meaning, text_query, texts_with

MOST_PROBED = 640
"""The maximum number of candidates for which the points of frequent words are looked up. Candidates with few points
by rarer words are dropped.
"""
KEPT = 256

MOST_FOUND = 500
"""The maximum number of results of a query. Callers do not read more."""


class Filters(NamedTuple):
    """The filters of a search, as far as the text of the statement depends on them. `tags` is the number of tags."""

    visibility_shape: VisibilityShape
    kind: bool
    namespace: bool
    tags: int
    facts: tuple[str, ...] = ()
    """The names of the filters by values of the catalogue."""
    hidden: Hidden = ()


class Shape(NamedTuple):
    """All values that determine the text of the statement."""

    filters: Filters
    ranges: tuple[int, ...]
    """For each word, the highest number of postings that are read."""
    texts: tuple[bool, ...]
    """For each word that is searched in texts: True if only the first MOST_TEXTS texts are read, in the order of
    skill ids.
    """
    probes: tuple[int, ...]
    """For each frequent word of the query, the number of stored words that are looked up for each candidate."""
    has_alternatives: bool
    """True if several words of a skill can match one word of the query. Then the best of these words counts."""


@lru_cache(KEPT)
def statement_of(shape: Shape) -> Statement:
    parts = [_range(shape.filters, place, rows) for place, rows in enumerate(shape.ranges)]
    parts += [_texts(shape, place) for place in range(len(shape.texts))]
    matches = union_all(*(select(part.subquery()) for part in parts)).subquery("found")
    candidates = _candidates(_best_of_terms(matches) if shape.has_alternatives else matches, bool(shape.probes))
    scored = _with_probes(candidates, shape.probes)
    points = (scored.c.gain * scored.c.weight).label("points")
    ranked = (
        select(scored.c.skill_id, scored.c.name, points)
        .where(scored.c.weight * _number(LEAST_SHARE) >= bound("total"))
        .order_by(points.desc(), scored.c.name)
        .limit(_number(MOST_FOUND))
    ).subquery("ranked")
    same = search_words.c.skill_id == ranked.c.skill_id
    columns = (*ranked.c, search_words.c.copy_key, search_words.c.successor)
    joined = select(*columns).join_from(ranked, search_words, same)
    return Statement(joined.order_by(ranked.c.points.desc(), ranked.c.name))


def _best_of_terms(matches: Any) -> Any:
    """Return the rows of `matches`, reduced to the best row for each skill and each word of the query."""
    columns = [func.min(matches.c.name).label("name")]
    columns += [func.max(matches.c[name]).label(name) for name in ("gain", "hint", "weight")]
    return select(matches.c.skill_id, *columns).group_by(matches.c.skill_id, matches.c.term).subquery("of_term")


def _candidates(matches: Any, are_probed: bool) -> Any:
    columns = [func.min(matches.c.name).label("name")]
    columns += [func.sum(matches.c[name]).label(name) for name in ("gain", "weight")]
    candidates = select(matches.c.skill_id, *columns).group_by(matches.c.skill_id)
    if are_probed:
        best_first = func.sum(matches.c.hint).desc(), func.min(matches.c.name)
        candidates = candidates.order_by(*best_first).limit(_number(MOST_PROBED))
    return _kept(candidates, "candidates")


def _with_probes(candidates: Any, probes: tuple[int, ...]) -> Any:
    """Return the candidates with the points for frequent words added."""
    if not probes:
        return candidates
    looked_up = [_probe(candidates, place, words).label(f"gain_{place}") for place, words in enumerate(probes)]
    probed = _kept(select(candidates, *looked_up), "probed")
    gains = [probed.c[f"gain_{place}"] for place in range(len(probes))]
    zero = _number(0)
    weights = [case((gain.is_(None), zero), else_=bound(f"probe_weight_{place}")) for place, gain in enumerate(gains)]
    gain = sum((func.coalesce(gain, zero) for gain in gains), probed.c.gain)
    weight = sum(weights, probed.c.weight)
    return select(probed.c.skill_id, probed.c.name, gain.label("gain"), weight.label("weight")).subquery("scored")


def _probe(candidates: Any, place: int, words: int) -> Any:
    """Return the points of the first stored word that a candidate has, or NULL if a candidate has none of these words.

    Subqueries are used instead of a join, because SQLite would build a filter of all postings for a join.
    """
    gains = []
    for alternative in range(words):
        postings = search_postings.alias(f"probe_{place}_{alternative}")
        impact = _number(MOST_IMPACT) - postings.c.loss
        gain = select(impact * bound(f"probe_gain_{place}_{alternative}")).where(
            postings.c.skill_id == candidates.c.skill_id, postings.c.word == bound(f"probe_word_{place}_{alternative}")
        )
        gains.append(gain.scalar_subquery())
    return func.coalesce(*gains) if len(gains) > 1 else gains[0]


def _kept(rows: Select[Any], name: str) -> Any:
    """Return a part of the statement that is computed only once, even if the statement uses the part several times."""
    return rows.cte(name).prefix_with("MATERIALIZED")


def _range(filters: Filters, place: int, rows: int) -> Select[Any]:
    """Return the statement for the best postings of a word."""
    postings = search_postings.alias(f"range_{place}")
    impact = _number(MOST_IMPACT) - postings.c.loss
    best = select(*_columns(postings.c.skill_id, postings.c.name, "range", place, impact))
    best = best.where(postings.c.word == bound(f"range_word_{place}"))
    best = _narrowed(best, filters, postings, postings.c.skill_id)
    return best.order_by(postings.c.loss, postings.c.name).limit(_number(rows))


def _texts(shape: Shape, place: int) -> Select[Any]:
    """Return the statement for the skills with a word in their text: all of them if they are few, else the first
    MOST_TEXTS.
    """
    matching = texts_with(shape.filters.visibility_shape.dialect, f"text_words_{place}").subquery(f"matching_{place}")
    skill = skills.alias(f"of_text_{place}")
    statement = select(*_columns(skill.c.id, skill.c.name, "text", place, _number(IN_TEXT)))
    statement = statement.join_from(matching, skill, skill.c.id == matching.c.skill_id)
    statement = _narrowed(statement, shape.filters, skill, skill.c.id)
    if shape.texts[place]:
        statement = statement.order_by(matching.c.skill_id)
    return statement.limit(_number(MOST_TEXTS))


def _columns(skill_id: Any, name: Any, kind: str, place: int, impact: Any) -> list[Any]:
    return [
        skill_id.label("skill_id"),
        name.label("name"),
        bound(f"{kind}_term_{place}").label("term"),
        (impact * bound(f"{kind}_gain_{place}")).label("gain"),
        (impact * bound(f"{kind}_hint_{place}")).label("hint"),
        bound(f"{kind}_weight_{place}").label("weight"),
    ]


def _number(value: int) -> ColumnElement[int]:
    """Return a number that is part of the statement's text: Postgres plans well only if it knows the limit."""
    return literal_column(str(value))


def _narrowed(rows: Select[Any], filters: Filters, of: Any, skill_id: Any) -> Select[Any]:
    """Restrict rows to visible skills that pass the filters. `of` is a table with the `name` and `visibility` of the
    skills.
    """
    rows = rows.where(*is_seen(filters.visibility_shape, of, skill_id))
    if filters.hidden:
        rows = rows.where(~_is_for(filters.hidden, skill_id))
    if filters.namespace:
        rows = rows.where(of.c.name >= bound("below"), of.c.name < bound("past"))
    if filters.kind or filters.namespace:
        rows = rows.where(_is_of(filters, skill_id))
    if filters.facts:
        rows = rows.where(_has_facts(filters.facts, skill_id))
    for number in range(filters.tags):
        tagged = search_postings.alias(f"tagged_{number}")
        has_tag = and_(tagged.c.skill_id == skill_id, tagged.c.word == bound(f"tag_{number}"))
        rows = rows.where(select(_number(1)).select_from(tagged).where(has_tag).exists())
    return rows


def _is_for(audiences: Hidden, skill_id: Any) -> Any:
    """Return whether the latest version of a skill has one of these audiences. The skill's row is read by its key."""
    skill = skills.alias("for_others")
    latest = select(_number(1)).join_from(skill, skill_versions, skill_versions.c.id == skill.c.latest_version_id)
    return latest.where(skill.c.id == skill_id, has_audience(audiences)).exists()


def _is_of(filters: Filters, skill_id: Any) -> Any:
    skill, version = skills.alias("filtered"), skill_versions.alias("filtered_version")
    matching = select(_number(1)).join_from(skill, version, version.c.id == skill.c.latest_version_id)
    matching = matching.where(skill.c.id == skill_id)
    if filters.kind:
        matching = matching.where(version.c.kind == bound("kind"))
    if filters.namespace:
        below = and_(skill.c.namespace >= bound("below"), skill.c.namespace < bound("past"))
        matching = matching.where(or_(skill.c.namespace == bound("namespace"), below))
    return matching.exists()


def _has_facts(names: tuple[str, ...], skill_id: Any) -> Any:
    listing = catalogue.alias("with_facts")
    matching = select(_number(1)).select_from(listing).where(listing.c.skill_id == skill_id, is_listed(listing))
    return matching.where(*fact_conditions(names, listing)).exists()


def near_rows(
    connection: Connection, filters: Filters, values: Mapping[str, Any], skill_ids: Sequence[int]
) -> list[Ranked]:
    """Return those of the skills that are visible and pass the filters, without points and in any order."""
    listed = as_list(filters.visibility_shape.dialect, skill_ids)
    return [*map(Ranked._make, _near(filters).rows(connection, near_ids=listed, **values))]


@lru_cache(KEPT)
def _near(filters: Filters) -> Statement:
    columns = (skills.c.id, skills.c.name, _number(0), search_words.c.copy_key, search_words.c.successor)
    near = select(*columns).join_from(search_words, skills, skills.c.id == search_words.c.skill_id)
    near = near.where(is_among(filters.visibility_shape.dialect, search_words.c.skill_id, "near_ids"))
    return Statement(_narrowed(near, filters, skills, skills.c.id))


# -- The SQL statement that ranks the results of a query. The number of candidate skills is limited --------------------
# A posting is a row for a word of a skill. For rare words, all postings are read, rarest word first. A frequent word
# finds only some candidates by its best postings; its points are then looked up for each candidate. So the time depends
# on the number of words, not on the number of skills.


_MOST_ROWS = 1024
"""Limit on the postings that are read for all rare words together."""
_ROWS_OF_FREQUENT = 256
_ROWS_IF_ALL_FREQUENT = 512


class Ranking(NamedTuple):
    statement: Statement
    parameters: dict[str, Any]


def ranking_of(filters: Filters, meanings: Sequence[Meaning]) -> Ranking:
    """Return the statement for the skills that match, best first, with its parameters. Its rows are those of
    `search_order.Ranked`.
    """
    parts = _Parts(filters.visibility_shape.dialect)
    for number, meaning in sorted(enumerate(meanings), key=lambda numbered: (numbered[1].rows, numbered[0])):
        parts.add(number, meaning)
    parts.parameters["total"] = sum(meaning.weight for meaning in meanings)
    alternatives = any(len(meaning.words) + (meaning.texts != "none") > 1 for meaning in meanings)
    drawn = (tuple(parts.ranges), tuple(parts.texts), tuple(parts.probes), alternatives)
    return Ranking(statement_of(Shape(filters, *drawn)), parts.parameters)


class _Parts:
    """The parts of the statement and their parameters. `add` is called for each word of the query, rarest word
    first.
    """

    def __init__(self, dialect: str) -> None:
        self.parameters: dict[str, Any] = {}
        self.ranges: list[int] = []
        self.texts: list[bool] = []
        self.probes: list[int] = []
        self._dialect = dialect
        self._budget = _MOST_ROWS

    def add(self, number: int, meaning: Meaning) -> None:
        is_whole = meaning.rows <= self._budget
        self._add_ranges(number, meaning, self._quota(meaning, is_whole), is_whole)
        if is_whole:
            self._budget -= meaning.rows
        else:
            self._add_probe(meaning)
        if meaning.texts != "none":
            place = len(self.texts)
            self.parameters |= _factors("text", place, number, EXACT * meaning.weight, meaning.weight)
            self.parameters[f"text_hint_{place}"] = EXACT * meaning.weight
            self.parameters[f"text_words_{place}"] = text_query(self._dialect, meaning.stem, meaning.prefix)
            self.texts.append(meaning.texts == "first")

    def _quota(self, meaning: Meaning, is_whole: bool) -> int:
        if is_whole:
            return meaning.rows
        return _ROWS_OF_FREQUENT if self.ranges or self.texts else _ROWS_IF_ALL_FREQUENT

    def _add_ranges(self, number: int, meaning: Meaning, quota: int, is_whole: bool) -> None:
        """Add a range of postings for each stored word of one query word.

        If `is_whole` is false, the query word is frequent: the range only finds candidates, and a probe adds the
        points.
        """
        for word, counts in meaning.words.items():
            place, gain = len(self.ranges), counts * meaning.weight
            self.parameters |= _factors(
                "range", place, number, gain if is_whole else 0, meaning.weight if is_whole else 0
            )
            self.parameters |= {f"range_word_{place}": word, f"range_hint_{place}": gain}
            self.ranges.append(_rounded(quota))

    def _add_probe(self, meaning: Meaning) -> None:
        place = len(self.probes)
        for alternative, (word, counts) in enumerate(meaning.words.items()):
            self.parameters[f"probe_word_{place}_{alternative}"] = word
            self.parameters[f"probe_gain_{place}_{alternative}"] = counts * meaning.weight
        self.parameters[f"probe_weight_{place}"] = meaning.weight
        self.probes.append(len(meaning.words))


def _factors(kind: str, place: int, number: int, gain: int, weight: int) -> dict[str, int]:
    return {f"{kind}_term_{place}": number, f"{kind}_gain_{place}": gain, f"{kind}_weight_{place}": weight}


def _rounded(quota: int) -> int:
    """Round a quota up to a power of two, so that only a few different statements are compiled."""
    return 1 << max(4, (quota - 1).bit_length())


def most_points(meanings: Sequence[Meaning]) -> int:
    """Return the highest possible points: those of a skill that matches every word of the query in its name."""
    total = sum(meaning.weight for meaning in meanings)
    return total * total * EXACT * MOST_IMPACT
