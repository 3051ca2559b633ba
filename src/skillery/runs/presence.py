"""Which servers are there: each says so every few seconds, and others close the runs of one that fell silent.

A server that was only cut off, and comes back, records the outcome of its runs after all: that stands.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.runs.recording import SERVER_DIED, close_started
from skillery.tables import runs, servers

BEAT_SECONDS = 10.0
SILENT_SECONDS = 60.0
"""Without a word for so long a server counts as gone."""

_insert = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(servers).values(id=bindparam("server"), seen_at=func.now())
    for dialect in (sqlite, postgresql)
}
_SEEN = {
    name: adding.on_conflict_do_update(index_elements=["id"], set_={"seen_at": func.now()})
    for name, adding in _insert.items()
}


def beat(connection: Connection, server: str) -> int:
    """`server` is there. The number of runs that were closed, of servers that are not."""
    connection.execute(_SEEN[connection.dialect.name], {"server": server})
    silent = servers.c.seen_at < _now(connection) - timedelta(seconds=SILENT_SECONDS)
    connection.execute(delete(servers).where(silent))
    return close_started(connection, SERVER_DIED, runs.c.server.not_in(select(servers.c.id)))


def leave(connection: Connection, server: str) -> None:
    """`server` ends in good order: it has left nothing open."""
    connection.execute(delete(servers).where(servers.c.id == server))


def of_no_server(connection: Connection, *, dead: frozenset[str]) -> ColumnElement[bool]:
    """Runs that are recorded as started by a server that is silent, unknown or known to be `dead`."""
    alive = select(servers.c.id).where(servers.c.seen_at >= _now(connection) - timedelta(seconds=SILENT_SECONDS))
    return and_(runs.c.status == "started", runs.c.server.not_in(alive) | runs.c.server.in_(sorted(dead)))


def _now(connection: Connection) -> datetime:
    """The database's clock: those of several machines differ."""
    now = connection.scalar(select(func.now()))
    assert isinstance(now, datetime)
    return now if now.tzinfo else now.replace(tzinfo=UTC)
