"""The SQL statement that ranks the results of a query. The number of candidate skills is limited.

A posting is a row for a word of a skill. For rare words, all postings are read, rarest word first. A frequent word
finds only some candidates by its best postings; its points are then looked up for each candidate. So the time depends
on the number of words, not on the number of skills.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from skillery.database import Statement
from skillery.formats.search_fields import MOST_IMPACT
from skillery.registry.search_statements import Filters, Shape, statement_of
from skillery.registry.search_terms import EXACT, Meaning, text_query

_MOST_ROWS = 1024
"""Limit on the postings that are read for all rare words together."""
_ROWS_OF_FREQUENT = 256
_ROWS_IF_ALL_FREQUENT = 512


class Ranking(NamedTuple):
    statement: Statement
    parameters: dict[str, Any]


def ranking_of(filters: Filters, meanings: Sequence[Meaning], after: tuple[int, str] | None, rows: int) -> Ranking:
    """Return the statement for `rows` results after the position `after` (points, name), with its parameters.

    The columns are skill_id, name, points and copies.
    """
    parts = _Parts(filters.visibility_shape.dialect)
    for number, one in sorted(enumerate(meanings), key=lambda numbered: (numbered[1].rows, numbered[0])):
        parts.add(number, one)
    parts.given["total"] = sum(meaning.weight for meaning in meanings)
    if after is not None:
        parts.given |= {"after_points": after[0], "after_name": after[1]}
    alternatives = any(len(meaning.words) + (meaning.texts != "none") > 1 for meaning in meanings)
    drawn = (tuple(parts.ranges), tuple(parts.texts), tuple(parts.probes), alternatives)
    return Ranking(statement_of(Shape(filters, *drawn, after is not None, rows)), parts.given)


class _Parts:
    """The parts of the statement and their parameters. `add` is called for each word of the query, rarest word
    first.
    """

    def __init__(self, dialect: str) -> None:
        self.given: dict[str, Any] = {}
        self.ranges: list[int] = []
        self.texts: list[bool] = []
        self.probes: list[int] = []
        self._dialect = dialect
        self._budget = _MOST_ROWS

    def add(self, number: int, one: Meaning) -> None:
        is_whole = one.rows <= self._budget
        self._add_ranges(number, one, self._quota(one, is_whole), is_whole)
        if is_whole:
            self._budget -= one.rows
        else:
            self._add_probe(one)
        if one.texts != "none":
            place = len(self.texts)
            self.given |= _factors("text", place, number, EXACT * one.weight, one.weight)
            self.given[f"text_hint_{place}"] = EXACT * one.weight
            self.given[f"text_words_{place}"] = text_query(self._dialect, one.stem, one.prefix)
            self.texts.append(one.texts == "first")

    def _quota(self, one: Meaning, is_whole: bool) -> int:
        if is_whole:
            return one.rows
        return _ROWS_OF_FREQUENT if self.ranges or self.texts else _ROWS_IF_ALL_FREQUENT

    def _add_ranges(self, number: int, one: Meaning, quota: int, is_whole: bool) -> None:
        """Add a range of postings for each stored word of one query word.

        If `is_whole` is false, the query word is frequent: the range only finds candidates, and a probe adds the
        points.
        """
        for word, counts in one.words.items():
            place, gain = len(self.ranges), counts * one.weight
            self.given |= _factors("range", place, number, gain if is_whole else 0, one.weight if is_whole else 0)
            self.given |= {f"range_word_{place}": word, f"range_hint_{place}": gain}
            self.ranges.append(_rounded(quota))

    def _add_probe(self, one: Meaning) -> None:
        place = len(self.probes)
        for alternative, (word, counts) in enumerate(one.words.items()):
            self.given[f"probe_word_{place}_{alternative}"] = word
            self.given[f"probe_gain_{place}_{alternative}"] = counts * one.weight
        self.given[f"probe_weight_{place}"] = one.weight
        self.probes.append(len(one.words))


def _factors(kind: str, place: int, number: int, gain: int, weight: int) -> dict[str, int]:
    return {f"{kind}_term_{place}": number, f"{kind}_gain_{place}": gain, f"{kind}_weight_{place}": weight}


def _rounded(quota: int) -> int:
    """Round a quota up to a power of two, so that only a few different statements are compiled."""
    return 1 << max(4, (quota - 1).bit_length())


def most_points(meanings: Sequence[Meaning]) -> int:
    """Return the highest possible points: those of a skill that matches every word of the query in its name."""
    total = sum(meaning.weight for meaning in meanings)
    return total * total * EXACT * MOST_IMPACT


# -- the statement -----------------------------------------------------------------------------------------------
