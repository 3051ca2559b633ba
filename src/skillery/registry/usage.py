"""Usage of a version, counted in the transaction that ends a run, so that no query ever counts runs.

Durations are stored as a histogram. Each bucket is 2^(1/8) times as long as the one before, so a percentile is exact to
4.5 %, from a hundred thousandth of a second to an hour, in a few dozen rows.
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
    """`usage` of describe_skill: the runs of all callers, including runs that other runs started."""

    runs: int
    completed: int
    failed: int
    cancelled: int
    success_rate: float | None
    """The share of completed runs among those that completed or failed; None if there are none."""
    p50_ms: float | None
    """Percentiles of the durations of completed runs. Failed runs do not count: an early failure is no fast run."""
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
# One row of text: a frequently used version has dozens of buckets, and each fetched row costs as much as joining them
# all. A literal between them, because a Statement supports no parameter of this kind.
USAGE = (
    func.aggregate_strings(_CELL, literal_column("','")),  # type: ignore[arg-type]
    func.max(version_usage.c.last_run_at),
)
"""The columns that `usage_from` reads, selected for one `version_id`."""


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
    """Return the bucket of a duration. Longer runs have higher buckets; 0 is SHORTEST_MS and less."""
    if duration_ms <= SHORTEST_MS:
        return 0
    return 1 + math.floor(PER_DOUBLING * math.log2(duration_ms / SHORTEST_MS))


def duration_of(bucket: int) -> float:
    """Return the middle of a bucket, at most a factor of 2 ** (1 / 16) off."""
    return SHORTEST_MS * 2 ** ((bucket - 0.5) / PER_DOUBLING) if bucket else SHORTEST_MS


def percentile(histogram: list[tuple[int, int]], total: int, part: float) -> float | None:
    """Return the duration that the share `part` of all runs did not exceed; None without runs.

    `histogram` is sorted counts by bucket; `total` is their sum.
    """
    wanted = math.ceil(part * total)
    for bucket, runs in histogram:
        wanted -= runs
        if wanted <= 0:
            return float(f"{duration_of(bucket):.4g}")
    return None
