"""Writes the logs of this server's runs to the database, for other servers that follow these runs. Reads the logs of
other servers' runs from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

import msgspec
from msgspec import UNSET

from skillery.database import Database
from skillery.errors import SkilleryError
from skillery.runs.active_run import ActiveRun, ActiveRuns
from skillery.runs.live_output import LiveOutput, Shown
from skillery.runs.log_sources import (
    FollowedRun,
    LiveSource,
    Piece,
    followed_on,
    mark_followed,
    read_pieces,
    shown_json,
    write_pieces,
)
from skillery.runs.results import Status

log = logging.getLogger(__name__)
FLUSH_SECONDS = 0.25
FLUSH_BYTES = 64 * 1024
"""The maximum number of bytes of one write while the code runs. If a log grows faster, the bytes in its middle are
dropped.
"""


class _Passed:
    """One followed run, with the `offset` up to which its log is in the database, and the progress that is there."""

    def __init__(self, run: ActiveRun) -> None:
        self.run = run
        self.offset = 0
        self.progress: str | None = None
        self.is_followed = True
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
        """Read which runs of this server are followed by other servers. Start to write their logs to the database, and
        stop for runs that are no longer followed.
        """
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
        """Write the rest of the log if other servers follow the run. Call this before recording the run's end."""
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
        """Write the new log bytes every FLUSH_SECONDS, while other servers follow the run."""
        while passed.is_followed:
            try:
                await self._flush(passed, FLUSH_BYTES)
            except SkilleryError as error:
                log.debug("the log of %s could not be passed on: %s", passed.run.run_id, error.message)
            await asyncio.sleep(FLUSH_SECONDS)

    async def _flush(self, passed: _Passed, size: int | None) -> None:
        """Write at most `size` new bytes of the log (None: all), and the progress if it changed."""
        async with passed.run.progress_lock:
            live, run_id = passed.run.live, passed.run.run_id
            parts, end = live.parts(passed.offset, size)
            progress = shown_json(live.shown)
            change = progress if progress != passed.progress else UNSET
            if not parts and change is UNSET:
                return
            work = partial(write_pieces, run_id=run_id, parts=parts, progress=change, gap=live.gap)
            await self._database.write(work)
            passed.offset, passed.progress = end, progress


# -- Runs of other servers that callers of this server follow. Their logs arrive as rows of the database ---------------


LOOK_SECONDS = 0.25
MARK_SECONDS = 10.0
KEPT_BYTES = 1 << 20
"""The maximum number of log bytes that this server keeps for each run of another server."""


class RemoteRun(LiveSource):
    """The log of a run that another server executes."""

    def __init__(self) -> None:
        super().__init__(LiveOutput(KEPT_BYTES))
        self.followers = 0
        self._is_queued = False

    @property
    def status(self) -> Status:
        return self.live.status or ("queued" if self._is_queued else "started")

    def add(self, piece: Piece) -> None:
        self.live.skip_to(piece.start)
        self.live.add(piece.content)

    def update(self, row: FollowedRun | None) -> None:
        """Set the status and progress from the row of the run. If `row` is None, the record was deleted, and the run
        counts as failed.
        """
        if row is None:
            self.live.finish(None, "failed")
            return
        self._is_queued = row.is_queued
        self.live.show(msgspec.json.decode(row.progress_json, type=Shown) if row.progress_json is not None else None)
        if row.finished_at is not None:
            self.live.finish(None, "completed" if row.status == "completed" else "failed")


class RemoteRuns:
    """The runs of other servers that callers of this server follow. One query reads the new log pieces of all these
    runs.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs: dict[str, RemoteRun] = {}
        self._task: asyncio.Task[None] | None = None

    def follow(self, row: FollowedRun) -> RemoteRun:
        """Start to follow the run in `row`, and return it. Each caller must call `leave` once."""
        run = self._runs.setdefault(row.run_id, RemoteRun())
        run.update(row)
        run.followers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_on())
        return run

    def leave(self, run_id: str) -> None:
        """Record that one caller follows the run no longer."""
        run = self._runs.get(run_id)
        if run is not None:
            run.followers -= 1

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look_on(self) -> None:
        """Poll the database every LOOK_SECONDS, until no run is followed."""
        marked_at: dict[str, float] = {}
        while self._runs:
            try:
                await self._look(marked_at)
            except SkilleryError as error:
                log.debug("the database did not answer what followed runs have printed: %s", error.message)
            await asyncio.sleep(LOOK_SECONDS)
            # Keep active runs without followers for a few seconds: a caller that polls soon follows the run again.
            now = time.monotonic()
            for run_id, run in tuple(self._runs.items()):
                if not run.followers and (run.has_ended or now - marked_at.get(run_id, now) > MARK_SECONDS / 2):
                    del self._runs[run_id]

    async def _look(self, marked_at: dict[str, float]) -> None:
        """Mark the followed runs if their marks are old, and read their new log pieces and states.

        `marked_at` has the monotonic time of the last mark by run id, and is updated.
        """
        now = time.monotonic()
        due = [
            run_id
            for run_id, run in self._runs.items()
            if run.followers and now - marked_at.get(run_id, -MARK_SECONDS) >= MARK_SECONDS
        ]
        if due:
            await self._database.write(partial(mark_followed, run_ids=due))
            marked_at.update(dict.fromkeys(due, now))
        offsets = [(run_id, run.end) for run_id, run in self._runs.items() if not run.has_ended]
        if not offsets:
            return
        states, pieces = await asyncio.to_thread(self._database.read_now, partial(read_pieces, offsets=offsets))
        for piece in pieces:
            self._runs[piece.run_id].add(piece)
        for run_id, _ in offsets:
            self._runs[run_id].update(states.get(run_id))
