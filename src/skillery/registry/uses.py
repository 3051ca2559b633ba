"""Uses of skills: runs, loads by programs of agents, and reads of other files, in the table `use_days`.

The transaction that ends a run adds it to the row of its skill, day, version, caller and program. Loads and reads are
counted in memory first, because they must stay quick; a killed server loses those of its last seconds. Each use notes
the skill, so that the order of the catalogue follows within seconds: skillery.skills.catalogue_order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import (
    Connection,
    bindparam,
    case,
    func,
    literal_column,
    null,
    select,
)

from skillery.context.request import current
from skillery.database import Change, Statement
from skillery.database.registry import Registry
from skillery.database.tables import skills, use_days
from skillery.registry.searches import Searches
from skillery.registry.usage import COUNTED, DAYS, USE_KEY, Outcome, adding, day_of, first_day
from skillery.settings.groups import Insight

_ADD = Change(adding(use_days, USE_KEY), (*USE_KEY, *COUNTED))


def count_use(
    connection: Connection,
    skill_id: int,
    version_id: int,
    user: User,
    outcome: Outcome,
    duration_ms: float,
    finished_at: datetime,
) -> None:
    """Count an ended run in the row of its skill, day, version, caller and program."""
    counts = {"completed": int(outcome == "completed"), "failed": int(outcome == "failed")}
    _ADD.run(
        connection,
        skill_id=skill_id,
        day=day_of(finished_at),
        version_id=version_id,
        caller=user.caller,
        client=user.client,
        runs=1,
        **counts,
        busy_ms=round(duration_ms),
        loads=0,
        reads=0,
    )


# -- What a server has not written yet ---------------------------------------------------------------------------------


ReadKind = Literal["loads", "reads"]
OTHER = "other"
MOST_USERS = 200
"""Different pairs of caller and program that a server counts for a skill and day. In further ones, the program is
OTHER, because a caller can send a new name of a program with each request.
"""
MOST_COUNTS = 20_000
"""Different rows that a server counts between two writes, and pairs that it remembers. Further reads are not counted,
and the programs of further pairs are OTHER.
"""
MOST_AT_ONCE = 200
"""Skills whose sums one transaction writes."""
INSTRUCTIONS = "SKILL.md"
_PRODUCT = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_AT_ONCE = 500


class User(NamedTuple):
    """The caller of a use, and its program."""

    caller: str
    client: str


class _Read(NamedTuple):
    """The key of reads that are not written yet."""

    skill: str
    day: str
    version_id: int
    user: User


class Unwritten(NamedTuple):
    """Counts of reads, and ids of skills whose sums have changed."""

    reads: Mapping[_Read, Mapping[str, int]]
    skill_ids: Sequence[int]


def client_of(agent: str) -> str:
    """Return the name of a program from its User-Agent: `claude-code` for `claude-code/2.1.330 (cli)`.

    Return "" for browsers, which people use, and for programs that do not name themselves.
    """
    match = _PRODUCT.match(agent)
    name = match[0].lower() if match else ""
    return "" if name == "mozilla" else name


def present_client() -> str:
    """Return the name of the program of the current request, or ""."""
    request = current.get()
    return client_of(request.agent) if request is not None else ""


class Uses:
    """The uses that this server has not written yet. All methods run on the event loop."""

    def __init__(self, insight: Insight | None = None) -> None:
        insight = insight or Insight()
        self.searches = Searches(keeps=insight.keep_searches, names_callers=insight.callers)
        self._reads: dict[_Read, dict[str, int]] = {}
        self._skill_ids: dict[int, None] = {}
        self._day = ""
        self._users = defaultdict[str, set[User]](set)
        """The users of each skill on this day."""
        self._known = 0

    def note(self, skill: str, kind: ReadKind, version_id: int = 0) -> None:
        """Count a read by the program of the current request. A program without a name is not counted."""
        request, client = current.get(), present_client()
        if request is not None:
            self.searches.open(request.identity or "", skill)
        if request is None or not client:
            return
        user = self.user_of(skill, request.identity or "", client)
        key = _Read(skill, self._day, max(0, version_id), user)  # a development version has a negative id
        if key not in self._reads and len(self._reads) >= MOST_COUNTS:
            return
        counts = self._reads.setdefault(key, {"loads": 0, "reads": 0})
        counts[kind] += 1

    def note_file(self, skill: str, path: str, version_id: int = 0) -> None:
        self.note(skill, "loads" if path == INSTRUCTIONS else "reads", version_id)

    def note_skills(self, skill_ids: Iterable[int]) -> None:
        """Note that the sums of these skills have changed."""
        self._skill_ids.update(dict.fromkeys(skill_ids))

    def user_of(self, skill: str, caller: str, client: str) -> User:
        """Return the user to count a use for: the caller, and the program or OTHER."""
        if (today := day_of(datetime.now(UTC))) != self._day:
            self._day, self._known = today, 0
            self._users.clear()
        user, users = User(caller, client), self._users[skill]
        if user not in users:
            if len(users) >= MOST_USERS or self._known >= MOST_COUNTS:
                # The caller stays: else, a caller with many programs would hide the next callers of the skill.
                return User(caller, OTHER)
            users.add(user)
            self._known += 1
        return user

    def take(self) -> Unwritten | None:
        """Return what one transaction writes, or None if there is nothing to write."""
        if not self._reads and not self._skill_ids:
            return None
        skill_ids = list(self._skill_ids)[:MOST_AT_ONCE]
        for skill_id in skill_ids:
            del self._skill_ids[skill_id]
        taken, self._reads = self._reads, {}
        return Unwritten(taken, skill_ids)

    def put_back(self, unwritten: Unwritten) -> None:
        """Add what could not be written."""
        self.note_skills(unwritten.skill_ids)
        for key, counts in unwritten.reads.items():
            kept = self._reads.setdefault(key, {"loads": 0, "reads": 0})
            for name, count in counts.items():
                kept[name] += count


class ContentParts(NamedTuple):
    """The parts of the core that the methods use which read the contents of skills."""

    registry: Registry
    uses: Uses


def add_reads(connection: Connection, counts: Mapping[_Read, Mapping[str, int]]) -> set[int]:
    """Add counts to those of the days. Return the ids of the skills. Counts of skills that do not exist are dropped."""
    names = sorted({key.skill for key in counts})
    ids: dict[str, int] = {}
    for at in range(0, len(names), _AT_ONCE):
        statement = select(skills.c.name, skills.c.id).where(skills.c.name.in_(names[at : at + _AT_ONCE]))
        ids |= {row.name: row.id for row in connection.execute(statement)}
    # In one order on all servers, so that two transactions cannot wait for each other.
    keys = sorted((ids[key.skill], *key[1:3], *key.user, key) for key in counts if key.skill in ids)
    no_runs = dict.fromkeys(COUNTED, 0)
    rows = [{**dict(zip(USE_KEY, key[:-1], strict=True)), **no_runs, **counts[key[-1]]} for key in keys]
    _ADD.run_many(connection, rows)
    return set(ids.values())


# -- The last 30 days --------------------------------------------------------------------------------------------------


class UsageDay(msgspec.Struct, frozen=True):
    """The ended runs and the loads of a skill on one day. The runs include those that other runs started.

    A cancelled run counts only in `runs`.
    """

    day: date
    """The day in UTC."""
    runs: int
    completed: int
    failed: int
    loads: int = 0


class Sums(NamedTuple):
    """The use of a skill in the last 30 days, as columns of the catalogue."""

    callers_30d: int = 0
    uses_30d: int = 0
    loads_30d: int = 0
    runs_30d: int = 0
    completed_30d: int = 0
    failed_30d: int = 0
    uses_by_day: str = ""
    """The first day with a use, then the uses of each day from it, with the failed runs after a colon: `2026-11-24 3 0
    7:1`. An old value stays right as days pass.
    """


NO_USE = Sums()
_sum = {name: func.sum(use_days.c[name]).label(name) for name in COUNTED}
_is_recent = use_days.c.day >= bindparam("first")
_BY_DAY = (
    select(use_days.c.skill_id, use_days.c.day, *(_sum[name] for name in ("runs", "completed", "failed", "loads")))
    .where(_is_recent)
    .group_by(use_days.c.skill_id, use_days.c.day)
)
_DAYS = Statement(_BY_DAY.where(use_days.c.skill_id == bindparam("of_skill")))
_PROGRAMS = Statement(
    select(use_days.c.client, _sum["loads"])
    .where(_is_recent, use_days.c.skill_id == bindparam("of_skill"), use_days.c.loads > literal_column("0"))
    .group_by(use_days.c.client)
    .order_by(_sum["loads"].desc(), use_days.c.client)
)
_used_by = case(
    ((use_days.c.runs + use_days.c.loads > literal_column("0")), func.nullif(use_days.c.caller, literal_column("''"))),
    else_=null(),
)
_CALLERS = select(use_days.c.skill_id, func.count(_used_by.distinct())).where(_is_recent).group_by(use_days.c.skill_id)


def sums_of(connection: Connection, skill_ids: Sequence[int]) -> dict[int, Sums]:
    """Return the sums of these skills. A skill without uses has NO_USE."""
    first, among = {"first": first_day().isoformat()}, use_days.c.skill_id.in_(skill_ids)
    callers = {skill_id: int(count) for skill_id, count in connection.execute(_CALLERS.where(among), first)}
    by_skill = defaultdict[int, list[UsageDay]](list)
    for skill_id, day, *counts in connection.execute(_BY_DAY.where(among).order_by(use_days.c.day), first):
        by_skill[skill_id].append(UsageDay(date.fromisoformat(day), *map(int, counts)))
    return {skill_id: _sums(callers.get(skill_id, 0), by_skill.get(skill_id, [])) for skill_id in skill_ids}


def _sums(callers: int, days: Sequence[UsageDay]) -> Sums:
    used = [day for day in days if day.runs or day.loads]
    runs, completed, failed, loads = (
        sum(getattr(day, name) for day in used) for name in ("runs", "completed", "failed", "loads")
    )
    return Sums(callers, runs + loads, loads, runs, completed, failed, _by_day(used))


def _by_day(used: Sequence[UsageDay]) -> str:
    if not used:
        return ""
    texts = ["0"] * ((used[-1].day - used[0].day).days + 1)
    for day in used:
        failed = f":{day.failed}" if day.failed else ""
        texts[(day.day - used[0].day).days] = f"{day.runs + day.loads}{failed}"
    return " ".join([used[0].day.isoformat(), *texts])


def read_by_day(text: str) -> tuple[list[int], list[int]]:
    """Return the uses and the failed runs of each of the last 30 days from `uses_by_day`, oldest first."""
    uses, failed = [0] * DAYS, [0] * DAYS
    start, *days = text.split(" ")
    place = (date.fromisoformat(start) - first_day()).days if start else 0
    for number, day in enumerate(days, place):
        if 0 <= number < DAYS:
            used, _, failures = day.partition(":")
            uses[number], failed[number] = int(used), int(failures or 0)
    return uses, failed


def days_of(connection: Connection, skill_id: int) -> list[UsageDay]:
    """Return the usage of a skill on each of the last 30 days, oldest first. A day without runs has zeros."""
    first = first_day()
    rows = _DAYS.rows(connection, of_skill=skill_id, first=first.isoformat())
    by_day = {day: [int(count) for count in counts] for _, day, *counts in rows}
    days = [first + timedelta(days=number) for number in range(DAYS)]
    return [UsageDay(day, *by_day.get(day.isoformat(), (0, 0, 0, 0))) for day in days]


def loads_by_program(connection: Connection, skill_id: int) -> list[tuple[str, int]]:
    """Return the programs that loaded a skill in the last 30 days with the number of loads, most loads first."""
    rows = _PROGRAMS.rows(connection, of_skill=skill_id, first=first_day().isoformat())
    return [(client, int(loads)) for client, loads in rows]
