"""Runs that somebody wants stopped: the caller of another, its own, an admin, or the server that ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, literal_column, select, update

from skillery import audit
from skillery.backends import Failure, FailureType, Identity
from skillery.database import Database, Statement
from skillery.database.tables import runs
from skillery.errors import RunEnded, SkilleryError
from skillery.runs.reading import find_run

log = logging.getLogger(__name__)
T = TypeVar("T")
LOOK_SECONDS = 0.5
"""How long a run goes on, at most, that another server was asked to stop."""
begun_runs: ContextVar[list[str] | None] = ContextVar("begun_runs", default=None)
"""Where somebody sets a list, the ids of the runs that its calls begin: to be able to take them back."""
CALLER_ENDED = Failure(FailureType.CALLER_ENDED, "the run that called this has ended")

_WANTED = Statement(
    select(runs.c.id, runs.c.cancel_requested_by).where(
        runs.c.server == bindparam("server"),
        runs.c.status == literal_column("'started'"),
        runs.c.cancel_requested_at.is_not(None),
    )
)


def cancelled_by(name: str) -> Failure:
    return Failure(FailureType.CANCELLED, f"cancelled by '{name}'")


def request_cancel(connection: Connection, *, identity: Identity, run_id: str) -> None:
    """Note that a run is to be stopped; the server that has it looks for that. Raises RunNotFound, RunEnded."""
    found = find_run(connection, identity, run_id)
    wanted = update(runs).where(runs.c.id == run_id, runs.c.status == "started")
    if not connection.execute(
        wanted.values(cancel_requested_at=datetime.now(UTC), cancel_requested_by=identity.name)
    ).rowcount:
        status = connection.scalar(select(runs.c.status).where(runs.c.id == run_id)) or found.status
        raise RunEnded(
            f"the run {run_id} has ended: it is {status}",
            hint="There is nothing to cancel; get_run shows how it ended.",
            run_id=run_id,
            status=status,
        )
    audit.record(connection, identity, "cancel_run", run_id, after={"cancel": "requested"})


class Stopped(Exception):
    """What was awaited was stopped; `reason` is why."""

    def __init__(self, reason: Failure) -> None:
        super().__init__(reason.message)
        self.reason = reason


class Stopper:
    """Ends what one run waits for, now or as soon as it begins. The run is recorded nevertheless."""

    def __init__(self) -> None:
        self._reason: Failure | None = None
        self._task: asyncio.Future[Any] | None = None

    def stop(self, reason: Failure) -> None:
        self._reason = self._reason or reason
        if self._task is not None:
            self._task.cancel()

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work answers. Raises Stopped."""
        self._task = task = asyncio.ensure_future(work)
        if self._reason is not None:
            task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._task = None
        if task.cancelled():
            raise Stopped(self._reason or CALLER_ENDED)
        return task.result()


class Stoppers:
    """One for each run of this server. While there are any, the database is looked at now and then for those that
    somebody wants stopped: it is the one place that all servers share, and a look costs a fraction of a millisecond."""

    def __init__(self, database: Database, server: str) -> None:
        self._database = database
        self._server = server
        self._stoppers: dict[str, Stopper] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    def add(self, run_id: str) -> Stopper:
        stopper = self._stoppers[run_id] = Stopper()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        return stopper

    def discard(self, run_id: str) -> None:
        self._stoppers.pop(run_id, None)

    def stop(self, run_id: str, reason: Failure) -> None:
        """Nothing where this server has no such run."""
        if run_id in self._stoppers:
            self._stoppers[run_id].stop(reason)

    def stop_all(self, reason: Failure) -> None:
        for stopper in tuple(self._stoppers.values()):
            stopper.stop(reason)

    def ids(self) -> list[str]:
        return list(self._stoppers)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._stoppers:
            self._looking = asyncio.ensure_future(self._stop_wanted())
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    async def _stop_wanted(self) -> None:
        try:
            wanted = await self._database.read(partial(_WANTED.rows, server=self._server))
        except SkilleryError as error:
            log.debug("nobody could be asked which runs to stop: %s", error.message)
            return
        for run_id, name in wanted:
            self.stop(run_id, cancelled_by(name))
