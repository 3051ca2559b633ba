"""Statements of Postgres that are sent together: a group of statements takes one round trip.

A statement without a result waits in the transaction. It is sent before the next statement with a result, or with the
COMMIT. The order of statements stays. If a waiting statement fails, the next statement or the commit raises its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event

from skillery.database.drivers import error_for_caller

_WAITING = "skillery.waiting"


class _Waiting(NamedTuple):
    method: str
    """The method of a cursor: `execute`, or `executemany` with a list of values."""
    sql: str
    values: Any


def send_later(connection: Connection, method: str, sql: str, values: Any) -> None:
    """Send a statement with the next one of this transaction. The statement has no result."""
    raw: Any = connection.connection.driver_connection
    if raw.autocommit:
        getattr(raw.cursor(), method)(sql, values)
        return
    connection.info.setdefault(_WAITING, []).append(_Waiting(method, sql, values))


def send_now(connection: Connection, sql: str, values: Any) -> Any:
    """Send the waiting statements and this one, in one round trip. Return the cursor of this one.

    The first statement of a transaction also takes its BEGIN along.
    """
    raw: Any = connection.connection.driver_connection
    waiting = connection.info.pop(_WAITING, ())
    if not waiting and (raw.autocommit or raw.pgconn.transaction_status != TransactionStatus.IDLE):
        return raw.execute(sql, values)
    cursor = raw.cursor()
    with raw.pipeline():
        _send(raw, waiting)
        cursor.execute(sql, values)
    return cursor


def send_waiting(connection: Connection, *last: str) -> None:
    """Send the waiting statements, and the statements `last`, in one round trip. Do nothing if none waits."""
    waiting = connection.info.pop(_WAITING, ())
    if not waiting:
        return
    raw: Any = connection.connection.driver_connection
    try:
        with raw.pipeline():
            _send(raw, waiting)
            for sql in last:
                raw.cursor().execute(sql)
    except connection.dialect.loaded_dbapi.Error as error:
        raise error_for_caller(error) from error


def prepare_pipelines(engine: Engine) -> None:
    """Make the engine send waiting statements before the statements of SQLAlchemy, and with the commit."""

    @event.listens_for(engine, "before_cursor_execute")
    def _before(connection: Connection, *_: object) -> None:
        send_waiting(connection)

    @event.listens_for(engine, "commit")
    def _commit(connection: Connection) -> None:
        # After this COMMIT, that of SQLAlchemy finds no transaction, and sends nothing.
        send_waiting(connection, "COMMIT")

    @event.listens_for(engine, "rollback")
    def _rollback(connection: Connection) -> None:
        connection.info.pop(_WAITING, None)


def _send(raw: Any, waiting: Sequence[_Waiting]) -> None:
    for one in waiting:
        getattr(raw.cursor(), one.method)(one.sql, one.values)
