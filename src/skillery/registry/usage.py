"""How a version is used: counted in the transaction that ends a run, so that nobody ever counts runs.

Durations are kept as a histogram whose buckets grow by an eighth of a doubling each: a percentile is known to 4.5 %,
from a hundred thousandth of a second to an hour, in a few dozen rows.
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
    """`usage` of describe_skill: of everybody's runs, those that other runs called among them."""

    runs: int
    completed: int
    failed: int
    cancelled: int
    success_rate: float | None
    """Of those that completed or failed."""
    p50_ms: float | None
    """Of those that completed: failing early is not being quick."""
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
# One row of text: a version that is much used has dozens of buckets, and each row fetched costs as much as all of them
# joined. A literal between them: a parameter of its own kind has no place in a Statement.
USAGE = (
    func.aggregate_strings(_CELL, literal_column("','")),  # type: ignore[arg-type]
    func.max(version_usage.c.last_run_at),
)
"""What `usage_from` is made of, selected for one `version_id`."""


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
    """Larger for what took longer; 0 is SHORTEST_MS and less."""
    if duration_ms <= SHORTEST_MS:
        return 0
    return 1 + math.floor(PER_DOUBLING * math.log2(duration_ms / SHORTEST_MS))


def duration_of(bucket: int) -> float:
    """The middle of a bucket: off by a factor of 2 ** (1 / 16) at most."""
    return SHORTEST_MS * 2 ** ((bucket - 0.5) / PER_DOUBLING) if bucket else SHORTEST_MS


def percentile(histogram: list[tuple[int, int]], total: int, part: float) -> float | None:
    """Of counts by bucket, sorted, and their sum: the duration that `part` of all did not exceed. None where there are
    none."""
    wanted = math.ceil(part * total)
    for bucket, runs in histogram:
        wanted -= runs
        if wanted <= 0:
            return float(f"{duration_of(bucket):.4g}")
    return None
