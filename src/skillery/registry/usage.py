"""Usage of a version. The transaction that ends a run also updates the counts, so that no query counts the rows of
runs.

Durations are stored as a histogram. Each bucket covers 2^(1/8) times the duration of the previous bucket. A percentile
is therefore exact to 4.5 %, and durations from 10 microseconds to an hour have fewer than 230 buckets.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Literal

import msgspec
from sqlalchemy import Connection, Text, cast, func, literal_column
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database import Change, in_utc
from skillery.database.tables import version_usage

Outcome = Literal["completed", "failed", "cancelled"]
SHORTEST_MS = 0.01
PER_DOUBLING = 8


class Usage(msgspec.Struct, frozen=True):
    """`usage` in describe_skill: counts of the runs of all callers, including runs that other runs started."""

    runs: int
    completed: int
    failed: int
    cancelled: int
    success_rate: float | None
    """Completed runs divided by completed and failed runs. None if no run completed or failed."""
    p50_ms: float | None
    """`p50_ms` and `p95_ms`: percentiles of the durations of completed runs. Failed runs do not count: they often
    end early.
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
"""The columns that `usage_from` reads. The statement must select the rows of one version."""


def count_run(
    connection: Connection, version_id: int, outcome: Outcome, duration_ms: float, finished_at: datetime
) -> None:
    _COUNT.run(
        connection,
        version_id=version_id,
        outcome=outcome,
        bucket=bucket_of(duration_ms),
        runs=1,
        last_run_at=finished_at,
    )


def usage_from(joined: str | None, last: datetime | str | None) -> Usage:
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
    """Return the bucket of a duration. Longer durations have higher buckets. Bucket 0 is for SHORTEST_MS and less."""
    if duration_ms <= SHORTEST_MS:
        return 0
    return 1 + math.floor(PER_DOUBLING * math.log2(duration_ms / SHORTEST_MS))


def duration_of(bucket: int) -> float:
    """Return the middle of a bucket in milliseconds, or SHORTEST_MS for bucket 0. All durations in a higher bucket are
    within a factor of 2 ** (1 / 16).
    """
    return SHORTEST_MS * 2 ** ((bucket - 0.5) / PER_DOUBLING) if bucket else SHORTEST_MS


def percentile(histogram: list[tuple[int, int]], total: int, part: float) -> float | None:
    """Return the duration in milliseconds that the share `part` of all runs did not exceed, or None if there are no
    runs.

    `histogram` has the number of runs by bucket, sorted by bucket. `total` is the number of all runs.
    """
    wanted = math.ceil(part * total)
    for bucket, runs in histogram:
        wanted -= runs
        if wanted <= 0:
            return float(f"{duration_of(bucket):.4g}")
    return None
