"""Transactions: run one, run tasks before its commit, and repeat it if another one was in its way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Connection, Engine, exc

from skillery.context.request import span
from skillery.context.threads import Workers, settle
from skillery.database.drivers import ErrorsForCallers, error_for_caller
from skillery.errors import StartupError, Unavailable

T = TypeVar("T")
log = logging.getLogger(__name__)
FOREIGN_KEY_VIOLATION, UNIQUE_VIOLATION, DEADLOCK, LOCK_NOT_AVAILABLE = "23503", "23505", "40P01", "55P03"
MOST_TRIES = 5
# Below the second after which Postgres looks for deadlocks: a transaction that locks tables gives way to servers.
LOCK_MS = 500
PATIENT_MS = 5_000
LOCK_TRIES = 60
LOCK_PAUSE_SECONDS = 0.05
_last_work: ContextVar[list[Callable[[Connection], object]]] = ContextVar("last_work")


class TransactionLost(Exception):
    """Raised if SQLite has rolled back the whole transaction that several writes share."""


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
    """Return the result of `work`, run in a transaction. Repeat it if another transaction was in its way.

    Transactions run at the same time only on Postgres. The other one may be a sweep that has deleted a content: the
    repeated `work` stores it again. Or it has inserted a row with the same key, which the repeated `work` sees. A
    deadlock is a bug that callers need not notice. After MOST_TRIES, raise the error.
    """
    for number in range(1, MOST_TRIES + 1):
        try:
            with span("database write"), ErrorsForCallers(), engine.begin() as connection:
                return with_last_work(connection, work)
        except (exc.IntegrityError, engine.dialect.loaded_dbapi.IntegrityError, Unavailable) as error:
            state = _sqlstate(error) or _sqlstate(error.__cause__)
            if state not in {FOREIGN_KEY_VIOLATION, UNIQUE_VIOLATION, DEADLOCK} or number == MOST_TRIES:
                raise
            if state == DEADLOCK:
                log.warning("a transaction is repeated, because it had a deadlock with another one")
    raise AssertionError("the last try returns or raises")


def without_blocking(engine: Engine, work: Callable[[Connection], None]) -> None:
    """Run `work`, which locks tables, in a transaction. On Postgres, repeat it if it waits long for a lock, because
    all later transactions on the table wait behind it.

    Raise StartupError if other transactions lock the tables during all LOCK_TRIES.
    """
    for number in range(LOCK_TRIES):
        try:
            with engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    patience = LOCK_MS if number < LOCK_TRIES // 2 else PATIENT_MS
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {patience}")
                return work(connection)
        except exc.SQLAlchemyError as error:
            if _sqlstate(error) not in {LOCK_NOT_AVAILABLE, DEADLOCK}:
                raise error_for_caller(error) from error
            time.sleep(LOCK_PAUSE_SECONDS)
    raise StartupError(
        "a transaction of another program locks a table of the database: pg_stat_activity shows it; end it, then retry"
    )


def _sqlstate(error: BaseException | None) -> str | None:
    return getattr(getattr(error, "orig", error), "sqlstate", None)


def in_savepoint(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Return the result of `work`, run in a savepoint of a SQLite transaction. If `work` raises an error, roll back
    only the savepoint.

    Raise TransactionLost if SQLite has rolled back the whole transaction.
    """
    # The driver of SQLite, because SQLAlchemy takes longer for these statements than SQLite.
    raw: Any = connection.connection.driver_connection
    raw.execute("SAVEPOINT sharing")
    try:
        with ErrorsForCallers():
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
    """Return the result of `work`. Before that, run the tasks that `work` has registered with `before_commit`.

    The caller owns the transaction of the connection, and commits it.
    """
    last_tasks: list[Callable[[Connection], object]] = []
    token = _last_work.set(last_tasks)
    try:
        result = work(connection)
        for task in last_tasks:
            task(connection)
        return result
    finally:
        _last_work.reset(token)


