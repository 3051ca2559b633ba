"""Usage of skills by day, for charts and for the order by use.

The transaction that ends a run counts the run in the row of its skill and day. A background job (`roll_up_usage`) adds
up the last 30 days into the catalogue, so that no order and no filter adds up days. A row of a listing adds up the days
of its own skill (SUMS).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Connection, Text, bindparam, cast, delete, func, literal_column, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database import Change, Statement
from skillery.database.tables import catalogue, usage_days
from skillery.registry.usage import Outcome

DAYS = 30
NO_USAGE = (0, 0, 0)


class UsageDay(msgspec.Struct, frozen=True):
    """The ended runs of a skill on one day, with runs that other runs started. Cancelled runs are `runs` only."""

    day: date
    """The day in UTC."""
    runs: int
    completed: int
    failed: int


_COUNTED = ("runs", "completed", "failed")
_COUNT = Change(
    {
        dialect.__name__.rpartition(".")[2]: dialect.insert(usage_days).on_conflict_do_update(
            index_elements=["skill_id", "day"],
            set_={name: usage_days.c[name] + dialect.insert(usage_days).excluded[name] for name in _COUNTED},
        )
        for dialect in (sqlite, postgresql)
    },
    ("skill_id", "day", *_COUNTED),
)
_DAYS = Statement(
    select(usage_days.c.day, *(usage_days.c[name] for name in _COUNTED)).where(
        usage_days.c.skill_id == bindparam("of_skill"), usage_days.c.day >= bindparam("first")
    )
)
_SUMS = [func.coalesce(func.sum(usage_days.c[name]), literal_column("0")) for name in _COUNTED]
_RECENT = Statement(
    select(*_SUMS).where(usage_days.c.skill_id == bindparam("of_skill"), usage_days.c.day >= bindparam("first"))
)


SUMS = (
    select(
        cast(_SUMS[0], Text)
        + literal_column("':'")
        + cast(_SUMS[1], Text)
        + literal_column("':'")
        + cast(_SUMS[2], Text)
    )
    .where(usage_days.c.skill_id == catalogue.c.skill_id, usage_days.c.day >= bindparam("first_day"))
    .scalar_subquery()
)
"""A column next to a row of the catalogue: the sums of its last 30 days, for `sums_from`. The statement needs the
parameter of `from_first_day`. It is one column, because three would read the rows three times.
"""


def from_first_day() -> dict[str, str]:
    return {"first_day": first_day().isoformat()}


def sums_from(joined: str) -> tuple[int, int, int]:
    """Return the ended runs of the last 30 days: all, completed, failed."""
    runs, completed, failed = joined.split(":")
    return int(runs), int(completed), int(failed)


def count_day(connection: Connection, skill_id: int, outcome: Outcome, finished_at: datetime) -> None:
    """Count an ended run."""
    _COUNT.run(
        connection,
        skill_id=skill_id,
        day=finished_at.astimezone(UTC).date().isoformat(),
        runs=1,
        completed=int(outcome == "completed"),
        failed=int(outcome == "failed"),
    )


def recent_usage(connection: Connection, skill_id: int) -> tuple[int, int, int]:
    """Return the ended runs of a skill in the last 30 days, today included: all, completed, failed."""
    [(runs, completed, failed)] = _RECENT.rows(connection, of_skill=skill_id, first=first_day().isoformat())
    return int(runs), int(completed), int(failed)


def days_of(connection: Connection, skill_id: int) -> list[UsageDay]:
    """Return the last 30 days of a skill, oldest first. Days without runs have zeros."""
    first = first_day()
    rows = _DAYS.rows(connection, of_skill=skill_id, first=first.isoformat())
    found: dict[str, Sequence[Any]] = {row[0]: row[1:] for row in rows}
    days = [first + timedelta(days=number) for number in range(DAYS)]
    return [UsageDay(day, *found.get(day.isoformat(), NO_USAGE)) for day in days]


def roll_up_usage(connection: Connection) -> int:
    """Add up the last 30 days of each recently used skill into the catalogue, and delete older days.

    Return the number of skills whose sums changed. A second call at the same time changes nothing.
    """
    first, yesterday = first_day().isoformat(), (_today() - timedelta(days=1)).isoformat()
    used = select(usage_days.c.skill_id).where(or_(usage_days.c.day < first, usage_days.c.day >= yesterday))
    used = used.distinct().order_by(usage_days.c.skill_id)
    skill_ids = list(connection.scalars(used))
    connection.execute(delete(usage_days).where(usage_days.c.day < first))
    return sum(_update_sums(connection, skill_id) for skill_id in skill_ids)


def _update_sums(connection: Connection, skill_id: int) -> int:
    runs, completed, failed = recent_usage(connection, skill_id)
    changed = or_(
        catalogue.c.runs_30d != runs, catalogue.c.completed_30d != completed, catalogue.c.failed_30d != failed
    )
    sums = {"runs_30d": runs, "completed_30d": completed, "failed_30d": failed}
    updated = connection.execute(update(catalogue).where(catalogue.c.skill_id == skill_id, changed).values(sums))
    return int(updated.rowcount > 0)


def _today() -> date:
    return datetime.now(UTC).date()


def first_day() -> date:
    """Return the first of the last 30 days, in UTC."""
    return _today() - timedelta(days=DAYS - 1)
