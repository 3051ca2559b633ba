"""Migrations: the one linear history under `migrations/`, applied to either database."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, exc, text

from skillery.database import Database
from skillery.errors import StartupError
from skillery.tables import metadata

PACKAGED = Path(__file__).parent / "_migrations"
IN_CHECKOUT = Path(__file__).parents[2] / "migrations"
# Any number will do that no other program on the same database uses for its own lock.
POSTGRES_LOCK = 0x536B696C6C657279 & 0x7FFF_FFFF_FFFF_FFFF


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(PACKAGED if PACKAGED.is_dir() else IN_CHECKOUT))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def head() -> str:
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert revision is not None
    return revision


def current(database: Database) -> str | None:
    """The revision of the database, None for an empty one. Raises StartupError where it cannot be read."""
    try:
        with database.engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except exc.DatabaseError as error:
        raise StartupError(_reason(database, error)) from None


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the database to `revision`. Servers that start at once on one Postgres take turns.

    Raises StartupError where the database is unreadable, or newer than this release.
    """
    _refuse_newer(database)
    try:
        with database.engine.begin() as connection:
            if not database.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRES_LOCK})
            command.upgrade(alembic_config(connection), revision)
    except exc.DatabaseError as error:
        raise StartupError(_reason(database, error)) from None


def downgrade(database: Database, revision: str) -> None:
    with database.engine.begin() as connection:
        command.downgrade(alembic_config(connection), revision)


def differences(database: Database) -> list[str]:
    """How the database differs from `skillery.tables`, one line each; empty where it does not."""
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [str(difference) for difference in compare_metadata(context, metadata)]


def _refuse_newer(database: Database) -> None:
    revision = current(database)
    if revision is None:
        return
    try:
        ScriptDirectory.from_config(alembic_config()).get_revision(revision)
    except CommandError:
        raise StartupError(
            f"the database {_where(database)} is at revision {revision}, which this release does not know: "
            "it was written by a newer Skillery; start that release, or restore a backup"
        ) from None


def _where(database: Database) -> str:
    return database.url.render_as_string(hide_password=True)


def _reason(database: Database, error: exc.DatabaseError) -> str:
    cause = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    if database.is_sqlite and ("not a database" in cause or "malformed" in cause):
        return f"the database {_where(database)} is damaged ({cause}); restore a backup, or move the file away"
    return f"cannot open the database {_where(database)}: {cause}"