# -- The one connection that writes to SQLite. It stays open, and its transactions bypass those of SQLAlchemy ----------
# SQLAlchemy takes a connection from its pool, resets it and gives it back for each transaction, which costs as much as
# the statements of a short transaction. Each call into SQLite also releases the interpreter's lock, which other threads
# then take. So the number of calls counts.


class SqliteWriter:
    """The connection that writes to SQLite. Only one thread may call the methods, except `close`."""

    def __init__(self, engine: Engine) -> None:
        # SQLAlchemy begins no transactions on a connection with this option: see `drivers`.
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._kept: Connection | None = None

    def in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction and return its result. If `work` raises an error, roll back."""
        with span("database write"), ErrorsForCallers():
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
        with span("database write"), ErrorsForCallers():
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
        """Execute BEGIN or COMMIT. If it fails, roll back and raise the error for callers."""
        try:
            _raw(connection).execute(command)
        except connection.dialect.loaded_dbapi.Error as error:
            self._roll_back(connection)
            raise error_for_caller(error) from error

    def _roll_back(self, connection: Connection) -> None:
        """Roll back. If that fails, close the connection: the next write opens another one."""
        try:
            if not connection.invalidated and _raw(connection).in_transaction:
                _raw(connection).execute("ROLLBACK")
        except connection.dialect.loaded_dbapi.Error:
            self.close()

    def close(self) -> None:
        connection, self._kept = self._kept, None
        if connection is not None:
            with contextlib.suppress(connection.dialect.loaded_dbapi.Error):
                connection.close()


def _raw(connection: Connection) -> Any:
    return connection.connection.driver_connection


# -- Writes that wait at the same time and share one transaction of SQLite, and so one sync of the disk ----------------


MOST_SHARING = 16


class _Sharing(NamedTuple):
    """A write that waits to be committed together with others."""

    work: Callable[[Connection], Any]
    context: Context
    done: Future[Any]


class SharedCommits:
    """The queue of writes that share transactions of SQLite. `writer` has the one thread that writes."""

    def __init__(self, engine: Engine, writer: Workers) -> None:
        self._engine = engine
        self._writer = writer
        self._waiting: deque[_Sharing] = deque()

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction that other waiting writes share. Return its result after the commit."""
        sharing = _Sharing(work, copy_context(), Future())
        self._waiting.append(sharing)
        self._writer.submit(self._commit)
        return cast(T, await asyncio.wrap_future(sharing.done))

    def _commit(self) -> None:
        """Commit at most MOST_SHARING waiting writes in one transaction, or each in its own if the shared transaction
        fails. Do nothing if an earlier call has committed them.
        """
        waiting = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_SHARING))]
        group = [write for write in waiting if write.done.set_running_or_notify_cancel()]
        try:
            outcomes = self._in_one_transaction(group) if len(group) > 1 else None
        except Exception as error:  # noqa: BLE001 - whose it was is found out by trying each alone
            log.info("a shared transaction failed: %s", type(error).__name__)
            outcomes = None
        for position, write in enumerate(group):
            alone = partial(in_transaction, self._engine)
            settle(write.done, outcomes[position] if outcomes is not None else _outcome(alone, write))

    def _in_one_transaction(self, group: Sequence[_Sharing]) -> list[Callable[[], Any]]:
        with span("database write"), ErrorsForCallers(), self._engine.begin() as connection:
            return [_outcome(partial(in_savepoint, connection), write) for write in group]


def _outcome(run_in_transaction: Callable[[Callable[[Connection], Any]], Any], write: _Sharing) -> Callable[[], Any]:
    """Run the write with `run_in_transaction`. Return a function that returns the result of the write or raises its
    error. Raise TransactionLost if the transaction is lost.
    """
    try:
        result = write.context.run(run_in_transaction, write.work)
    except TransactionLost:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        return partial(_raise, error)
    return lambda: result


def _raise(error: BaseException) -> None:
    raise error
