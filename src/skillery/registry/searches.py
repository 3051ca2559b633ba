"""The words of searches, in the table `search_days`: what callers look for, and which searches lead nowhere.

Words are counted in memory and written every few seconds, as uses are. Words that may be private are never recorded:
those with `@`, and those with 20 letters and digits in a row.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, select, tuple_

from skillery.database import Change, take_turns
from skillery.database.backend_values import find_value, forget_value, keep_value
from skillery.database.tables import search_days
from skillery.formats.words import spelt_words
from skillery.registry.usage import adding, day_of

LONGEST = 80
"""Characters of a search that are recorded."""
MOST_ROWS = 5000
"""Rows of a day. Searches for further words are not recorded on this day."""
MOST_PENDING = 2000
"""Different rows between two writes, and callers whose last search a server remembers."""
OPEN_SECONDS, TYPING_SECONDS = 600.0, 10.0
"""A result counts as opened for OPEN_SECONDS. A search that continues the words of the last one replaces it within
TYPING_SECONDS, because pages search while people type.
"""
_IS_PRIVATE = re.compile(r"@|[^\W_]{20}")
_MARK = "mark of searches"
KEY, COUNTED = ("day", "words", "caller"), ("times", "matched", "opened")
_ADD = Change(adding(search_days, KEY), (*KEY, *COUNTED))


class Searched(NamedTuple):
    """The key of a row."""

    day: str
    words: str
    caller: str


class _Last(NamedTuple):
    """The last search of a caller."""

    key: Searched
    at: float
    names: frozenset[str]
    """The results that the caller has not opened."""
    is_opened: bool = False


Counts = Mapping[Searched, tuple[int, int, int]]
"""Changes of `times`, `matched` and `opened`."""


def recorded_words(query: str) -> str:
    """Return the words of a query as they are recorded, or ""."""
    words = (word for word in query[: 10 * LONGEST].lower().split() if word.isprintable())
    return " ".join(word for word in words if not _IS_PRIVATE.search(word))[:LONGEST].strip()


class Searches:
    """The searches that this server has not written yet. All methods run on the event loop."""

    def __init__(
        self, *, keeps: bool = True, names_callers: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.names_callers = names_callers
        """Whether callers are recorded, and named in answers."""
        self.mark: bytes | None = None
        """The mark of the database when these searches were noted: see `refuse_pending`."""
        self.keeps = keeps
        """Whether words of searches are recorded."""
        self._clock = clock
        self._counts: dict[Searched, tuple[int, int, int]] = {}
        self._last: OrderedDict[str, _Last] = OrderedDict()

    def note(self, caller: str, query: str, names: Iterable[str]) -> None:
        """Count a search with these results."""
        words = recorded_words(query) if self.keeps else ""
        if not words:
            return
        shown, now, last = frozenset(names), self._clock(), self._last.pop(caller, None)
        if last is not None and not last.is_opened and now - last.at < TYPING_SECONDS and _continues(words, last.key):
            self._add(last.key, -1, -bool(last.names), 0)
        key = Searched(day_of(datetime.now(UTC)), words, caller if self.names_callers else "")
        self._add(key, 1, bool(shown), 0)
        self._last[caller] = _Last(key, now, shown)
        if len(self._last) > MOST_PENDING:
            self._last.popitem(last=False)

    def open(self, caller: str, name: str) -> None:
        """Count that a caller has described, read or run a skill, if it is a result of its last search."""
        last = self._last.get(caller)
        if last is None or last.is_opened or name not in last.names:
            return
        if self._clock() - last.at < OPEN_SECONDS:
            self._add(last.key, 0, 0, 1)
            self._last[caller] = last._replace(is_opened=True)

    def take(self) -> Counts:
        """Return what one transaction writes."""
        taken, self._counts = self._counts, {}
        return taken

    def put_back(self, counts: Counts) -> None:
        """Add what could not be written."""
        for key, changes in counts.items():
            self._add(key, *changes)

    def drop_unless(self, mark: bytes | None) -> None:
        """Drop all searches if a purge has set another mark since the last call."""
        if mark != self.mark:
            self.mark = mark
            self._counts.clear()
            self._last.clear()

    def _add(self, key: Searched, times: int, matched: int, opened: int) -> None:
        if key in self._counts or len(self._counts) < MOST_PENDING:
            before = self._counts.get(key, (0, 0, 0))
            self._counts[key] = before[0] + times, before[1] + matched, before[2] + opened


def _continues(words: str, last: Searched) -> bool:
    return words.startswith(last.words) or last.words.startswith(words)


def _has_any(text: str, words: Set[str]) -> bool:
    return not words.isdisjoint(spelt_words(text))


def recorded_searches(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield the day and the words of each recorded search, one day after the other."""
    for day in connection.scalars(select(search_days.c.day).distinct()).all():
        of_day = select(search_days.c.words).where(search_days.c.day == day).distinct()
        yield from ((day, text) for text in connection.scalars(of_day).all())


def find_searches(connection: Connection, leaked: Set[str]) -> list[tuple[str, str]]:
    """Return the day and the words of the recorded searches with one of these words."""
    return [search for search in recorded_searches(connection) if _has_any(search[1], leaked)] if leaked else []


def refuse_pending(connection: Connection) -> None:
    """Set a new mark, so that no server records a search that it has noted before: its words may be purged now."""
    take_turns(connection, "searches", "")
    forget_value(connection, _MARK)
    keep_value(connection, _MARK, secrets.token_bytes(8))


def delete_searches(connection: Connection, searches: Iterable[tuple[str, str]]) -> None:
    for day, text in searches:
        connection.execute(delete(search_days).where(search_days.c.day == day, search_days.c.words == text))


def write_searches(connection: Connection, counts: Counts, mark: bytes | None) -> bytes | None:
    """Add counts to those of the days, and return the mark. If it is not `mark`, the counts are dropped.

    Words of a day with MOST_ROWS rows are dropped, except for those that it has.
    """
    take_turns(connection, "searches", "", shared=True)
    if (current := find_value(connection, _MARK)) != mark:
        return current
    # In one order on all servers, so that two transactions cannot wait for each other.
    changed = sorted(key for key, changes in counts.items() if any(changes))
    for day in {key.day for key in changed}:
        count = select(func.count()).select_from(search_days).where(search_days.c.day == day)
        of_day = [key for key in changed if key.day == day]
        if (connection.scalar(count) or 0) + len(of_day) > MOST_ROWS:
            columns = tuple(search_days.c[name] for name in KEY)
            present = {
                Searched(*row) for row in connection.execute(select(*columns).where(tuple_(*columns).in_(of_day)))
            }
            changed = [key for key in changed if key.day != day or key in present]
    _ADD.run_many(connection, [{**key._asdict(), **dict(zip(COUNTED, counts[key], strict=True))} for key in changed])
    return mark
