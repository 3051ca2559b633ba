"""The end of runs that a caller cancels, and of runs whose server has died."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.backends import FailureType, Identity
from skillery.database import Database, Statement, migrate
from skillery.database.backend_values import find_value
from skillery.database.tables import runs, servers, workspaces
from skillery.errors import RunEnded, RunNotFound, SkilleryError
from skillery.identity.idempotency import settle, workers
from skillery.runs.active_run import ActiveRuns, cancelled_by
from skillery.runs.queries import find_run, get_run, result_of
from skillery.runs.records import record_closed
from skillery.runs.results import RunRecord

# -- Cancel runs, on any server of a database --------------------------------------------------------------------------


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
    run = find_run(connection, identity, run_id, needs="admin")
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


# -- Orphaned runs, which were active on a server when it died ---------------------------------------------------------


DEAD = timedelta(seconds=60)
"""A server whose `seen_at` is older than this is dead. Clocks of servers may differ by half of this time."""
LOST = timedelta(seconds=60)
"""A started run that is not active on its server is lost if it started at least this long ago."""
SERVER_DIED = "the server stopped before the run ended"
NOT_RECORDED = "the run has ended, but its outcome could not be recorded: the database was unavailable for too long"

_SEEN = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(servers).on_conflict_do_update(
        index_elements=["id"],
        set_={name: dialect.insert(servers).excluded[name] for name in ("seen_at", "revision")},
    )
    for dialect in (sqlite, postgresql)
}


def note_seen(connection: Connection, server: str) -> None:
    """Set `seen_at` of this server to now, which shows that it is alive."""
    values = {"id": server, "seen_at": datetime.now(UTC), "revision": migrate.head()}
    connection.execute(_SEEN[connection.dialect.name], values)


def is_upgraded(connection: Connection) -> bool:
    """Return whether the servers were upgraded while others worked, and all live servers have this release now."""
    if find_value(connection, migrate.REBUILD_AGAIN) is None or migrate.is_newer(connection):
        return False
    is_other = or_(servers.c.revision.is_(None), servers.c.revision != migrate.head())
    is_alive = servers.c.seen_at >= datetime.now(UTC) - DEAD
    return connection.scalar(select(servers.c.id).where(is_other, is_alive).limit(1)) is None


def close_left_over(connection: Connection, server: str, batch: int | None = None) -> int:
    """Close the runs that an earlier process of this server left open. Return their number. Call this at start.

    Here and below, `batch` is the batch of runs whose seal covers the closed runs.
    """
    note_seen(connection, server)
    return _close_and_record(connection, [server], runs.c.server == server, batch=batch)


def close_of_dead(connection: Connection, batch: int | None = None) -> int:
    """Close the runs of dead servers, and delete the rows of these servers. Return the number of closed runs."""
    dead = list(connection.scalars(select(servers.c.id).where(servers.c.seen_at < datetime.now(UTC) - DEAD)))
    if not dead:
        return 0
    closed = _close_and_record(connection, dead, runs.c.server.in_(dead), batch=batch)
    connection.execute(delete(servers).where(servers.c.id.in_(dead)))
    return closed


def close_lost(connection: Connection, server: str, active: Sequence[str], batch: int | None = None) -> int:
    """Close the runs of this server whose end could not be recorded. Return the number of closed runs.

    `active` are the ids of the runs of this server that have not ended.
    """
    before = datetime.now(UTC) - LOST
    open_ = select(runs.c.id).where(runs.c.server == server, runs.c.status == "started", runs.c.started_at < before)
    lost = set(connection.scalars(open_)) - set(active)
    if not lost:
        return 0
    return _close_and_record(connection, [server], runs.c.id.in_(lost), only_runs=True, why=NOT_RECORDED, batch=batch)


def close_all(connection: Connection, why: str) -> int:
    """Close the open runs of all servers, with the reason `why`. Return the number of closed runs.

    This is for a restored copy of a database, which no server of these runs uses.
    """
    return len(_close(connection, workers(connection), true(), why=why))


def of_no_server(dead: frozenset[str]) -> ColumnElement[bool]:
    """Return the SQL condition for open runs whose server is dead, unknown, or in `dead`."""
    alive = select(servers.c.id).where(servers.c.seen_at >= datetime.now(UTC) - DEAD)
    return and_(runs.c.status == "started", runs.c.server.not_in(alive) | runs.c.server.in_(sorted(dead)))


def _close_and_record(
    connection: Connection, left_by: Sequence[str], condition: ColumnElement[bool], **how: Any
) -> int:
    """Close runs like `_close`, record an event for each, and return the number of closed runs."""
    closed = _close(connection, left_by, condition, **how)
    record_closed(connection, closed)
    return len(closed)


def _close(
    connection: Connection,
    left_by: Sequence[str],
    condition: ColumnElement[bool],
    *,
    only_runs: bool = False,
    why: str = SERVER_DIED,
    batch: int | None = None,
) -> list[str]:
    """Record the open runs of `condition` as failed with the reason `why`, and return their ids.

    Release the workspaces and settle the idempotency claims of these runs. Do the same for all runs without a record of
    the servers `left_by`, unless `only_runs`. Usage does not count closed runs, because they show nothing about a
    version.
    """
    error = {"type": FailureType.SANDBOX_ERROR, "message": why}
    closed = connection.scalars(
        update(runs)
        .where(runs.c.status == "started", condition)
        .values(
            status="failed",
            summary=error["message"],
            output_json="null",
            error_json=msgspec.json.encode(error).decode(),
            duration_ms=0.0,
            finished_at=datetime.now(UTC),
            seal_batch=batch,
        )
        .returning(runs.c.id)
    ).all()
    _release_workspaces(connection, () if only_runs else left_by)
    settle(connection, left_by, partial(result_of, connection), only_runs=only_runs)
    return list(closed)


def _release_workspaces(connection: Connection, dead: Sequence[str]) -> None:
    """Release the workspaces of ended runs, and of all runs of the servers `dead`. Their snapshots stay as they are.

    A run takes its workspace before it has a record. So a dead server can leave a workspace that a run without a record
    holds.
    """
    has_ended = exists().where(runs.c.id == workspaces.c.run_id, runs.c.status != "started")
    held_workspaces = update(workspaces).where(
        workspaces.c.run_id.is_not(None), has_ended | workspaces.c.server.in_(dead)
    )
    connection.execute(held_workspaces.values(run_id=None, server=None))
