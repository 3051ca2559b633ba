"""Migrations: the linear history under `migrations/`, for both databases.

The tables of a release also serve the previous release, so that servers of both share a database during an upgrade:
docs/operate/upgrades.md. Importing Alembic takes a quarter of a second, so a server with an up-to-date database does
not import Alembic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Table, delete, exc, func, insert, inspect, select, text

from skillery.database.engine import Database
from skillery.database.tables import SEARCH_INDEX, metadata, registry
from skillery.database.transactions import without_blocking
from skillery.errors import Busy, DatabaseUnreachable, StartupError

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)
PACKAGED = Path(__file__).parents[1] / "_migrations"
IN_CHECKOUT = Path(__file__).parents[3] / "migrations"
# The number is arbitrary. No other program should use it for a lock on the same database.
PREVIOUS = "0048"
"""The newest revision of the previous release, whose servers may use a database of this release."""
OLDEST = "oldest revision"
"""The name of the value of the registry with the oldest revision whose release may use the database."""
REBUILD, REBUILD_AGAIN = "rebuild", "rebuild again"
"""The names of the values of the registry that ask for the rows that are derived from versions, now and after an
upgrade: servers of the previous release write such rows without the new columns.
"""
POSTGRES_LOCK = 0x536B696C6C657279 & 0x7FFF_FFFF_FFFF_FFFF


def _folder() -> Path:
    return PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT


def alembic_config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_folder()))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def revisions() -> list[str]:
    """Return every revision that this release knows, oldest first. The names of the migration files begin with them."""
    return sorted(path.name.partition("_")[0] for path in (_folder() / "versions").glob("[0-9]*.py"))


def head() -> str:
    """Return the newest revision that this release knows."""
    return revisions()[-1]


def current(database: Database) -> str | None:
    """Return the revision of the database, or None if it was never migrated. Raise StartupError if it cannot be
    read.
    """
    try:
        with database.engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
            return revision
    except exc.DatabaseError as error:
        raise failure_of(database, error) from None


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate the database to `revision`, in a transaction for each step. Servers of one Postgres that start at the
    same time wait for each other.

    A database that a newer release has migrated stays as it is. Raise StartupError if that release does not share it
    with this one, or the database cannot be read.
    """
    target = head() if revision == "head" else revision
    present = current(database)
    if present == target:
        return None
    if present is not None and present not in revisions():
        return _share(database, present)
    try:
        with turn(database):
            present = current(database)
            if present is None:
                with database.engine.begin() as connection:
                    _migrate(connection, target)
            else:
                for step in revisions():
                    if present < step <= target:
                        _take_step(database, step)
    except exc.DatabaseError as error:
        raise failure_of(database, error) from None


def _take_step(database: Database, step: str) -> None:
    """Migrate the database to the next revision. Servers that use the database continue to work."""
    log.info("migrating the database to %s: %s", step, title_of(step))
    began = time.monotonic()

    def work(connection: Connection) -> None:
        _migrate(connection, step)
        if not database.is_sqlite and _has_value(connection, REBUILD) and not _has_value(connection, REBUILD_AGAIN):
            connection.execute(insert(registry).values(key=REBUILD_AGAIN, value=b""))

    without_blocking(database.engine, work)
    log.info("the database is at %s after %.1f s", step, time.monotonic() - began)


def run_migrations(connection: Connection, target: str) -> None:
    from alembic import command

    command.upgrade(alembic_config(connection), target)


def _migrate(connection: Connection, target: str) -> None:
    run_migrations(connection, target)
    # The first revisions had no table for values.
    if target > PREVIOUS:
        connection.execute(delete(registry).where(registry.c.key == OLDEST))
        connection.execute(insert(registry).values(key=OLDEST, value=PREVIOUS.encode()))


def _has_value(connection: Connection, name: str) -> bool:
    is_there = inspect(connection).has_table("registry")
    return is_there and connection.scalar(select(registry.c.key).where(registry.c.key == name)) is not None


def title_of(revision: str) -> str:
    """Return the first line of the migration to `revision`, which says what it changes."""
    [path] = (_folder() / "versions").glob(f"{revision}_*.py")
    return path.read_text("utf-8").partition("\n")[0].strip('"')


# -- A database of a newer release -------------------------------------------------------------------------------------


