"""What an upgrade of the database would do: its statements, and the tables that they lock."""

from __future__ import annotations

import re
import tempfile
from contextlib import closing
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, event, exc, inspect

from skillery.database.engine import Database
from skillery.database.migrate import failure_of, revisions, run_migrations, title_of, turn

SCRATCH = "skillery_dry_run"
"""The schema of Postgres with empty tables in which a dry run executes the migrations."""
CHANGES = ("ALTER", "CREATE", "DELETE", "DROP", "INSERT", "UPDATE")
_LOCKS = (
    "SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation "
    "WHERE l.pid = pg_backend_pid() AND c.relnamespace = %s::text::regnamespace AND c.relkind = 'r' "
    "AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'AccessExclusiveLock')"
)


class PlannedStatement(msgspec.Struct, frozen=True):
    """A statement of an upgrade, and the tables that it locks, with the mode of Postgres. The locks last until the end
    of the step. ACCESS EXCLUSIVE stops reads and writes of the table, the other modes stop writes.
    """

    sql: str
    locks: dict[str, str]


class PlannedStep(msgspec.Struct, frozen=True):
    """A step of an upgrade."""

    revision: str
    title: str
    statements: list[PlannedStatement]


def plan(database: Database, present: str | None) -> list[PlannedStep]:
    """Return the steps of an upgrade from the revision `present`, without changing or locking a table of the database.

    On Postgres, the steps are executed in the schema SCRATCH with empty tables, which is dropped at the end; the user
    needs the right CREATE on the database. Raise StartupError without this right.
    """
    if database.is_sqlite:
        with tempfile.TemporaryDirectory() as folder, closing(Database(f"sqlite:///{folder}/plan.db")) as scratch:
            return _planned(scratch.engine, present)
    try:
        with turn(database), closing(Database(database.url.render_as_string(hide_password=False))) as scratch:
            event.listen(scratch.engine, "begin", _enter_scratch)
            try:
                with scratch.engine.begin() as connection:
                    connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {SCRATCH} CASCADE")
                    connection.exec_driver_sql(f"CREATE SCHEMA {SCRATCH}")
                return _planned(scratch.engine, present)
            finally:
                with scratch.engine.begin() as connection:
                    connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {SCRATCH} CASCADE")
    except exc.DatabaseError as error:
        raise failure_of(database, error) from None


def _enter_scratch(connection: Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL search_path TO {SCRATCH}")


def _planned(engine: Engine, present: str | None) -> list[PlannedStep]:
    if present is not None:
        with engine.begin() as connection:
            run_migrations(connection, present)
    with engine.connect() as connection:
        tables = {*inspect(connection).get_table_names()}
    steps = []
    for revision in revisions():
        if present is None or revision > present:
            with engine.begin() as connection:
                steps.append(PlannedStep(revision, title_of(revision), _statements(connection, revision, tables)))
    return steps


def _statements(connection: Connection, revision: str, tables: set[str]) -> list[PlannedStatement]:
    """Return the statements of a step after their execution, and their locks on `tables`."""
    statements: list[PlannedStatement] = []
    locked: dict[str, str] = {}

    def note(_: Connection, cursor: Any, sql: str, *_others: object) -> None:
        if not sql.lstrip().upper().startswith(CHANGES) or "alembic_version" in sql:
            return
        locks = {}
        if connection.dialect.name == "postgresql":
            with cursor.connection.cursor() as own_cursor:
                for table, mode in own_cursor.execute(_LOCKS, [SCRATCH]).fetchall():
                    if table in tables and locked.get(table) != "AccessExclusiveLock" and locked.get(table) != mode:
                        locked[table] = mode
                        locks[table] = re.sub(r"(?<=.)([A-Z])", r" \1", mode.removesuffix("Lock")).upper()
        statements.append(PlannedStatement(sql.strip(), locks))

    event.listen(connection, "after_cursor_execute", note)
    run_migrations(connection, revision)
    return statements
