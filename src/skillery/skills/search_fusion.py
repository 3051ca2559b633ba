"""Searches by meaning: the ranker of a plugin finds the nearest skills, and reciprocal ranks combine them with those by
words.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from skillery.backends import Ranker
from skillery.errors import SkilleryError
from skillery.skills.search_order import Group

log = logging.getLogger(__name__)
SECONDS = 0.15
"""The time for all calls of the ranker in one search. Each call has the same limit."""
MOST_FAILURES = 5
PAUSE_SECONDS = 30.0
"""After MOST_FAILURES failed calls in a row, searches do not wait for the ranker for this time."""
MOST_NEAR = 50
"""The number of nearest skills that count."""
MOST_BY_MEANING = 20
"""The maximum number of results without a word of the query."""
WIDER = 4
_QUERY = 2000
"""The number of characters of a query that the ranker gets."""
_RANK_ADDED = 60
_SCALE = 1_000_000
MOST_POINTS = 2 * _SCALE // (_RANK_ADDED + 1)
"""The points of a skill that is first by words and by meaning."""

See = Callable[[Sequence[int]], Awaitable[list[int]]]
"""Return those of the skills that the caller sees and that pass the filters, in the same order."""


class Nearest(NamedTuple):
    """The skills that are nearest to a query, nearest first."""

    skill_ids: list[int]
    failed: bool = False
    """True: the ranker did not answer, so the search uses words alone."""


class Meanings:
    """Asks the ranker of the server, if it has one. Searches do not fail with the ranker."""

    def __init__(self, ranker: Ranker | None) -> None:
        self._ranker = ranker
        self._failures = 0
        self._paused_until = 0.0

    async def nearest(self, query: str, see: See) -> Nearest:
        """Return the nearest skills that the caller sees, at most MOST_NEAR.

        The ranker knows no visibility: if hidden skills fill its result, it gets asked for more.
        """
        if self._ranker is None:
            return Nearest([])
        wanted, ended_at = MOST_NEAR, time.monotonic() + SECONDS
        while True:
            skill_ids = await self._call(self._ranker, query[:_QUERY], wanted)
            if skill_ids is None:
                return Nearest([], failed=True)
            seen = await see(skill_ids)
            if len(seen) >= MOST_NEAR or len(skill_ids) < wanted or time.monotonic() >= ended_at:
                return Nearest(seen[:MOST_NEAR])
            wanted *= WIDER

    async def _call(self, ranker: Ranker, query: str, most: int) -> list[int] | None:
        """Return the skills that the ranker answers, or None if it fails, has failed too often, or if its answer is
        malformed.
        """
        if time.monotonic() < self._paused_until:
            return None
        try:
            skill_ids = array("q", (skill_id for skill_id, _ in await ranker.nearest(query, most))).tolist()
        except Exception as error:  # noqa: BLE001 - any error of a plugin
            self._note_failure(error)
            return None
        self._failures = 0
        return skill_ids

    def _note_failure(self, error: Exception) -> None:
        if not isinstance(error, SkilleryError):
            log.error("the ranker failed: %s", type(error).__name__, exc_info=error)
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            log.warning("the ranker failed %d times: searches use words alone for %g s", MOST_FAILURES, PAUSE_SECONDS)
            self._failures = 0
            self._paused_until = time.monotonic() + PAUSE_SECONDS


def fused(groups: Sequence[Group], near: Sequence[int]) -> list[Group]:
    """Return the groups of look-alikes by the sum of 1 / (60 + rank) over both orders: by words, and by meaning.

    `groups` are in the order by words. Those without a word of the query follow; of these, the nearest MOST_BY_MEANING
    stay (Cormack, Clarke and Büttcher, Reciprocal Rank Fusion, SIGIR 2009).
    """
    place = {skill_id: number for number, skill_id in enumerate(near)}
    nearness = {
        group.position: min(place[member.skill_id] for member in group.members if member.skill_id in place)
        for group in groups
        if any(member.skill_id in place for member in group.members)
    }
    points = dict.fromkeys((group.position for group in groups), 0)
    by_words = [group.position for group in groups if not group.is_near]
    by_meaning = sorted(nearness, key=nearness.__getitem__)
    for order in (by_words, by_meaning):
        for rank, position in enumerate(order, 1):
            points[position] += _SCALE // (_RANK_ADDED + rank)
    with_words = set(by_words)
    kept = with_words | set([position for position in by_meaning if position not in with_words][:MOST_BY_MEANING])
    ranked = [group._replace(points=points[group.position]) for group in groups if group.position in kept]
    return sorted(ranked, key=lambda group: (-group.points, group.position))