def _share(database: Database, present: str) -> None:
    """Raise StartupError unless the newer release that has migrated the database shares it with this release."""
    with database.engine.connect() as connection:
        oldest = connection.scalar(select(registry.c.value).where(registry.c.key == OLDEST))
    if oldest is None or head() < bytes(oldest).decode() or present < head():
        raise StartupError(
            f"the database {_where(database)} is at revision {present}, which this release does not know: "
            "it was written by a newer Skillery; start that release, or restore a backup"
        )
    log.warning(
        "the database is at revision %s of the next release: this server of revision %s serves it, but deletes no "
        "contents; finish the upgrade of all servers",
        present,
        head(),
    )


def is_newer(connection: Connection) -> bool:
    """Return whether a newer release has migrated the database. This release then does not know all tables."""
    revision: str = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    return revision > head()


def refuse_newer(connection: Connection) -> None:
    """Raise Busy if a newer release has migrated the database, because its tables may refer to contents."""
    if is_newer(connection):
        raise Busy(
            "the servers are being upgraded, and only a server of the newer release deletes contents",
            hint="Try again when all servers have the newer release.",
            retry_after_ms=60_000,
        )


def create(
    database: Database, revision: str, fill: Callable[[Connection], None], then: Callable[[Connection], None]
) -> None:
    """Fill an empty database in one transaction: create the tables of `revision`, call `fill`, migrate to the newest
    revision, call `then`.

    Raise StartupError if the database is not empty, or cannot be reached.
    """
    try:
        with turn(database), database.engine.begin() as connection:
            if inspect(connection).get_table_names():
                raise StartupError(f"the database {_where(database)} is not empty")
            run_migrations(connection, revision)
            fill(connection)
            _migrate(connection, head())
            then(connection)
    except exc.DatabaseError as error:
        raise failure_of(database, error) from None


def advance_sequences(connection: Connection, tables: Iterable[Table]) -> None:
    """Set each id counter of Postgres to the highest id of its table."""
    for table in tables:
        keys = list(table.primary_key.columns)
        if len(keys) != 1 or not keys[0].autoincrement:
            continue
        sequence = connection.scalar(
            text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": table.name, "column": keys[0].name}
        )
        # Postgres has no max() of bytes, and keys of bytes have no counter.
        highest = connection.scalar(select(func.max(keys[0]))) if sequence else None
        if highest is not None:
            connection.execute(text("SELECT setval(:sequence, :highest)"), {"sequence": sequence, "highest": highest})


@contextmanager
def turn(database: Database) -> Iterator[None]:
    """Context manager: wait until no other server migrates this Postgres. A dead server gives up its turn."""
    if database.is_sqlite:
        yield
        return
    with database.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": POSTGRES_LOCK})
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": POSTGRES_LOCK})


def downgrade(database: Database, revision: str) -> None:
    from alembic import command

    with database.engine.begin() as connection:
        command.downgrade(alembic_config(connection), revision)


def differences(database: Database) -> list[str]:
    """Return the differences between the database and `skillery.database.tables`, one line for each."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with database.engine.connect() as connection:
        opts = {"compare_type": True, "include_name": is_in_tables}
        context = MigrationContext.configure(connection, opts=opts)
        return [str(difference) for difference in compare_metadata(context, metadata)]


def is_in_tables(name: str | None, _kind: str = "", _parents: object = None) -> bool:
    """Return whether `skillery.database.tables` describes the table or index `name`: everything except the search
    index.
    """
    return not (name or "").startswith(SEARCH_INDEX)


def _where(database: Database) -> str:
    """Return the name of the database for messages."""
    return database.url.render_as_string(hide_password=True)


# Postgres refuses these logins as often as they are repeated. Errors of a login have no SQLSTATE.
_REFUSED_LOGINS = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist", "certificate")


def failure_of(database: Database, error: exc.DatabaseError) -> StartupError:
    """Return the error for a database that cannot be used: DatabaseUnreachable if a repetition may help."""
    cause = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    if database.is_sqlite and ("not a database" in cause or "malformed" in cause):
        return StartupError(
            f"the database {_where(database)} is damaged ({cause}); restore a backup, or move the file away"
        )
    is_passing = (
        not database.is_sqlite
        and isinstance(error, exc.OperationalError)
        and not any(words in str(error.orig) for words in _REFUSED_LOGINS)
    )
    kind = DatabaseUnreachable if is_passing else StartupError
    return kind(f"cannot open the database {_where(database)}: {cause}")
