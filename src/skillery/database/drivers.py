"""The drivers of SQLite and Postgres: the URL of the database, the options of connections, and errors for callers."""

from __future__ import annotations

import logging
import math
import sqlite3
import time

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from skillery.errors import StartupError, StorageFull, Unavailable

log = logging.getLogger(__name__)
POSTGRES_CONNECTIONS = 16
TESTED_AFTER_SECONDS = 1.0
"""A connection to Postgres that was idle for longer is tested before its next use."""
BUSY_TIMEOUT_SECONDS = 30
CONNECT = {"connect_timeout": 10, "application_name": "skillery"}
_USED_AT = "skillery.used_at"


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


def without_password(text: str) -> str:
    """Return the database URL without its password and its query, which may contain one. Raise StartupError if the text
    is not a database URL.
    """
    return parse_database_url(text).set(query={}).render_as_string(hide_password=True)


def sqlite_engine(url: URL) -> Engine:
    """Return an engine for SQLite: WAL, one BEGIN IMMEDIATE for each transaction, foreign keys enforced."""
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
            # Overwrite deleted rows where this writes no further page: purge_version promises that they are gone.
            "secure_delete = FAST",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            # Take the write lock first, so that a transaction that reads and then writes cannot fail half-way.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def postgres_engine(url: URL) -> Engine:
    """Return an engine with a pool. A connection that was idle for TESTED_AFTER_SECONDS is tested before its use."""
    engine = create_engine(url, pool_size=POSTGRES_CONNECTIONS, max_overflow=4, connect_args=CONNECT)

    @event.listens_for(engine, "checkin")
    def _note(_: object, record: ConnectionPoolEntry) -> None:
        record.info[_USED_AT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _test(connection: DBAPIConnection, record: ConnectionPoolEntry, _: object) -> None:
        # A test before each use would be a round trip for each transaction.
        if time.monotonic() - record.info.get(_USED_AT, math.inf) > TESTED_AFTER_SECONDS:
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error:
                raise exc.DisconnectionError from None  # the pool opens another connection

    return engine


class ErrorsForCallers:
    """Context manager that converts errors of the database, except integrity errors, to errors for callers."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, exc.IntegrityError):
            if (refusal := _read_only(error)) is not None:
                raise refusal from error
        elif isinstance(error, exc.SQLAlchemyError):
            raise error_for_caller(error) from error


READ_ONLY = "this registry is read-only "
"""The start of the message of the triggers that make a database read-only: skillery.database.read_only."""
FULL = ("disk is full", "disk full", "no space left", "disk i/o error")
DAMAGED = ("malformed", "not a database", "invalid page", "could not read block")
# Classes of SQLSTATE (Postgres, appendix A): connection, resources, operator's intervention, transaction rolled back.
PASSING = ("08", "53", "57", "40")


def error_for_caller(error: Exception) -> Exception:
    """Return the SkilleryError that describes an error of the database. Return the error itself if a bug of the server
    has caused it.
    """
    if (refusal := _read_only(error)) is not None:
        return refusal
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
        hint = "Try again in a few seconds. The change was not made, unless only its confirmation was lost."
        return Unavailable("the database cannot be reached now", hint=hint)
    return error


def _read_only(error: Exception) -> Unavailable | None:
    """Return Unavailable with the note's text if the database is read-only, or None for another error."""
    message = str(getattr(error, "orig", None) or error).split("\n")[0]
    if not message.startswith(READ_ONLY):
        return None
    return Unavailable(
        f"{message}: an admin moves it to another database",
        hint="Nothing was changed. Reads continue. Try again when the server uses the new database.",
    )
