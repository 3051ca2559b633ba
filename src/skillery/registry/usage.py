"""The usage of a version. The transaction that ends a run also updates the counts, so that no query counts rows of
runs.

Durations are stored as a histogram. The upper bound of each bucket is 2^(1/8) times the one of the previous bucket. So
a percentile is exact to 4.5 %, and durations from 10 microseconds to an hour have fewer than 230 buckets.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, Subquery, Table, Text, cast, delete, func, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database import Change, in_utc, take_turns
from skillery.database.tables import (
    failure_days,
    reach_days,
    search_days,
    skill_versions,
    skills,
    use_days,
    version_usage,
)
from skillery.formats.tracebacks import OTHER, Shape

Outcome = Literal["completed", "failed", "cancelled"]
SHORTEST_MS = 0.01
"""The upper bound of bucket 0."""
PER_DOUBLING = 8
"""The number of buckets between a duration and its double."""
DAYS = 30
DETAILED_DAYS = 35
"""Days for which callers, programs and the durations of each day are known."""
KEPT_DAYS = 400
INSIGHT_DAYS = 90
"""Days for which failures, reach and searches are kept."""
USE_KEY = ("skill_id", "day", "version_id", "caller", "client")
COUNTED = ("runs", "completed", "failed", "busy_ms", "loads", "reads")
_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}


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


def adding(
    table: Table, key: Sequence[str], rows: Any = None, latest: Sequence[str] = ("last_run_at",)
) -> dict[str, Any]:
    """Return the INSERT of rows whose counts are added to those of the rows with the same key.

    The columns `latest` are replaced instead.
    """
    statements = {}
    for name, dialect in _DIALECTS.items():
        add: Any = dialect.insert(table)
        if rows is not None:
            add = add.from_select([column.name for column in rows.selected_columns], rows)
        new = add.excluded
        counted = [column.name for column in table.c if column.name not in key]
        statements[name] = add.on_conflict_do_update(
            index_elements=list(key),
            set_={column: new[column] if column in latest else table.c[column] + new[column] for column in counted},
        )
    return statements


_KEY = ("version_id", "day", "outcome", "bucket")
_COUNT = Change(adding(version_usage, _KEY), (*_KEY, "runs", "last_run_at"))
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
        day=day_of(finished_at),
        outcome=outcome,
        bucket=bucket_of(duration_ms),
        runs=1,
        last_run_at=finished_at,
    )


def first_day(days: int = DAYS) -> date:
    """Return the first of the last `days` days, in UTC."""
    return datetime.now(UTC).date() - timedelta(days=days - 1)


def day_of(instant: datetime) -> str:
    """Return the day of a time in UTC, as the tables of use have it."""
    return instant.astimezone(UTC).date().isoformat()


def usage_from(joined: str | None, last: datetime | str | None) -> Usage:
    """Return the usage from the columns USAGE. `joined` has a cell `outcome:bucket:runs` for each row."""
    counts = {"completed": 0, "failed": 0, "cancelled": 0}
    buckets = Counter[int]()
    for cell in joined.split(",") if joined else ():
        outcome, bucket, runs = cell.split(":")
        counts[outcome] += int(runs)
        if outcome == "completed":
            buckets[int(bucket)] += int(runs)
    histogram = sorted(buckets.items())
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


# -- The 95th percentiles of skills in a period, for insight -----------------------------------------------------------


_completed = version_usage.c.outcome == "completed"
_DURATIONS = (version_usage.c.bucket, func.sum(version_usage.c.runs).label("runs"))
_DURATION_KEY = (version_usage.c.day, version_usage.c.bucket)
_of_version = skill_versions.c.id == version_usage.c.version_id
# An outer join begins with the usage. In an inner join, SQLite reads all skills and versions first.
_OF_ALL = version_usage.outerjoin(skill_versions, _of_version)


def p95_buckets(first: date, *where: ColumnElement[bool]) -> Subquery:
    """Return the bucket of the 95th percentile of each skill with completed runs."""
    rows = version_usage.join(skill_versions, _of_version) if where else _OF_ALL
    counted = select(skill_versions.c.skill_id, *_DURATIONS).select_from(rows).where(_completed, *where)
    counted = counted.where(version_usage.c.day >= first.isoformat())
    each = counted.group_by(skill_versions.c.skill_id, version_usage.c.bucket).subquery()
    total = func.sum(each.c.runs).over(partition_by=each.c.skill_id).label("total")
    until = func.sum(each.c.runs).over(partition_by=each.c.skill_id, order_by=each.c.bucket).label("until")
    sums = select(each.c.skill_id, each.c.bucket, total, until).subquery()
    reached = select(sums.c.skill_id, func.min(sums.c.bucket).label("bucket")).where(
        100 * sums.c.until >= 95 * sums.c.total
    )
    return reached.group_by(sums.c.skill_id).subquery()


def percentiles_of(connection: Connection, first: date, skill_ids: Sequence[int]) -> dict[int, float | None]:
    """Return the 95th percentile in milliseconds of each of these skills with completed runs."""
    buckets = connection.execute(select(p95_buckets(first, skill_versions.c.skill_id.in_(skill_ids))))
    return {skill_id: percentile([(bucket, 1)], 1, 0.95) for skill_id, bucket in buckets}


def durations_by_day(
    connection: Connection, first: date, scope: Any, values: dict[str, Any]
) -> defaultdict[str, Counter[int]]:
    """Return for each day the completed runs by bucket, of all skills for which the condition `scope` on `skills` is
    true.
    """
    statement = select(version_usage.c.day, *_DURATIONS)
    statement = statement.select_from(_OF_ALL.outerjoin(skills, skills.c.id == skill_versions.c.skill_id))
    statement = statement.where(scope, _completed, version_usage.c.day >= first.isoformat())
    by_day = defaultdict[str, Counter[int]](Counter)
    for day, bucket, runs in connection.execute(statement.group_by(*_DURATION_KEY), values):
        by_day[day][bucket] = int(runs)
    return by_day


def p95_of(days: Iterable[Counter[int]]) -> float | None:
    """Return the 95th percentile of all runs of these days."""
    histogram = sum(days, Counter[int]())
    return percentile(sorted(histogram.items()), histogram.total(), 0.95)


# -- Failed runs of a skill, by what they have in common ---------------------------------------------------------------


MOST_SHAPES = 50
"""Different shapes that a server counts for a skill and day. Further failures have the shape OTHER."""
_MOST_KNOWN = 20_000
_FAILURE_KEY = ("skill_id", "shape", "version_id", "day", "caller")
_LATEST = ("error_type", "place", "message", "last_run_id", "last_at")
_COUNT_FAILURE = Change(adding(failure_days, _FAILURE_KEY, latest=_LATEST), (*_FAILURE_KEY, "runs", *_LATEST))


class KnownShapes:
    """The shapes that this server has counted on this day, so that no skill fills the table with new ones."""

    def __init__(self) -> None:
        self._day = ""
        self._shapes = set[tuple[int, str]]()
        self._number = Counter[int]()

    def bounded(self, skill_id: int, shape: Shape) -> Shape:
        """Return the shape, or OTHER if the skill has too many."""
        if (today := day_of(datetime.now(UTC))) != self._day:
            self._day = today
            self._shapes.clear()
            self._number.clear()
        key = skill_id, shape.key
        if key not in self._shapes:
            if self._number[skill_id] >= MOST_SHAPES or len(self._shapes) >= _MOST_KNOWN:
                return OTHER
            self._shapes.add(key)
            self._number[skill_id] += 1
        return shape


def count_failure(
    connection: Connection,
    skill_id: int,
    version_id: int,
    shape: Shape,
    caller: str,
    run_id: str,
    finished_at: datetime,
) -> None:
    """Count a failed run. On Postgres, this takes no round trip of its own."""
    _COUNT_FAILURE.run_later(
        connection,
        skill_id=skill_id,
        shape=shape.key,
        version_id=version_id,
        day=day_of(finished_at),
        caller=caller,
        runs=1,
        error_type=shape.error_type,
        place=shape.place,
        message=shape.message,
        last_run_id=run_id,
        last_at=finished_at,
    )


# -- Old days ----------------------------------------------------------------------------------------------------------


def thin_out(connection: Connection) -> None:
    """Join the rows before DETAILED_DAYS: of uses to one for each version and day, of durations to one for each
    version. Delete uses before KEPT_DAYS, and failures, reach and searches before INSIGHT_DAYS.
    """
    take_turns(connection, "thin out", "")
    before = first_day(DETAILED_DAYS).isoformat()
    connection.execute(delete(use_days).where(use_days.c.day < first_day(KEPT_DAYS).isoformat()))
    for table in (failure_days, reach_days, search_days):
        connection.execute(delete(table).where(table.c.day < first_day(INSIGHT_DAYS).isoformat()))
    empty: ColumnElement[str] = literal_column("''")
    named = (use_days.c.day < before) & ((use_days.c.caller != empty) | (use_days.c.client != empty))
    by_version = use_days.c.skill_id, use_days.c.day, use_days.c.version_id
    sums = [func.sum(use_days.c[name]).label(name) for name in COUNTED]
    of_days = (
        select(*by_version, empty.label("caller"), empty.label("client"), *sums).where(named).group_by(*by_version)
    )
    _join(connection, use_days, USE_KEY, of_days, named)
    old = (version_usage.c.day < before) & (version_usage.c.day != empty)
    by_bucket = version_usage.c.outcome, version_usage.c.bucket
    of_versions = (
        select(version_usage.c.version_id, empty.label("day"), *by_bucket, func.sum(version_usage.c.runs).label("runs"))
        .add_columns(func.max(version_usage.c.last_run_at).label("last_run_at"))
        .where(old)
        .group_by(version_usage.c.version_id, *by_bucket)
    )
    _join(connection, version_usage, _KEY, of_versions, old)


def _join(connection: Connection, table: Table, key: Sequence[str], joined: Any, old: Any) -> None:
    connection.execute(adding(table, key, joined)[connection.dialect.name])
    connection.execute(delete(table).where(old))
