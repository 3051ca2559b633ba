"""Cancellation of runs, on any server of a database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection, bindparam, literal_column, select, update

from skillery import audit
from skillery.backends import Identity
from skillery.database import Database, Statement
from skillery.database.tables import runs
from skillery.errors import RunEnded, RunNotFound, SkilleryError
from skillery.runs.active_run import ActiveRuns, cancelled_by
from skillery.runs.queries import find_run, get_run
from skillery.runs.results import RunRecord

CANCEL_SECONDS = 10.0
"""The maximum time in seconds for which `cancel_run` waits for the end of the run."""
CANCEL_LOOK_SECONDS = 0.05
"""Seconds between two reads of the run whose end `cancel_run` waits for."""

_CANCELLED = Statement(
    select(runs.c.id, runs.c.cancel_requested_by).where(
        runs.c.server == bindparam("server"),
        runs.c.status == literal_column("'started'"),
        runs.c.cancel_requested_at.is_not(None),
    )
)


def request_cancel(connection: Connection, *, identity: Identity, run_id: str) -> None:
    """Mark a run as cancelled. The server that executes the run polls for such marks, and stops it.

    Raise RunNotFound if the identity may not see the run or the run does not exist. Raise RunEnded if the run has
    ended.
    """
    run = find_run(connection, identity, run_id)
    cancelled = update(runs).where(runs.c.id == run_id, runs.c.status == "started")
    if not connection.execute(
        cancelled.values(cancel_requested_at=datetime.now(UTC), cancel_requested_by=identity.name)
    ).rowcount:
        status = connection.scalar(select(runs.c.status).where(runs.c.id == run_id)) or run.status
        raise RunEnded(
            f"the run {run_id} has ended: it is {status}",
            hint="There is nothing to cancel; get_run shows how it ended.",
            run_id=run_id,
            status=status,
        )
    audit.record(connection, identity, "cancel_run", run_id, after={"cancel": "requested"})


class Cancellation:
    """Cancels runs of any server, and stops the runs of this server that were cancelled on other servers."""

    def __init__(self, database: Database, server: str, active: ActiveRuns) -> None:
        """`server` is the id of this server."""
        self._database = database
        self._server = server
        self._active = active

    async def cancel_run(self, identity: Identity, run_id: str) -> RunRecord:
        """Cancel a run. Return its record when it has ended, or its present record after CANCEL_SECONDS.

        Raise RunNotFound if the identity may not see the run or the run does not exist. Raise RunEnded if the run had
        ended before this call.
        """
        await self._database.write(partial(request_cancel, identity=identity, run_id=run_id))
        self._active.stop(run_id, cancelled_by(identity.name))
        deadline = time.monotonic() + CANCEL_SECONDS
        while True:
            run = await self._database.read(partial(get_run, identity=identity, run_id=run_id))
            if run.finished_at is not None or time.monotonic() > deadline:
                return run
            await asyncio.sleep(CANCEL_LOOK_SECONDS)

    async def cancel_abandoned_run(self, identity: Identity, run_id: str) -> None:
        """Cancel a run of this server whose caller no longer waits for it. Do nothing if the run has ended."""
        try:
            await self.cancel_run(identity, run_id)
        except RunNotFound:  # a queued run that has no record yet
            self._active.stop(run_id, cancelled_by(identity.name))
        except RunEnded:
            return

    async def stop_cancelled(self) -> None:
        """Stop the runs of this server that are marked as cancelled."""
        for run_id, name in await self._database.read(partial(_CANCELLED.rows, server=self._server)):
            self._active.stop(run_id, cancelled_by(name))


# -- Regular polling of the database while a server has active runs ----------------------------------------------------


log = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
"""The interval of polling in seconds. A request that another server received for a run of this server takes effect at
the next poll.
"""


class Polling:
    """Calls the functions `looks` every LOOK_SECONDS while this server has active runs.

    Each function makes a short query of the database.
    """

    def __init__(self, active: ActiveRuns, looks: Sequence[Callable[[], Awaitable[None]]]) -> None:
        self._active = active
        self._looks = looks
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Start to call the functions every LOOK_SECONDS, unless the next call is scheduled already. This ends when the
        server has no active run.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._begin)

    def close(self) -> None:
        """Stop polling. The server calls this when it stops."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._timer = None
        if self._active:
            self._task = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        for look in self._looks:
            try:
                await look()
            except SkilleryError as error:
                log.debug("the database did not answer what is asked of active runs: %s", error.message)
        self.watch()
