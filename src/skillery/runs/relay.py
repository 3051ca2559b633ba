"""Writes the logs of this server's runs to the database, for other servers that follow these runs."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import msgspec

from skillery.database import Database
from skillery.errors import SkilleryError
from skillery.runs.active_run import ActiveRun, ActiveRuns
from skillery.runs.log_pieces import followed_on, write_pieces

log = logging.getLogger(__name__)
FLUSH_SECONDS = 0.25
FLUSH_BYTES = 64 * 1024
"""The maximum number of bytes of one write while the code runs. If a log grows faster, its middle is dropped."""


class _Passed:
    """The part of one run's log that is already in the database."""

    def __init__(self, run: ActiveRun) -> None:
        self.run = run
        self.offset = 0
        self.progress: bytes | None = None
        self.is_followed = True
        self.alone = asyncio.Lock()
        self.task: asyncio.Task[None] | None = None


class Relay:
    """Writes the logs of followed runs to the database. Runs that no other server follows cause no writes."""

    def __init__(self, database: Database, server: str, active: ActiveRuns) -> None:
        """`server` is the id of this server."""
        self._database = database
        self._server = server
        self._active = active
        self._passed: dict[str, _Passed] = {}

    async def look(self) -> None:
        """Write the logs of the runs that other servers follow now. Stop writing the logs of other runs."""
        followed = await self._database.read(partial(followed_on, server=self._server))
        for run_id in followed:
            run = self._active.find(run_id)
            if run is not None:
                self._begin(self._passed.setdefault(run_id, _Passed(run)))
        for run_id in self._passed.keys() - followed:
            self._passed[run_id].is_followed = False
            if self._active.find(run_id) is None:
                del self._passed[run_id]

    async def finish(self, run: ActiveRun) -> None:
        """Write the rest of the log if other servers follow the run. Call this before recording the end of the run."""
        passed = self._passed.pop(run.run_id, None)
        if passed is None:
            return
        passed.is_followed = False
        try:
            await self._flush(passed, None)
        except SkilleryError as error:
            log.warning("the log of %s could not be passed on: %s", run.run_id, error.message)

    def _begin(self, passed: _Passed) -> None:
        passed.is_followed = True
        if passed.task is None or passed.task.done():
            passed.task = asyncio.create_task(self._pass_on(passed))

    async def _pass_on(self, passed: _Passed) -> None:
        while passed.is_followed:
            try:
                await self._flush(passed, FLUSH_BYTES)
            except SkilleryError as error:
                log.debug("the log of %s could not be passed on: %s", passed.run.run_id, error.message)
            await asyncio.sleep(FLUSH_SECONDS)

    async def _flush(self, passed: _Passed, size: int | None) -> None:
        """Write at most `size` new bytes of the log (all new bytes if `size` is None), and the progress if it
        changed.
        """
        async with passed.alone:
            live, run_id = passed.run.live, passed.run.run_id
            parts, end = live.parts(passed.offset, size)
            progress = msgspec.json.encode(live.progress) if live.progress is not None else None
            told = progress.decode() if progress is not None and progress != passed.progress else None
            if not parts and told is None:
                return
            work = partial(write_pieces, run_id=run_id, parts=parts, progress=told, gap=live.gap)
            await self._database.write(work)
            passed.offset, passed.progress = end, progress
