"""The one connection that writes to SQLite. It stays open, and its transactions bypass those of SQLAlchemy.

SQLAlchemy takes a connection from its pool, resets it and gives it back for each transaction, which costs as much as
the statements of a short transaction. Each call into SQLite also releases the interpreter's lock, which other threads
then take. So the number of calls counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from skillery.context.tracing import span
from skillery.database.drivers import error_for_caller, errors_for_callers
from skillery.database.transactions import with_last_work

T = TypeVar("T")


class SqliteWriter:
    """Used by one thread only, except for `close`."""

    def __init__(self, engine: Engine) -> None:
        # SQLAlchemy begins no transactions on a connection with this option: see `drivers`.
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._kept: Connection | None = None

    def in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction and return its result. If `work` raises an error, roll back."""
        with span("database write"), errors_for_callers():
            connection = self._connection()
            # Take the write lock first, so that a transaction that reads and then writes cannot fail half-way.
            self._tell(connection, "BEGIN IMMEDIATE")
            try:
                result = with_last_work(connection, work)
            except BaseException:
                self._roll_back(connection)
                raise
            self._tell(connection, "COMMIT")
            return result

    def statement(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which executes one statement that writes, and return its result.

        In SQLite, one statement outside of a transaction is a transaction.
        """
        with span("database write"), errors_for_callers():
            connection = self._connection()
            try:
                return work(connection)
            except BaseException:
                self._roll_back(connection)
                raise

    def _connection(self) -> Connection:
        if self._kept is None or self._kept.invalidated:
            self._kept = self._engine.connect()
        return self._kept

    def _tell(self, connection: Connection, command: str) -> None:
        try:
            _raw(connection).execute(command)
        except connection.dialect.loaded_dbapi.Error as error:
            self._roll_back(connection)
            raise error_for_caller(error) from error

    def _roll_back(self, connection: Connection) -> None:
        """Roll back. If that is impossible, the next write opens another connection."""
        try:
            if not connection.invalidated and _raw(connection).in_transaction:
                _raw(connection).execute("ROLLBACK")
        except connection.dialect.loaded_dbapi.Error:
            self.close()

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            with contextlib.suppress(kept.dialect.loaded_dbapi.Error):
                kept.close()


def _raw(connection: Connection) -> Any:
    return connection.connection.driver_connection
