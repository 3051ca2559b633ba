"""The database engine, and the two ways to use it: `read` and `write`.

The core is synchronous: its functions take a `Connection`, and the caller owns the transaction. This module decides on
which thread a function runs, because the two databases differ:

- SQLite answers a read in 0.1 ms, which is less than the cost of a thread switch. So reads run on the calling thread,
  on one open connection. SQLite has one writer at a time, so writes queue for one thread and do not wait for a lock
  with a timeout. Each write begins with `BEGIN IMMEDIATE`, so that no write fails in the middle because it cannot get
  the lock.
- Postgres is reached over the network. Reads and writes run in threads, with one connection each.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast, overload

from sqlalchemy import CompoundSelect, Connection, Engine, Insert, Select, Update, create_engine, event, exc, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import QueuePool

from skillery.context.tracing import span
from skillery.errors import StartupError, StorageFull, Unavailable

log = logging.getLogger(__name__)
T = TypeVar("T")
POSTGRES_CONNECTIONS = 16
BUSY_TIMEOUT_SECONDS = 30
_last_work: ContextVar[list[Callable[[Connection], object]]] = ContextVar("last_work")
FOREIGN_KEY_VIOLATION = "23503"
MOST_TRIES = 5
DIALECTS = ("sqlite", "postgresql")
MOST_SHARING = 16


class Statement:
    """A statement that is compiled only once, for the reads that must be fast.

    It bypasses the execution layer of SQLAlchemy, which makes a listing 1.5 times as fast (measured). The SQL is still
    written and checked with SQLAlchemy Core.
    """

    def __init__(self, statement: Select[Any] | CompoundSelect[Any]) -> None:
        self._statement = statement
        self._compiled: dict[str, tuple[str, dict[str, Any]]] = {}

    def rows(self, connection: Connection, **parameters: Any) -> list[Any]:
        dialect = connection.dialect
        if dialect.name not in self._compiled:
            compiled = self._statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
            constants = {name: value for name, value in compiled.params.items() if value is not None}
            self._compiled[dialect.name] = str(compiled), constants
        sql, constants = self._compiled[dialect.name]
        raw: Any = connection.connection.driver_connection
        try:
            return list(raw.execute(sql, constants | parameters).fetchall())
        except dialect.loaded_dbapi.Error as error:
            raise _meaning(error) from error


class Change:
    """An insert or update that is compiled only once, for the writes of every run and of every published version.

    `columns` are the columns that the statement sets. A call passes values for these columns and for the parameters in
    the conditions of the statement. The statement runs in the transaction of the connection.
    """

    def __init__(self, statement: Insert | Update | Mapping[str, Insert | Update], columns: Sequence[str] = ()) -> None:
        """`statement` is one statement for both databases, or a mapping with one statement for each dialect."""
        self._statements = statement if isinstance(statement, Mapping) else dict.fromkeys(DIALECTS, statement)
        self._columns = columns
        self._compiled: dict[str, tuple[str, dict[str, Any]]] = {}

    def run(self, connection: Connection, **parameters: Any) -> int:
        """Run the statement. Return the number of changed rows."""
        return int(self._execute(connection, "execute", self._values(connection, parameters)).rowcount)

    def run_many(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run the statement once for each row of parameters."""
        if rows:
            self._execute(connection, "executemany", [self._values(connection, row) for row in rows])

    def returned(self, connection: Connection, **parameters: Any) -> Any:
        """Run a statement with RETURNING, and return its row."""
        return self._execute(connection, "execute", self._values(connection, parameters)).fetchone()

    def _values(self, connection: Connection, parameters: Mapping[str, Any]) -> dict[str, Any]:
        constants = self._sql(connection)[1]
        if connection.dialect.name == "sqlite":
            return constants | {name: _stored(value) for name, value in parameters.items()}
        return constants | dict(parameters)

    def _execute(self, connection: Connection, method: str, values: Any) -> Any:
        raw: Any = connection.connection.driver_connection
        try:
            return getattr(raw.cursor(), method)(self._sql(connection)[0], values)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _meaning(error) from error

    def _sql(self, connection: Connection) -> tuple[str, dict[str, Any]]:
        dialect = connection.dialect
        if dialect.name not in self._compiled:
            compiled = self._statements[dialect.name].compile(dialect=dialect, column_keys=list(self._columns))
            constants = {name: value for name, value in compiled.params.items() if value is not None}
            self._compiled[dialect.name] = str(compiled), constants
        return self._compiled[dialect.name]


