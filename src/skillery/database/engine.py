"""The database engine, and the two ways to use it: `read` and `write`.

The core is synchronous: its functions take a `Connection`, and the caller owns the transaction. This module decides on
which thread a function runs, because the two databases differ:

- SQLite answers a read in 0.1 ms, which is less than the cost of a thread switch. So reads run on the calling thread,
  on one open connection. SQLite has one writer at a time, so writes queue for one thread and do not wait for a lock
  with a timeout. Each write begins with `BEGIN IMMEDIATE`, so that no write fails in the middle because it cannot get
  the lock.
- Postgres is reached over the network. Writes run in threads, with a connection from a pool. Reads run on the event
  loop, with connections that stay open, and do not block it (`kept_readers`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.pool import QueuePool

from skillery.context.request import span
from skillery.context.threads import Workers
from skillery.database.drivers import (
    BUSY_TIMEOUT_SECONDS,
    POSTGRES_CONNECTIONS,
    ErrorsForCallers,
    parse_database_url,
    postgres_engine,
    sqlite_engine,
)
from skillery.database.statements import prepare_pipelines, send_later
from skillery.database.transactions import SharedCommits, SqliteWriter, in_transaction

if TYPE_CHECKING:
    from skillery.database.kept_readers import KeptReaders

T = TypeVar("T")


class Database:
    """An open database. The owner must call `close`."""

    def __init__(self, url: str, server: str = "") -> None:
        """`server` is the id of the server that opens the database, or "" for a command.

        Rows of unfinished work contain this id, so that the server can complete them after a crash.
        """
        self.url = parse_database_url(url)
        self.server = server
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = sqlite_engine(self.url) if self.is_sqlite else postgres_engine(self.url)
        self._reads = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._threads = Workers("database", 1 if self.is_sqlite else POSTGRES_CONNECTIONS)
        self._kept: KeptReaders | None = None
        if not self.is_sqlite:
            # Imported late: the driver of Postgres takes 10 MiB of memory.
            from skillery.database.kept_readers import KeptReaders

            self._kept = KeptReaders(self.url)
            prepare_pipelines(self.engine)
        self._reader: Connection | None = None
        self._reading = threading.Lock()
        self._alone = threading.Lock()
        self._writer = SqliteWriter(self.engine) if self.is_sqlite else None
        self._shared = SharedCommits(self.engine, self._threads)
        self._log_is_dirty = False

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, which reads from a connection. `work` must be short; for longer work, use
        `read_now`.

        Raise Unavailable if the database cannot be reached.
        """
        if self._kept is not None:
            return await self._kept.read(work)
        with span("database read"), ErrorsForCallers(), self._reading:
            if self._reader is None:
                self._reader = self._reads.connect()
            return work(self._reader)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction and return its result. If `work` raises an error, the transaction is rolled back.

        Raise Unavailable if the database cannot be reached, and StorageFull if the disk is full.
        """
        return await self._in_thread(self._in_transaction, work)

    async def write_statement(self, work: Callable[[Connection], T]) -> T:
        """Run `work` like `write`. `work` executes exactly one statement that writes, and calls no `before_commit`.

        On SQLite, such a write needs a third of the driver calls that a transaction needs.
        """
        statement = self._writer.statement if self._writer is not None else self._in_transaction
        return await self._in_thread(statement, work)

    async def write_together(self, work: Callable[[Connection], T]) -> T:
        """Run `work` like `write`, for many similar writes at the same time.

        On SQLite, the waiting writes share one transaction, and so one sync of the disk. Each call returns when all of
        them are committed. If one write raises an error, only this write is rolled back.
        """
        if not self.is_sqlite:
            return await self.write(work)
        return await self._shared.write(work)

    async def _in_thread(self, method: Callable[[Callable[[Connection], T]], T], work: Callable[[Connection], T]) -> T:
        # `work` runs in a copy of the context, so that the current request is known there.
        return await self._threads.run(copy_context().run, method, work)

    def read_now(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work` like `read`, on a separate connection. `work` may take long. Blocking: for
        worker threads.
        """
        with span("database read"), ErrorsForCallers(), self._reads.connect() as connection:
            return work(connection)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Context manager that yields a connection on one state of the database, while writers continue. Blocking."""
        if not self.is_sqlite:
            frozen = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with ErrorsForCallers(), frozen.connect() as connection:
                yield connection
            return
        with ErrorsForCallers(), self._reads.connect() as connection:
            connection.exec_driver_sql("BEGIN")  # deferred: it takes no lock that a writer wants
            try:
                yield connection
            finally:
                connection.exec_driver_sql("ROLLBACK")

    def write_now(self, work: Callable[[Connection], T]) -> T:
        """Run `work` like `write`, but blocking. Do not call this on the event loop."""
        if self.is_sqlite:
            result: T = self._threads.run_now(copy_context().run, self._in_transaction, work)
            return result
        return self._in_transaction(work)

    def erase_now(self, work: Callable[[Connection], T]) -> T:
        """Run `work` like `write_now`. SQLite overwrites what `work` deletes. Call `empty_log` afterwards. Blocking.

        After a usual write, deleted pages stay readable in the files of SQLite until it uses them again. On Postgres,
        deleted rows stay until VACUUM.
        """
        if not self.is_sqlite:
            return self._in_transaction(work)
        result: T = self._threads.run_now(copy_context().run, self._in_erasing_transaction, work)
        return result

    def _in_erasing_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of SQLite that overwrites each deleted row with zeros. The write-ahead log still
        has the rows.
        """

        def erasing(connection: Connection) -> T:
            connection.exec_driver_sql("PRAGMA secure_delete = ON")
            try:
                return work(connection)
            finally:
                connection.exec_driver_sql("PRAGMA secure_delete = FAST")

        result = self._in_transaction(erasing)
        self._log_is_dirty = True
        return result

    def empty_log(self) -> None:
        """Empty the write-ahead log of SQLite, if it may contain erased pages. Blocking.

        If a reader needs the log, the log keeps these pages until the next call after the end of the reader.
        """
        if self._log_is_dirty:
            self._threads.run_now(self._empty_log)

    def _empty_log(self) -> None:
        with ErrorsForCallers(), self._reads.connect() as connection:
            # No waiting for readers, because all writers would wait too.
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            try:
                is_busy, *_ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_SECONDS * 1000}")
        self._log_is_dirty = bool(is_busy)

    def _in_transaction(self, work: Callable[[Connection], T]) -> T:
        return self._writer.in_transaction(work) if self._writer is not None else in_transaction(self.engine, work)

    @contextmanager
    def alone(self, task: str) -> Iterator[bool]:
        """Context manager that locks a task, for example a sweep, for this server. Yield True if it got the lock, else
        False. Blocking.

        Only one server of a database can have the lock. The lock is released at the end of the block, or by the
        database if the process dies. On SQLite, the lock covers this process only, and all tasks share one lock.
        """
        if self.is_sqlite:
            is_alone = self._alone.acquire(blocking=False)
            try:
                yield is_alone
            finally:
                if is_alone:
                    self._alone.release()
            return
        with ErrorsForCallers(), self._reads.connect() as connection:
            key = {"key": _lock_key("task", task)}
            is_alone = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key))
            try:
                yield is_alone
            finally:
                if is_alone:
                    connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)

    def connections(self) -> tuple[int, int]:
        """Return the number of connections in use, and the number of idle open connections."""
        pool = self.engine.pool
        assert isinstance(pool, QueuePool)
        busy, idle = (0, 0) if self._kept is None else self._kept.connections()
        return pool.checkedout() + busy, pool.checkedin() + idle

    def ping(self) -> None:
        """Raise Unavailable if the database does not answer. Blocking."""
        self.read_now(lambda connection: connection.exec_driver_sql("SELECT 1"))

    def close(self) -> None:
        self._threads.close()
        if self._kept is not None:
            self._kept.close()
        if self._reader is not None:
            self._reader.close()
        if self._writer is not None:
            self._writer.close()
        self.engine.dispose()


def take_turns(connection: Connection, kind: str, name: str, *, shared: bool = False) -> None:
    """Lock the pair of `kind` and `name` until the transaction ends. The next statement of the transaction waits while
    another transaction has this lock.

    Several transactions can have a `shared` lock at the same time. SQLite needs no lock, because it has one writer at a
    time.
    """
    if connection.dialect.name == "postgresql":
        send_later(connection, "execute", _TAKE_TURNS[shared], {"key": _lock_key(kind, name)})


_TAKE_TURNS = {
    False: "SELECT pg_advisory_xact_lock(%(key)s)",
    True: "SELECT pg_advisory_xact_lock_shared(%(key)s)",
}


def _lock_key(kind: str, name: str) -> int:
    digest = hashlib.blake2b(f"{kind} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
