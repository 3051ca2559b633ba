"""Transactions: the work of one transaction, its work before the commit, and its repetition after a sweep."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, exc

from skillery.context.tracing import span
from skillery.database.drivers import errors_for_callers

T = TypeVar("T")
FOREIGN_KEY_VIOLATION = "23503"
MOST_TRIES = 5
_last_work: ContextVar[list[Callable[[Connection], object]]] = ContextVar("last_work")


class TransactionLost(Exception):
    """Raised if the database has rolled back the transaction that several writes share."""


def before_commit(work: Callable[[Connection], object]) -> None:
    """Run `work` at the end of the current transaction, before its commit. Call this in a transaction of
    `Database.write`.

    Rows that many writers lock are locked in this way: as late as possible, and by all writers in the same order.
    """
    try:
        _last_work.get().append(work)
    except LookupError:
        raise RuntimeError("before_commit is for work in a transaction of Database.write") from None


def in_transaction(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Run `work` in a transaction. Repeat it if a sweep has deleted a content after `work` found it.

    This happens only on Postgres. The transaction is rolled back, and the repeated `work` stores the content again.
    """
    for number in range(1, MOST_TRIES + 1):
        try:
            with span("database write"), errors_for_callers(), engine.begin() as connection:
                return with_last_work(connection, work)
        except (exc.IntegrityError, engine.dialect.loaded_dbapi.IntegrityError) as error:
            is_swept = getattr(getattr(error, "orig", error), "sqlstate", None) == FOREIGN_KEY_VIOLATION
            if not is_swept or number == MOST_TRIES:
                raise
    raise AssertionError("the last try returns or raises")


def in_savepoint(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Run `work` in a part of a transaction. If `work` raises an error, only this part is rolled back.

    Raise TransactionLost if the database has rolled back the whole transaction.
    """
    # The driver of SQLite, because SQLAlchemy takes longer for these statements than SQLite.
    raw: Any = connection.connection.driver_connection
    raw.execute("SAVEPOINT sharing")
    try:
        with errors_for_callers():
            result = with_last_work(connection, work)
    except BaseException:
        try:
            raw.execute("ROLLBACK TO sharing")
            raw.execute("RELEASE sharing")
        except connection.dialect.loaded_dbapi.Error:
            # SQLite has rolled back everything, the other writes too.
            raise TransactionLost from None
        raise
    raw.execute("RELEASE sharing")
    return result


def with_last_work(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Run `work` in a transaction, then what it asked for with `before_commit`."""
    last: list[Callable[[Connection], object]] = []
    token = _last_work.set(last)
    try:
        result = work(connection)
        for one in last:
            one(connection)
        return result
    finally:
        _last_work.reset(token)
