"""Periodic jobs of a server.

The jobs watch the free space, record a heartbeat, close runs that a dead server left open, delete old log pieces,
idempotency keys and session tools, write the uses of skills, and describe the scripts of stored versions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from sqlalchemy import Connection

from skillery.app.logs import report_repeated
from skillery.attestations.evidence import recertify
from skillery.attestations.seals import Sealer
from skillery.backends import Storage
from skillery.context.disks import Disks
from skillery.database import Database
from skillery.environments.store import Environments
from skillery.errors import Busy, SkilleryError
from skillery.identity.idempotency import forget_keys
from skillery.maintenance.garbage import Collector, SweepStep
from skillery.maintenance.garbage_steps import (
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
from skillery.publishing.backfills import describe_stored
from skillery.publishing.passing import Passing
from skillery.publishing.reviews import end_old_passed
from skillery.registry.searches import Counts as SearchCounts
from skillery.registry.searches import write_searches
from skillery.registry.tool_rows import forget_session_tools
from skillery.registry.usage import thin_out
from skillery.registry.uses import MOST_AT_ONCE, Unwritten, Uses
from skillery.runs.cache import Cache
from skillery.runs.ended_runs import DEAD, close_left_over, close_lost, close_of_dead, is_upgraded, note_seen
from skillery.runs.log_sources import forget_pieces
from skillery.runs.runner import Runner
from skillery.settings.load import Settings
from skillery.settings.versions import Review
from skillery.skills.catalogue_order import outdated_skills, update_sums, write_uses
from skillery.versions.new_versions import is_rebuild_pending, rebuild_some, request_rebuild

log = logging.getLogger(__name__)
BEAT_SECONDS = 10.0
FIRST_SECONDS = 1.0
CLEANUP_SECONDS = 3600.0
USES_SECONDS = 2.0
"""The order of the catalogue is at most this much older than the uses of this server."""
BATCH = 500
"""Limit of the rows that one transaction deletes. The transactions are short, because SQLite has a single writer."""


class BackgroundJobs:
    """Runs the periodic jobs of one server, from `start` to `close`."""

    def __init__(
        self,
        database: Database,
        runner: Runner,
        sealer: Sealer,
        uses: Uses,
        disks: Disks,
        server: str,
        review: Review,
        passing: Passing,
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._runner = runner
        self._uses = uses
        self._disks = disks
        self._server = server
        self._recertify_days = review.recertify_days
        self._passing = passing
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing: asyncio.Task[None] | None = None
        """The last write of uses."""
        self._healthy_since: float | None = None
        """Start of the present series of heartbeats on time. None if the last heartbeat failed or was late.

        Only a server with healthy heartbeats can tell that another server is dead.
        """

    def start(self) -> None:
        jobs = self._run(), self._write_periodically(), describe_stored(self._passing)
        self._tasks = {asyncio.create_task(job) for job in jobs}

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if waiting := self._tasks | ({self._writing} if self._writing is not None else set()):
            await asyncio.wait(waiting)
        try:
            await self._write_uses()
        except SkilleryError as error:
            log.debug("the last uses are lost: %s", error.message)

    async def _run(self) -> None:
        """Do the jobs forever. A job that fails is logged and repeated at the next beat."""
        cleaned_at: float | None = None
        while True:
            # The first heartbeat is delayed, because a command that opens the home is busy with its own work.
            started_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS if cleaned_at is not None else FIRST_SECONDS)
            if time.monotonic() - started_at > DEAD.total_seconds() / 2:
                self._healthy_since = None
            report_repeated()
            try:
                await asyncio.to_thread(self._disks.watch)
                await self._beat()
                await self._rebuild()
                if cleaned_at is None or started_at - cleaned_at > CLEANUP_SECONDS:
                    cleaned_at = started_at
                    await self._clean_up()
            except SkilleryError as error:
                self._healthy_since = None
                log.debug("background jobs: %s", error.message)
            except Exception:
                log.exception("background jobs failed")

    async def _beat(self) -> None:
        """Record the heartbeat. After a healthy time, close the runs of dead servers."""
        now = time.monotonic()
        under_way = self._runner.active_ids()
        with self._sealer.batch() as batch:
            beat = partial(_record_heartbeat, server=self._server, under_way=under_way, batch=batch)
            unrecorded = await self._database.write(beat)
        if unrecorded:
            log.warning("%d runs that could not be recorded when they ended are recorded as failed", unrecorded)
        await self._database.write(partial(forget_pieces, limit=BATCH))
        self._healthy_since = self._healthy_since or now
        if now - self._healthy_since > DEAD.total_seconds():
            with self._sealer.batch() as batch:
                closed_runs = await self._database.write(partial(close_of_dead, batch=batch))
            if closed_runs:
                log.warning("%d runs of dead servers are recorded as failed", closed_runs)

    async def _rebuild(self) -> None:
        """Compute the derived rows again after an upgrade of several servers, and end what another server began."""
        if await self._database.read(is_upgraded):
            await self._database.write(request_rebuild)
        if await self._database.read(is_rebuild_pending):
            while await self._database.write(rebuild_some):
                pass

    async def _write_periodically(self) -> None:
        while True:
            await asyncio.sleep(USES_SECONDS)
            try:
                await self._write_uses()
            except SkilleryError as error:
                log.debug("uses: %s", error.message)
            except Exception:
                log.exception("the uses of skills could not be written")

    async def _write_uses(self) -> None:
        unwritten, searches = self._uses.take(), self._uses.searches.take()
        if unwritten or searches:
            # A cancelled caller ends no transaction that has begun, and must not write the same uses again.
            self._writing = asyncio.create_task(self._write(unwritten, searches))
            await asyncio.shield(self._writing)

    async def _write(self, unwritten: Unwritten | None, searches: SearchCounts) -> None:
        try:
            if searches:
                mark = await self._database.write(
                    partial(write_searches, counts=searches, mark=self._uses.searches.mark)
                )
                searches = {}
                self._uses.searches.drop_unless(mark)
            if unwritten:
                self._uses.note_skills(await self._database.write(partial(write_uses, unwritten=unwritten)))
        except BaseException:
            self._uses.searches.put_back(searches)
            if unwritten:
                self._uses.put_back(unwritten)
            raise

    async def _clean_up(self) -> None:
        """Delete the idempotency keys and session tools that have expired, and repair the order of the catalogue."""
        for forget in (forget_keys, forget_session_tools):
            while await self._database.write(partial(forget, limit=BATCH)) == BATCH:  # noqa: ASYNC110 - others write in between
                await asyncio.sleep(0.05)
        if self._recertify_days:
            while await self._database.write(partial(recertify, days=self._recertify_days)):
                pass
        await end_old_passed(self._passing)
        await self._database.write(thin_out)
        skill_ids = await self._database.read(outdated_skills)
        for at in range(0, len(skill_ids), MOST_AT_ONCE):
            await self._database.write(partial(update_sums, skill_ids=skill_ids[at : at + MOST_AT_ONCE]))


async def take_over(database: Database, sealer: Sealer, server: str) -> None:
    """Record the first heartbeat of a server, begin to seal, and close the runs that its last process left open."""
    await database.write(partial(note_seen, server=server))
    await sealer.start()
    with sealer.batch() as batch:
        closed_runs = await database.write(partial(close_left_over, server=server, batch=batch))
    if closed_runs:
        log.warning("%d runs that the last server left open are recorded as failed", closed_runs)


def _record_heartbeat(connection: Connection, server: str, under_way: Sequence[str], batch: int | None) -> int:
    note_seen(connection, server)
    return close_lost(connection, server, under_way, batch)


# -- The steps of a sweep, and the schedule of sweeps on a running server ----------------------------------------------


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
    for step, amount in swept.items():
        if amount.count:
            log.info("swept %s: %d, %d bytes", step, amount.count, amount.bytes)