def _stored(value: Any) -> Any:
    """Return a time in the text form that SQLAlchemy writes to SQLite, and other values unchanged. All times are in
    UTC.
    """
    return value.replace(tzinfo=None).isoformat(" ", "microseconds") if isinstance(value, datetime) else value


class _Lost(Exception):
    """Raised if the database has rolled back the transaction that several writes share."""


class _Sharing(NamedTuple):
    """A write that waits to be committed together with others."""

    work: Callable[[Connection], Any]
    context: Context
    done: Future[Any]

    def settle(self, outcome: Callable[[], Any]) -> None:
        try:
            self.done.set_result(outcome())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self.done.set_exception(error)


def _raise(error: BaseException) -> None:
    raise error


class Database:
    """An open database. The owner must call `close`."""

    def __init__(self, url: str, server: str = "") -> None:
        """`server` is the id of the server that opens the database, or "" for a command.

        Rows of unfinished work contain this id, so that the server can complete them after a crash.
        """
        self.url = parse_database_url(url)
        self.server = server
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite_engine(self.url) if self.is_sqlite else _postgres_engine(self.url)
        self._reads = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._threads = ThreadPoolExecutor(1 if self.is_sqlite else POSTGRES_CONNECTIONS, "database")
        self._reader: Connection | None = None
        self._reading = threading.Lock()
        self._alone = threading.Lock()
        self._sharing: deque[_Sharing] = deque()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, which reads from a connection. `work` must be short; for longer work, use
        `read_now`.

        Raise Unavailable if the database cannot be reached.
        """
        if not self.is_sqlite:
            return await self._in_thread(self.read_now, work)
        with span("database read"), _speaking(), self._reading:
            if self._reader is None:
                self._reader = self._reads.connect()
            return work(self._reader)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction and return its result. If `work` raises an error, the transaction is rolled back.

        Raise Unavailable if the database cannot be reached, and StorageFull if the disk is full.
        """
        return await self._in_thread(self._in_transaction, work)

    async def write_together(self, work: Callable[[Connection], T]) -> T:
        """Run `work` like `write`, for many similar writes at the same time.

        On SQLite, the waiting writes share one transaction, and so one sync of the disk. Each call returns when all of
        them are committed. If one write raises an error, only this write is rolled back.
        """
        if not self.is_sqlite:
            return await self.write(work)
        sharing = _Sharing(work, copy_context(), Future())
        self._sharing.append(sharing)
        self._threads.submit(self._commit_shared)
        return cast(T, await asyncio.wrap_future(sharing.done))

    def _commit_shared(self) -> None:
        """Commit the waiting writes together. Do nothing if another call has committed them."""
        waiting = [self._sharing.popleft() for _ in range(min(len(self._sharing), MOST_SHARING))]
        group = [one for one in waiting if one.done.set_running_or_notify_cancel()]
        try:
            outcomes = self._in_one_transaction(group) if len(group) > 1 else None
        except Exception as error:  # noqa: BLE001 - whose it was is found out by trying each alone
            log.info("a shared transaction failed: %s", type(error).__name__)
            outcomes = None
        for place, one in enumerate(group):
            one.settle(outcomes[place] if outcomes is not None else self._outcome(self._in_transaction, one))

    def _in_one_transaction(self, group: Sequence[_Sharing]) -> list[Callable[[], Any]]:
        with span("database write"), _speaking(), self.engine.begin() as connection:
            return [self._outcome(partial(self._in_savepoint, connection), one) for one in group]

    def _outcome(self, way: Callable[[Callable[[Connection], Any]], Any], one: _Sharing) -> Callable[[], Any]:
        """Run the write of `one` with `way`. Return a function that returns its result or raises its error."""
        try:
            result = one.context.run(way, one.work)
        except _Lost:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            return partial(_raise, error)
        return lambda: result

    def _in_savepoint(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        last: list[Callable[[Connection], object]] = []
        token = _last_work.set(last)
        connection.exec_driver_sql("SAVEPOINT sharing")
        try:
            with _speaking():
                result = work(connection)
                for one in last:
                    one(connection)
        except BaseException:
            try:
                connection.exec_driver_sql("ROLLBACK TO sharing")
                connection.exec_driver_sql("RELEASE sharing")
            except exc.SQLAlchemyError:
                # SQLite has rolled back everything, the other writes too.
                raise _Lost from None
            raise
        finally:
            _last_work.reset(token)
        connection.exec_driver_sql("RELEASE sharing")
        return result

    async def _in_thread(self, way: Callable[[Callable[[Connection], T]], T], work: Callable[[Connection], T]) -> T:
        # `work` runs in a copy of the context, so that the current request is known there.
        context = copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, way, work)

    def read_now(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work` like `read`, on a separate connection. `work` may take long. Blocking: for
        worker threads.
        """
        with span("database read"), _speaking(), self._reads.connect() as connection:
            return work(connection)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Context manager that yields a connection on one state of the database, while writers continue. Blocking."""
        if not self.is_sqlite:
            frozen = self.engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with _speaking(), frozen.connect() as connection:
                yield connection
            return
        with _speaking(), self._reads.connect() as connection:
            connection.exec_driver_sql("BEGIN")  # deferred: it takes no lock that a writer wants
            try:
                yield connection
            finally:
                connection.exec_driver_sql("ROLLBACK")

    def write_now(self, work: Callable[[Connection], T]) -> T:
        """Run `work` like `write`, but blocking. Do not call this on the event loop."""
        if self.is_sqlite:
            return self._threads.submit(copy_context().run, self._in_transaction, work).result()
        return self._in_transaction(work)

    def _in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction. Repeat it if a sweep has deleted a content after `work` found it.

        This happens only on Postgres. The transaction is rolled back, and the repeated `work` stores the content again.
        """
        for number in range(1, MOST_TRIES + 1):
            try:
                return self._try(work)
            except (exc.IntegrityError, self.engine.dialect.loaded_dbapi.IntegrityError) as error:
                is_swept = getattr(getattr(error, "orig", error), "sqlstate", None) == FOREIGN_KEY_VIOLATION
                if not is_swept or number == MOST_TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    def _try(self, work: Callable[[Connection], T]) -> T:
        last: list[Callable[[Connection], object]] = []
        token = _last_work.set(last)
        try:
            with span("database write"), _speaking(), self.engine.begin() as connection:
                result = work(connection)
                for one in last:
                    one(connection)
                return result
        finally:
            _last_work.reset(token)

    @contextmanager
    def alone(self, task: str) -> Iterator[bool]:
        """Context manager that locks a task, for example a sweep. Yield whether this server got the lock. Blocking.

        Only one server of a database can have the lock; on SQLite, the lock is within this process. It is released at
        the end of the block, or by the database if the process dies.
        """
        if self.is_sqlite:
            is_alone = self._alone.acquire(blocking=False)
            try:
                yield is_alone
            finally:
                if is_alone:
                    self._alone.release()
            return
        with _speaking(), self._reads.connect() as connection:
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
        return pool.checkedout(), pool.checkedin()

    def ping(self) -> None:
        """Raise Unavailable if the database does not answer. Blocking."""
        self.read_now(lambda connection: connection.exec_driver_sql("SELECT 1"))

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        if self._reader is not None:
            self._reader.close()
        self.engine.dispose()


def before_commit(work: Callable[[Connection], object]) -> None:
    """Run `work` at the end of the current transaction, before its commit. Call this in a transaction of
    `Database.write`.

    Rows that many writers lock are locked in this way: as late as possible, and by all writers in the same order.
    """
    try:
        _last_work.get().append(work)
    except LookupError:
        raise RuntimeError("before_commit is for work in a transaction of Database.write") from None


def take_turns(connection: Connection, kind: str, name: str) -> None:
    """Lock the pair of `kind` and `name` until the transaction ends. Wait while another transaction has this lock.

    SQLite needs no lock, because it has one writer at a time.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_TAKE_TURNS, {"key": _lock_key(kind, name)})


_TAKE_TURNS = text("SELECT pg_advisory_xact_lock(:key)")


def _lock_key(kind: str, name: str) -> int:
    digest = hashlib.blake2b(f"{kind} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@overload
def in_utc(moment: None) -> None: ...
@overload
def in_utc(moment: datetime | str) -> datetime: ...
@overload
def in_utc(moment: datetime | str | None) -> datetime | None: ...
def in_utc(moment: datetime | str | None) -> datetime | None:
    """Return a time from the database in UTC, or None for None.

    SQLite returns times without a zone, and as text if SQLAlchemy is bypassed. Postgres returns times in the zone of
    its session.
    """
    if moment is None:
        return None
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def as_stored(connection: Connection, moment: datetime) -> datetime | str:
    """Return a time as a parameter for a Statement. On SQLite, this is the text form of stored times."""
    return str(_stored(moment)) if connection.dialect.name == "sqlite" else moment


def parse_database_url(text: str) -> URL:
    """Return the URL. Raise StartupError if the text is not a URL of a SQLite file or of Postgres."""
    try:
        url = make_url(text)
    except exc.ArgumentError:
        raise StartupError(
            "setting 'database' is not a database URL; write sqlite:////path/to/file or postgresql://user@host/name"
        ) from None
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database and url.database != ":memory:":
        return url.set(drivername="sqlite")
    if backend in {"postgresql", "postgres"}:
        return url.set(drivername="postgresql+psycopg")
    raise StartupError(
        f"setting 'database' is {url.render_as_string()!r}; Skillery keeps its registry in a SQLite file "
        "(sqlite:////path/to/file) or in Postgres (postgresql://user@host/name)"
    )


def _sqlite_engine(url: URL) -> Engine:
    # "named", so that a compiled Statement takes its parameters by name, as on Postgres.
    engine = create_engine(
        url, paramstyle="named", connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        # SQLAlchemy, not the driver, begins transactions: see _begin.
        connection.isolation_level = None
        cursor = connection.cursor()
        # FULL: committed writes survive a power cut, not only a crash of this process.
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "temp_store = MEMORY",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            # Take the write lock first, so that a transaction that reads and then writes cannot fail half-way.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgres_engine(url: URL) -> Engine:
    return create_engine(
        url,
        pool_size=POSTGRES_CONNECTIONS,
        max_overflow=4,
        pool_pre_ping=True,
        connect_args={"connect_timeout": 10, "application_name": "skillery"},
    )


@contextmanager
def _speaking() -> Iterator[None]:
    """Context manager that converts errors of the database to errors for callers."""
    try:
        yield
    except exc.IntegrityError:
        raise
    except exc.SQLAlchemyError as error:
        raise _meaning(error) from error


FULL = ("disk is full", "disk full", "no space left", "disk i/o error")
DAMAGED = ("malformed", "not a database", "invalid page", "could not read block")
# Classes of SQLSTATE (Postgres, appendix A): connection, resources, operator's intervention, transaction rolled back.
PASSING = ("08", "53", "57", "40")


def _meaning(error: Exception) -> Exception:
    """Return the error for a caller, or the error itself if it is caused by a bug of the server."""
    cause = getattr(error, "orig", None) or error
    text = str(cause).lower()
    if any(words in text for words in FULL):
        return StorageFull()
    if any(words in text for words in DAMAGED):
        return Unavailable("the server's database is damaged", hint="An admin has to restore a backup.")
    is_passing = str(getattr(cause, "sqlstate", None) or "").startswith(PASSING)
    if (
        is_passing
        or isinstance(error, exc.TimeoutError)
        or type(cause).__name__ in {"OperationalError", "InterfaceError"}
    ):
        log.warning("the database does not work: %s", text.strip())
        # If the connection breaks during a COMMIT, the server cannot know whether the transaction was committed.
        hint = "Try again in a moment. What was being changed is not, unless only its acknowledgement was lost."
        return Unavailable("the database cannot be reached now", hint=hint)
    return error
