"""Leases: of all servers of a database, one at a time works on a row. No transaction stays open for this.

A lease is a claim in the row, in its columns `server`, `holder` and `leased_until`. Its holder renews it with each
result. If the holder dies, the lease ends after LEASE, or when a server with the same home starts. All times are those
of the database, so that the clocks of the servers do not matter.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, Update, func, or_, select, update

from skillery.database.statements import in_utc

LEASE = timedelta(seconds=60)
"""The time after which a lease ends if its holder does not renew it. A step of the work takes much less time."""
_ENDED = {"server": None, "holder": None, "leased_until": None}


class Lease(NamedTuple):
    """The claim of one server on the row `id` of `table`. `holder` is a random text."""

    table: Table
    id: Any
    holder: str


def database_now(connection: Connection) -> datetime:
    """Return the present time in UTC, by a clock that all servers of the database share."""
    if connection.dialect.name == "sqlite":
        return datetime.now(UTC)
    now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return in_utc(now)


def is_free(table: Table, now: Any) -> ColumnElement[bool]:
    """Return the condition for rows that no server works on. `now` is a time, or a parameter of a statement."""
    return or_(table.c.leased_until.is_(None), table.c.leased_until < now)


def claim(
    connection: Connection, table: Table, row_id: Any, server: str, *where: ColumnElement[bool], **values: object
) -> Lease | None:
    """Store `values` in a row and return a lease on it, or None if another holder has one, or there is no such row."""
    now = database_now(connection)
    lease = Lease(table, row_id, secrets.token_hex(16))
    free_row = update(table).where(table.c.id == row_id, is_free(table, now), *where)
    claimed = {"server": server, "holder": lease.holder, "leased_until": now + LEASE}
    return lease if connection.execute(free_row.values(claimed | values)).rowcount else None


def renew(connection: Connection, lease: Lease, **values: object) -> bool:
    """Store `values` in the row and renew the lease. If the lease is lost, store nothing and return False."""
    return connection.execute(_held(lease).values(leased_until=database_now(connection) + LEASE, **values)).rowcount > 0


def release(connection: Connection, lease: Lease, **values: object) -> None:
    """Store `values` in the row and end the lease, if it is not lost."""
    connection.execute(_held(lease).values(_ENDED | values))


def _held(lease: Lease) -> Update:
    return update(lease.table).where(lease.table.c.id == lease.id, lease.table.c.holder == lease.holder)


def release_own(connection: Connection, tables: Iterable[Table], server: str) -> None:
    """End the leases on rows of these tables that an earlier process of this server has left."""
    for table in tables:
        connection.execute(update(table).where(table.c.server == server).values(_ENDED))
