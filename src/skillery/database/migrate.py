"""Migrations: the linear history under `migrations/`, for both databases.

Importing Alembic takes a quarter of a second, so a server with an up-to-date database does not import Alembic.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, exc, inspect, text

from skillery.database import Database
from skillery.database.tables import SEARCH_INDEX, metadata
from skillery.errors import StartupError

if TYPE_CHECKING:
    from alembic.config import Config

PACKAGED = Path(__file__).parents[1] / "_migrations"
IN_CHECKOUT = Path(__file__).parents[3] / "migrations"
# The number is arbitrary. No other program should use it for a lock on the same database.
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
        raise StartupError(_reason(database, error)) from None


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate the database to `revision`. Servers of one Postgres that start at the same time wait for each other.

    Raise StartupError if the database cannot be read, or is newer than this release.
    """
    present = current(database)
    if present is not None and present not in revisions():
        raise StartupError(
            f"the database {_where(database)} is at revision {present}, which this release does not know: "
            "it was written by a newer Skillery; start that release, or restore a backup"
        )
    if revision == "head" and present == head():
        return
    from alembic import command

    try:
        with database.engine.begin() as connection:
            _take_turns(database, connection)
            command.upgrade(alembic_config(connection), revision)
    except exc.DatabaseError as error:
        raise StartupError(_reason(database, error)) from None


def create(
    database: Database, revision: str, fill: Callable[[Connection], None], then: Callable[[Connection], None]
) -> None:
    """Fill an empty database in one transaction: create the tables of `revision`, call `fill`, migrate to the newest
    revision, call `then`.

    Raise StartupError if the database is not empty, or cannot be reached.
    """
    from alembic import command

    try:
        with database.engine.begin() as connection:
            _take_turns(database, connection)
            if inspect(connection).get_table_names():
                raise StartupError(f"the database {_where(database)} is not empty")
            command.upgrade(alembic_config(connection), revision)
            fill(connection)
            if revision != head():
                command.upgrade(alembic_config(connection), "head")
            then(connection)
    except exc.DatabaseError as error:
        raise StartupError(_reason(database, error)) from None


def _take_turns(database: Database, connection: Connection) -> None:
    if not database.is_sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRES_LOCK})


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


def _reason(database: Database, error: exc.DatabaseError) -> str:
    cause = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    if database.is_sqlite and ("not a database" in cause or "malformed" in cause):
        return f"the database {_where(database)} is damaged ({cause}); restore a backup, or move the file away"
    return f"cannot open the database {_where(database)}: {cause}"
