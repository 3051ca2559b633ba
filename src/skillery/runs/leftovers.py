"""What servers leave open when they die, and how the others know that they have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, select, true, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import FailureType
from skillery.database.tables import runs, servers
from skillery.identity.idempotency import settle, workers
from skillery.runs.reading import result_of

DEAD = timedelta(seconds=60)
"""A server that nothing was heard of for so long is gone. Clocks of servers may differ by half of it."""
LOST = timedelta(seconds=60)
SERVER_DIED = "the server stopped before the run ended"
NOT_RECORDED = "the run has ended, and how could not be recorded: the database was away for too long"

_SEEN = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(servers).on_conflict_do_update(
        index_elements=["id"], set_={"seen_at": dialect.insert(servers).excluded.seen_at}
    )
    for dialect in (sqlite, postgresql)
}


def note_seen(connection: Connection, server: str) -> None:
    """This server lives."""
    connection.execute(_SEEN[connection.dialect.name], {"id": server, "seen_at": datetime.now(UTC)})


def close_left_over(connection: Connection, server: str) -> int:
    """What this server left open when it died, to be called when it starts: the number of its runs."""
    note_seen(connection, server)
    return _close(connection, [server], runs.c.server == server)


def close_of_dead(connection: Connection) -> int:
    """As close_left_over, for other servers that have not been seen for a minute and may never start again."""
    dead = list(connection.scalars(select(servers.c.id).where(servers.c.seen_at < datetime.now(UTC) - DEAD)))
    if not dead:
        return 0
    closed = _close(connection, dead, runs.c.server.in_(dead))
    connection.execute(delete(servers).where(servers.c.id.in_(dead)))
    return closed


def close_lost(connection: Connection, server: str, under_way: Sequence[str]) -> int:
    """Runs of this server that are over but could not be recorded: the database was away when they ended."""
    before = datetime.now(UTC) - LOST
    open_ = select(runs.c.id).where(runs.c.server == server, runs.c.status == "started", runs.c.started_at < before)
    lost = set(connection.scalars(open_)) - set(under_way)
    return _close(connection, [server], runs.c.id.in_(lost), only_runs=True, why=NOT_RECORDED) if lost else 0


def close_all(connection: Connection, why: str) -> int:
    """As close_left_over, for whatever any server left open: where none of them is, in a copy of their database."""
    return _close(connection, workers(connection), true(), why=why)


def of_no_server(dead: frozenset[str]) -> ColumnElement[bool]:
    """Runs that are recorded as started by a server that is silent, unknown or known to be `dead`."""
    alive = select(servers.c.id).where(servers.c.seen_at >= datetime.now(UTC) - DEAD)
    return and_(runs.c.status == "started", runs.c.server.not_in(alive) | runs.c.server.in_(sorted(dead)))


def _close(
    connection: Connection,
    left_by: Sequence[str],
    which: ColumnElement[bool],
    *,
    only_runs: bool = False,
    why: str = SERVER_DIED,
) -> int:
    """They are failed. That says nothing of a version, so they are not counted as its."""
    error = {"type": FailureType.SANDBOX_ERROR, "message": why}
    closed = connection.execute(
        update(runs)
        .where(runs.c.status == "started", which)
        .values(
            status="failed",
            summary=error["message"],
            output_json="null",
            error_json=msgspec.json.encode(error).decode(),
            duration_ms=0.0,
            finished_at=datetime.now(UTC),
        )
    )
    settle(connection, left_by, partial(result_of, connection), only_runs=only_runs)
    return int(closed.rowcount)
