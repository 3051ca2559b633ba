"""The steps of a sweep, and the schedule of sweeps on a running server."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from functools import partial

from skillery.backends import Storage
from skillery.database import Database
from skillery.environments import Environments
from skillery.errors import Busy, SkilleryError
from skillery.maintenance.garbage import (
    Collector,
    SweepStep,
    cached_files,
    ended_sessions,
    expired_blobs,
    expired_workspaces,
    leftovers,
    old_exchanges,
    old_locks,
    old_runs,
    unused_contents,
    unused_environments,
)
from skillery.runs.cache import Cache
from skillery.settings import Settings

log = logging.getLogger(__name__)
FIRST_MINUTES = 1.0
"""The first sweep starts this long after the server, or earlier, so that servers that run only briefly sweep too."""


def sweep_steps(
    settings: Settings, database: Database, storage: Storage, cache: Cache, environments: Environments
) -> list[SweepStep]:
    """Return the steps of a sweep, in order: a step may leave garbage that a later step removes."""
    grace, unused_for = timedelta(minutes=settings.gc.grace_minutes), timedelta(days=settings.gc.cache_days)
    keep_for, keep_count = timedelta(days=settings.runs.keep_days), settings.runs.keep_count
    return [
        SweepStep("runs", partial(old_runs, database, keep_for, keep_count)),
        SweepStep("expired_blobs", partial(expired_blobs, database, grace)),
        SweepStep("expired_workspaces", partial(expired_workspaces, database, storage)),
        SweepStep("ended_sessions", partial(ended_sessions, database)),
        SweepStep("unused_contents", partial(unused_contents, database, storage, grace)),
        SweepStep("leftover_files", partial(leftovers, database, storage, grace)),
        SweepStep("cached_files", partial(cached_files, database, cache, grace, unused_for), own=True),
        SweepStep("old_exchanges", partial(old_exchanges, database)),
        SweepStep("old_locks", partial(old_locks, database, timedelta(hours=settings.packages.reuse_hours))),
        SweepStep("environments", partial(unused_environments, environments, grace, unused_for), own=True),
    ]


async def sweep_periodically(collector: Collector, interval_minutes: float) -> None:
    """Sweep every `interval_minutes` until cancelled. If `interval_minutes` is 0, return at once.

    Only one server of a database sweeps the shared data at a time. If another server is sweeping, sweep only this
    server's own data.
    """
    if not interval_minutes:
        return
    await asyncio.sleep(60 * min(FIRST_MINUTES, interval_minutes))
    while True:
        try:
            await asyncio.to_thread(_sweep, collector)
        except SkilleryError as error:
            log.warning("the sweep failed and will be repeated: %s", error.message)
        except Exception:
            log.exception("the sweep failed and will be repeated")
        await asyncio.sleep(60 * interval_minutes)


def _sweep(collector: Collector) -> None:
    try:
        swept = collector.collect()
    except Busy:
        swept = collector.collect_own()
    for step, one in swept.items():
        if one.count:
            log.info("swept %s: %d, %d bytes", step, one.count, one.bytes)
