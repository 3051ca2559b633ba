"""Leases: of all servers of a database, one at a time sends to a webhook. No transaction stays open for this.

A lease is a claim in the row of its webhook. Its holder renews it with each result. If the holder dies, the lease ends
after LEASE, or when a server with the same home starts. All times are those of the database, so that the clocks of the
servers do not matter.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, Table, func, or_, select, update

from skillery.database import in_utc
from skillery.database.tables import event_readers, webhooks

LEASE = timedelta(seconds=60)
"""Much longer than an attempt may take (`Sender`)."""


class Lease(NamedTuple):
    """The claim of one server on one row of `table`."""

    table: Table
    id: str
    holder: str


def database_now(connection: Connection) -> datetime:
    """Return the present time by the clock that all servers of the database share."""
    if connection.dialect.name == "sqlite":
        return datetime.now(UTC)
    now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return in_utc(now)


def claim(connection: Connection, table: Table, row_id: str, server: str) -> Lease | None:
    """Return a lease, or None if another holder has one or the row does not exist."""
    now = database_now(connection)
    free = or_(table.c.leased_until.is_(None), table.c.leased_until < now)
    lease = Lease(table, row_id, secrets.token_hex(16))
    taken = connection.execute(
        update(table)
        .where(table.c.id == row_id, free)
        .values(server=server, holder=lease.holder, leased_until=now + LEASE)
    )
    return lease if taken.rowcount else None


def renew(connection: Connection, lease: Lease, now: datetime, **values: object) -> bool:
    """Store values in the row and renew the lease. Return False, and store nothing, if the lease is lost."""
    table = lease.table
    held = update(table).where(table.c.id == lease.id, table.c.holder == lease.holder)
    return connection.execute(held.values(leased_until=now + LEASE, **values)).rowcount > 0


def release(connection: Connection, lease: Lease) -> None:
    table = lease.table
    held = update(table).where(table.c.id == lease.id, table.c.holder == lease.holder)
    connection.execute(held.values(server=None, holder=None, leased_until=None))


def release_own(connection: Connection, server: str) -> None:
    """Release the leases that this server held when it died."""
    for table in (webhooks, event_readers):
        connection.execute(
            update(table).where(table.c.server == server).values(server=None, holder=None, leased_until=None)
        )
