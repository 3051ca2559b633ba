"""The usage of a version. The transaction that ends a run also updates the counts, so that no query counts rows of
runs.

Durations are stored as a histogram. The upper bound of each bucket is 2^(1/8) times the one of the previous bucket. So
a percentile is exact to 4.5 %, and durations from 10 microseconds to an hour have fewer than 230 buckets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Text, bindparam, cast, delete, func, literal_column, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database import Change, Statement, in_utc
from skillery.database.tables import catalogue, usage_days, version_usage

Outcome = Literal["completed", "failed", "cancelled"]
SHORTEST_MS = 0.01
"""The upper bound of bucket 0."""
PER_DOUBLING = 8
"""The number of buckets between a duration and its double."""


class Usage(msgspec.Struct, frozen=True):
    """`usage` in describe_skill: counts of the runs of all callers, including runs that other runs started."""

    runs: int
    completed: int
    failed: int
    cancelled: int
    success_rate: float | None
    """Completed runs divided by completed and failed runs, or None if there are none of both."""
    p50_ms: float | None
    """`p50_ms` and `p95_ms` are percentiles of the durations of completed runs.

    Failed runs do not count, because they often end early.
    """
    p95_ms: float | None
    last_run_at: datetime | None


_COUNT = Change(
    {
        dialect.__name__.rpartition(".")[2]: dialect.insert(version_usage).on_conflict_do_update(
            index_elements=["version_id", "outcome", "bucket"],
            set_={
                "runs": version_usage.c.runs + literal_column("1"),
                "last_run_at": dialect.insert(version_usage).excluded.last_run_at,
            },
        )
        for dialect in (sqlite, postgresql)
    },
    ("version_id", "outcome", "bucket", "runs", "last_run_at"),
)
_CELL = (
    version_usage.c.outcome
    + literal_column("':'")
    + cast(version_usage.c.bucket, Text)
    + literal_column("':'")
    + cast(version_usage.c.runs, Text)
)
# All buckets are joined into one row of text: a frequently used version has dozens of buckets, and fetching one row
# costs as much as joining all of them. The separator is a literal, because a Statement supports no parameter there.
USAGE = (
    func.aggregate_strings(_CELL, literal_column("','")),  # type: ignore[arg-type]
    func.max(version_usage.c.last_run_at),
)
"""Columns for a statement that selects the rows of one version in `version_usage`. `usage_from` computes the usage from
their values.
"""


def count_run(
    connection: Connection, version_id: int, outcome: Outcome, duration_ms: float, finished_at: datetime
) -> None:
    """Count an ended run in the histogram of its version."""
    _COUNT.run(
        connection,
        version_id=version_id,
        outcome=outcome,
        bucket=bucket_of(duration_ms),
        runs=1,
        last_run_at=finished_at,
    )


def usage_from(joined: str | None, last: datetime | str | None) -> Usage:
    """Return the usage from the columns USAGE. `joined` has a cell `outcome:bucket:runs` for each row."""
    counts = {"completed": 0, "failed": 0, "cancelled": 0}
    histogram: list[tuple[int, int]] = []
    for cell in joined.split(",") if joined else ():
        outcome, bucket, runs = cell.split(":")
        counts[outcome] += int(runs)
        if outcome == "completed":
            histogram.append((int(bucket), int(runs)))
    histogram.sort()
    completed, failed, cancelled = counts.values()
    return Usage(
        runs=completed + failed + cancelled,
        completed=completed,
        failed=failed,
        cancelled=cancelled,
        success_rate=round(completed / (completed + failed), 4) if completed + failed else None,
        p50_ms=percentile(histogram, completed, 0.50),
        p95_ms=percentile(histogram, completed, 0.95),
        last_run_at=in_utc(last),
    )


def bucket_of(duration_ms: float) -> int:
    """Return the number of the bucket for a duration. Longer durations have higher buckets.

    Bucket 0 is for SHORTEST_MS and less.
    """
    if duration_ms <= SHORTEST_MS:
        return 0
    return 1 + math.floor(PER_DOUBLING * math.log2(duration_ms / SHORTEST_MS))


def duration_of(bucket: int) -> float:
    """Return the middle of a bucket in milliseconds, or SHORTEST_MS for bucket 0.

    It differs from each duration in the bucket by a factor of at most 2 ** (1 / 16).
    """
    return SHORTEST_MS * 2 ** ((bucket - 0.5) / PER_DOUBLING) if bucket else SHORTEST_MS


def percentile(histogram: list[tuple[int, int]], total: int, part: float) -> float | None:
    """Return the duration in milliseconds that the part `part` of all runs did not exceed, or None without runs.

    `histogram` has pairs of bucket and number of runs, sorted by bucket. `total` is the number of all runs.
    """
    runs_to_count = math.ceil(part * total)
    for bucket, runs in histogram:
        runs_to_count -= runs
        if runs_to_count <= 0:
            return float(f"{duration_of(bucket):.4g}")
    return None


# -- Usage of skills by day, for charts and for the order by use -------------------------------------------------------
# The transaction that ends a run counts the run in the row of its skill and day. A background job (`roll_up_usage`)
# adds up the last 30 days into the catalogue, so that no order and no filter adds up days. A row of a listing adds up
# the days of its own skill (SUMS).


DAYS = 30
NO_USAGE = (0, 0, 0)


class UsageDay(msgspec.Struct, frozen=True):
    """The ended runs of a skill on one day, including runs that other runs started.

    A cancelled run counts only in `runs`.
    """

    day: date
    """The day in UTC."""
    runs: int
    completed: int
    failed: int


_COUNTED = ("runs", "completed", "failed")
_COUNT_DAY = Change(
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
"""A column next to a row of the catalogue: the sums of its last 30 days as text, for `sums_from`.

