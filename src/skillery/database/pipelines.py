"""Statements of Postgres that are sent together: a group of statements takes one round trip.

A statement without a result waits in the transaction. It is sent before the next statement with a result, or with the
COMMIT. The order of statements stays. If a waiting statement fails, the next statement or the commit raises its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event

from skillery.database.drivers import error_for_caller

_WAITING = "skillery.waiting"
"""Key of a connection's waiting statements. Only a connection in a transaction has this key."""


class _Waiting(NamedTuple):
    method: str
    """The method of a cursor: `execute`, or `executemany` with a list of values."""
    sql: str
    values: Any


_BEGIN = _Waiting("execute", "BEGIN ISOLATION LEVEL READ COMMITTED", None)
_COMMIT = _Waiting("execute", "COMMIT", None)


def send_later(connection: Connection, method: str, sql: str, values: Any) -> None:
    """Send a statement with the next one of this transaction. The statement has no result.

    Outside of a transaction, it is sent at once.
    """
    waiting = connection.info.get(_WAITING)
    if waiting is None:
        getattr(_raw(connection).cursor(), method)(sql, values)
    else:
        waiting.append(_Waiting(method, sql, values))


def send_now(connection: Connection, sql: str, values: Any) -> Any:
    """Send the waiting statements and this one, in one round trip. Return the cursor of this one."""
    raw = _raw(connection)
    waiting = _taken(connection)
    if not waiting:
        return raw.execute(sql, values)
    cursor = raw.cursor()
    with raw.pipeline():
        _send(raw, waiting)
        cursor.execute(sql, values)
    return cursor


def prepare_pipelines(engine: Engine) -> None:
    """Make the transactions of the engine send statements together.

    The BEGIN waits for the first statement, and the last statements wait for the COMMIT. For the driver, the connection
    commits automatically: otherwise the driver would send its own BEGIN alone.
    """

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if "isolation_level" not in connection.get_execution_options():
            _raw(connection).autocommit = True
            connection.info[_WAITING] = [_BEGIN]

    @event.listens_for(engine, "before_cursor_execute")
    def _before(connection: Connection, *_: object) -> None:
        if waiting := _taken(connection):
            _flush(connection, waiting)

    @event.listens_for(engine, "commit")
    def _commit(connection: Connection) -> None:
        # After this COMMIT, that of SQLAlchemy finds no transaction, and sends nothing.
        waiting = connection.info.pop(_WAITING, None)
        is_empty = waiting == [_BEGIN]
        if waiting and not is_empty:
            _flush(connection, [*waiting, _COMMIT])

    @event.listens_for(engine, "rollback")
    def _rollback(connection: Connection) -> None:
        if not connection.invalidated:  # a lost connection has no statements, and SQLAlchemy would raise an error
            connection.info.pop(_WAITING, None)


def _taken(connection: Connection) -> list[_Waiting]:
    """Return the waiting statements. From now on, others can wait."""
    waiting = connection.info.get(_WAITING)
    if not waiting:
        return []
    connection.info[_WAITING] = []
    return list(waiting)


def _flush(connection: Connection, waiting: Sequence[_Waiting]) -> None:
    raw = _raw(connection)
    try:
        with raw.pipeline():
            _send(raw, waiting)
    except connection.dialect.loaded_dbapi.Error as error:
        raise error_for_caller(error) from error


def _raw(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _send(raw: Any, waiting: Sequence[_Waiting]) -> None:
    for one in waiting:
        getattr(raw.cursor(), one.method)(one.sql, one.values)
