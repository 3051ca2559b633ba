"""Periodic jobs of a server.

The jobs watch the free space, record a heartbeat, close runs that a dead server left open, delete old log pieces,
idempotency keys and session tools, write the counts of reads, and add up the usage of skills.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection

from skillery.context.disks import Disks
from skillery.database import Database
from skillery.errors import SkilleryError
from skillery.identity.idempotency import forget_keys
from skillery.registry.read_counts import ReadCounts, add_reads, forget_reads
from skillery.registry.session_tools import forget_session_tools
from skillery.registry.usage_days import roll_up_usage
from skillery.runs import Runner
from skillery.runs.log_pieces import forget_pieces
from skillery.runs.orphans import DEAD, close_lost, close_of_dead, note_seen

log = logging.getLogger(__name__)
BEAT_SECONDS = 10.0
FIRST_SECONDS = 1.0
CLEANUP_SECONDS = 3600.0
BATCH = 500
"""Limit of the rows that one transaction deletes. The transactions are short, because SQLite has a single writer."""


class BackgroundJobs:
    def __init__(self, database: Database, runner: Runner, reads: ReadCounts, disks: Disks, server: str) -> None:
        self._database = database
        self._runner = runner
        self._reads = reads
        self._disks = disks
        self._server = server
        self._task: asyncio.Task[None] | None = None
        self._healthy_since: float | None = None
        """Start of the present series of heartbeats on time. None if the last heartbeat failed or was late.

        Only a server with healthy heartbeats can tell that another server is dead.
        """

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        try:
            await self._write_reads()
        except SkilleryError as error:
            log.debug("the last counts of reads are lost: %s", error.message)

    async def _run(self) -> None:
        cleaned_at: float | None = None
        while True:
            # The first heartbeat is delayed, because a command that opens the home is busy with its own work.
            started = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS if cleaned_at is not None else FIRST_SECONDS)
            if time.monotonic() - started > DEAD.total_seconds() / 2:
                self._healthy_since = None
            try:
                await asyncio.to_thread(self._disks.watch)
                await self._beat()
                if cleaned_at is None or started - cleaned_at > CLEANUP_SECONDS:
                    cleaned_at = started
                    await self._clean_up()
            except SkilleryError as error:
                self._healthy_since = None
                log.debug("background jobs: %s", error.message)
            except Exception:
                log.exception("background jobs failed")

    async def _beat(self) -> None:
        now = time.monotonic()
        under_way = self._runner.active_ids()
        unrecorded = await self._database.write(partial(_record_heartbeat, server=self._server, under_way=under_way))
        if unrecorded:
            log.warning("%d runs that could not be recorded when they ended are recorded as failed", unrecorded)
        await self._database.write(partial(forget_pieces, limit=BATCH))
        await self._write_reads()
        self._healthy_since = self._healthy_since or now
        if now - self._healthy_since > DEAD.total_seconds():
            dead = await self._database.write(close_of_dead)
            if dead:
                log.warning("%d runs of dead servers are recorded as failed", dead)

    async def _write_reads(self) -> None:
        counts = self._reads.take()
        if not counts:
            return
        try:
            await self._database.write(partial(add_reads, counts=counts))
        except BaseException:
            self._reads.put_back(counts)
            raise

    async def _clean_up(self) -> None:
        """Delete the idempotency keys and session tools that have expired, and add up the usage of the last 30 days."""
        for forget in (forget_keys, forget_session_tools):
            while await self._database.write(partial(forget, limit=BATCH)) == BATCH:  # noqa: ASYNC110 - others write in between
                await asyncio.sleep(0.05)
        await self._database.write(roll_up_usage)
        await self._database.write(forget_reads)


def _record_heartbeat(connection: Connection, server: str, under_way: Sequence[str]) -> int:
    note_seen(connection, server)
    return close_lost(connection, server, under_way)
