"""Orphaned runs: runs that were active on a server when the server died. Other servers find and close them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, select, true, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import FailureType
from skillery.database.tables import runs, servers, workspaces
from skillery.identity.idempotency import settle, workers
from skillery.runs.queries import result_of
from skillery.runs.records import record_closed

DEAD = timedelta(seconds=60)
"""A server whose `seen_at` is older than this is dead. Clocks of servers may differ by half of this time."""
LOST = timedelta(seconds=60)
"""A started run that is not active on its server is lost if it started at least this long ago."""
SERVER_DIED = "the server stopped before the run ended"
NOT_RECORDED = "the run has ended, but its outcome could not be recorded: the database was unavailable for too long"

_SEEN = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(servers).on_conflict_do_update(
        index_elements=["id"], set_={"seen_at": dialect.insert(servers).excluded.seen_at}
    )
    for dialect in (sqlite, postgresql)
}


def note_seen(connection: Connection, server: str) -> None:
    """Set `seen_at` of this server to now, which shows that it is alive."""
    connection.execute(_SEEN[connection.dialect.name], {"id": server, "seen_at": datetime.now(UTC)})


def close_left_over(connection: Connection, server: str) -> int:
    """Close the runs that an earlier process of this server left open. Return their number. Call this at start."""
    note_seen(connection, server)
    return _close_and_record(connection, [server], runs.c.server == server)


def close_of_dead(connection: Connection) -> int:
    """Close the runs of dead servers, and delete the rows of these servers. Return the number of closed runs."""
    dead = list(connection.scalars(select(servers.c.id).where(servers.c.seen_at < datetime.now(UTC) - DEAD)))
    if not dead:
        return 0
    closed = _close_and_record(connection, dead, runs.c.server.in_(dead))
    connection.execute(delete(servers).where(servers.c.id.in_(dead)))
    return closed


def close_lost(connection: Connection, server: str, active: Sequence[str]) -> int:
    """Close the runs of this server whose end could not be recorded. Return the number of closed runs.

    `active` are the ids of the runs of this server that have not ended.
    """
    before = datetime.now(UTC) - LOST
    open_ = select(runs.c.id).where(runs.c.server == server, runs.c.status == "started", runs.c.started_at < before)
    lost = set(connection.scalars(open_)) - set(active)
    if not lost:
        return 0
    return _close_and_record(connection, [server], runs.c.id.in_(lost), only_runs=True, why=NOT_RECORDED)


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