The statement needs the parameters of `from_first_day`. The sums are one column, because three columns would read the
rows three times.
"""


def from_first_day() -> dict[str, str]:
    """Return the SQL parameters of SUMS."""
    return {"first_day": first_day().isoformat()}


def sums_from(joined: str) -> tuple[int, int, int]:
    """Return the numbers of all, completed and failed runs in the last 30 days, from the text of SUMS."""
    runs, completed, failed = joined.split(":")
    return int(runs), int(completed), int(failed)


def count_day(connection: Connection, skill_id: int, outcome: Outcome, finished_at: datetime) -> None:
    """Count an ended run in the row of its skill and day."""
    _COUNT_DAY.run(
        connection,
        skill_id=skill_id,
        day=finished_at.astimezone(UTC).date().isoformat(),
        runs=1,
        completed=int(outcome == "completed"),
        failed=int(outcome == "failed"),
    )


def recent_usage(connection: Connection, skill_id: int) -> tuple[int, int, int]:
    """Return the numbers of all, completed and failed runs of a skill in the last 30 days, including today."""
    [(runs, completed, failed)] = _RECENT.rows(connection, of_skill=skill_id, first=first_day().isoformat())
    return int(runs), int(completed), int(failed)


def days_of(connection: Connection, skill_id: int) -> list[UsageDay]:
    """Return the usage of a skill on each of the last 30 days, oldest first. A day without runs has zeros."""
    first = first_day()
    rows = _DAYS.rows(connection, of_skill=skill_id, first=first.isoformat())
    by_day: dict[str, Sequence[Any]] = {row[0]: row[1:] for row in rows}
    days = [first + timedelta(days=number) for number in range(DAYS)]
    return [UsageDay(day, *by_day.get(day.isoformat(), NO_USAGE)) for day in days]


def roll_up_usage(connection: Connection) -> int:
    """Store the sums of the last 30 days in the catalogue for each recently used skill, and delete older days.

    Return the number of skills whose sums changed. A second call at the same time changes nothing.
    """
    first, yesterday = first_day().isoformat(), (_today() - timedelta(days=1)).isoformat()
    used = select(usage_days.c.skill_id).where(or_(usage_days.c.day < first, usage_days.c.day >= yesterday))
    used = used.distinct().order_by(usage_days.c.skill_id)
    skill_ids = list(connection.scalars(used))
    connection.execute(delete(usage_days).where(usage_days.c.day < first))
    return sum(_update_sums(connection, skill_id) for skill_id in skill_ids)


def _update_sums(connection: Connection, skill_id: int) -> int:
    """Store the sums of a skill in the catalogue. Return 1 if they changed, else 0."""
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
    """Return the first day of the last 30 days, in UTC."""
    return _today() - timedelta(days=DAYS - 1)
