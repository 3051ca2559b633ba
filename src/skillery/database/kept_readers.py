"""Connections of Postgres that stay open for reads: one for each thread of a small pool.

A connection from the pool of SQLAlchemy is tested, configured and reset for each use, which takes longer than most
reads. A kept connection commits automatically, so a read of one statement is one round trip.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from sqlalchemy import Connection, Engine

from skillery.context.threads import Workers
from skillery.context.tracing import span
from skillery.database.drivers import errors_for_callers

T = TypeVar("T")
READERS = 6
"""The number of connections. More connections did not make reads faster (measured with 8 callers on 2 processors)."""


class KeptReaders:
    """Runs reads in threads with open connections. A thread opens its connection with its first read."""

    def __init__(self, engine: Engine) -> None:
        """`engine` opens connections that commit automatically, and keeps no pool."""
        self._engine = engine
        self._threads = Workers("database-read", READERS)
        self._own = threading.local()
        self._open: set[Connection] = set()
        self._busy = 0

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`. Raise Unavailable if the database cannot be reached."""
        return await self._threads.run(copy_context().run, self._read, work)

    def connections(self) -> tuple[int, int]:
        """Return the number of connections in use, and the number of idle connections."""
        return self._busy, max(0, len(self._open) - self._busy)

    def close(self) -> None:
        self._threads.close()
        for connection in list(self._open):
            self._drop(connection)
        self._engine.dispose()

    def _read(self, work: Callable[[Connection], T]) -> T:
        with span("database read"), errors_for_callers():
            self._busy += 1
            try:
                return self._read_twice(work)
            finally:
                self._busy -= 1

    def _read_twice(self, work: Callable[[Connection], T]) -> T:
        """Run `work`. Repeat it on a new connection if the database has closed the kept one, for example because the
        database was restarted.
        """
        kept = getattr(self._own, "connection", None)
        if kept is None:
            return self._on(self._connect(), work)
        try:
            return self._on(kept, work)
        except Exception:
            if kept in self._open:
                raise
        return self._on(self._connect(), work)

    def _on(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        try:
            return work(connection)
        finally:
            if _is_lost(connection):
                self._own.connection = None
                self._drop(connection)
            elif connection.in_transaction():
                # SQLAlchemy has begun a transaction that the database does not know.
                connection.rollback()

    def _connect(self) -> Connection:
        connection: Connection = self._engine.connect()
        self._open.add(connection)
        self._own.connection = connection
        return connection

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()


def _is_lost(connection: Connection) -> bool:
    if connection.closed or connection.invalidated:
        return True
    raw = connection.connection.driver_connection
    return raw is None or bool(raw.closed)
