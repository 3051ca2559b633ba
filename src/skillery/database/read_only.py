"""A read-only database: triggers refuse every change of a row, by servers and by commands.

The triggers are created and removed in one transaction. So a change is either committed before the database becomes
read-only, or refused: no clock and no message between servers decides. A note in the table `registry` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, Table, delete, insert

from skillery.database.backend_values import find_value
from skillery.database.drivers import READ_ONLY
from skillery.database.engine import Database
from skillery.database.tables import metadata, registry
from skillery.database.transactions import without_blocking
from skillery.errors import StartupError

KEY = "read only"
TRIGGER = "skillery_read_only"
EVENTS = {"INSERT": "NEW", "UPDATE": "NEW", "DELETE": "OLD"}
"""The refused changes, and the row of a trigger that has the key."""


class ReadOnly(msgspec.Struct, frozen=True):
    """The note of a read-only database: its rows are being copied, or were copied, to the database `target`."""

    target: str
    """URL without the password."""
    since: datetime
    expected_seconds: int
    is_copied: bool = False
    """Whether the copy is complete."""


def find_read_only(connection: Connection) -> ReadOnly | None:
    """Return the ReadOnly note that is stored in the table `registry`: target, start and expected seconds of the copy.
    Return None if the database accepts changes.
    """
    value = find_value(connection, KEY)
    return msgspec.json.decode(value, type=ReadOnly) if value is not None else None


def put_note(connection: Connection, note: ReadOnly) -> None:
    """Store the note in the table `registry`, in place of the present note. The triggers accept this change only."""
    _drop_note(connection)
    connection.execute(insert(registry).values(key=KEY, value=msgspec.json.encode(note)))


def make_read_only(database: Database, note: ReadOnly) -> None:
    """Store `note` and create the triggers that refuse every later change. Blocking.

    When this function returns, every committed change is visible. Raise StartupError if open transactions lock the
    tables for minutes. The database then still accepts changes.
    """
    since = f"since {note.since.astimezone(UTC):%H:%M:%S} UTC, for about {note.expected_seconds} s"

    def work(connection: Connection) -> None:
        for statement in _creation(connection.dialect.name, READ_ONLY + since):
            connection.exec_driver_sql(statement)
        put_note(connection, note)

    _locked(database, "SHARE ROW EXCLUSIVE", work)


def accept_writes(database: Database) -> None:
    """Remove the note and the triggers. Do nothing if the database accepts changes. Blocking."""

    def work(connection: Connection) -> None:
        for statement in _removal(connection.dialect.name):
            connection.exec_driver_sql(statement)
        _drop_note(connection)

    _locked(database, "ACCESS EXCLUSIVE", work)


def refuse_read_only(database: Database, where: str) -> None:
    """Raise StartupError if the database is read-only. `where` is the database URL without its password, for the
    message.
    """
    note = database.read_now(find_read_only)
    if note is None:
        return
    if note.is_copied:
        remedy = (
            f'the registry was copied to {note.target}: set database = "{note.target}" (with its password and options)'
        )
        keep = f"delete {note.target}, then run skillery db copy --resume-writes --new-database-is-deleted"
    else:
        remedy = f"the registry is being copied to {note.target}: wait for the end of skillery db copy"
        keep = "run skillery db copy --resume-writes"
    raise StartupError(f"the database {where} is read-only: {remedy}. If you want to keep the present database, {keep}")


def _drop_note(connection: Connection) -> None:
    connection.execute(delete(registry).where(registry.c.key == KEY))


def _locked(database: Database, mode: str, work: Callable[[Connection], None]) -> None:
    """Run `work` in a transaction that has locked all tables in the lock mode `mode` of Postgres. Raise StartupError if
    other transactions lock them for minutes.
    """
    names = ", ".join(f'"{table.name}"' for table in metadata.sorted_tables)

    def locked(connection: Connection) -> None:
        if not database.is_sqlite:
            connection.exec_driver_sql(f"LOCK TABLE {names} IN {mode} MODE")
        work(connection)

    without_blocking(database.engine, locked)


def _creation(dialect: str, message: str) -> Iterator[str]:
    """Yield the SQL statements that create the triggers, which refuse changes with `message`. On the table `registry`,
    the triggers let the row of the note change.
    """
    yield from _removal(dialect)
    if dialect == "postgresql":
        yield (
            f"CREATE FUNCTION {TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = '25006'; END $$"
        )
        body = f"EXECUTE FUNCTION {TRIGGER}('{message}')"
    else:
        body = f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    for table in metadata.sorted_tables:
        for event, row in EVENTS.items():
            accepts = f"WHEN ({row}.key <> '{KEY}') " if table is registry else ""
            yield f"CREATE TRIGGER {_name(table, event)} BEFORE {event} ON {table.name} FOR EACH ROW {accepts}{body}"


def _removal(dialect: str) -> Iterator[str]:
    """Yield the SQL statements that remove the triggers, if they exist."""
    for table in metadata.sorted_tables:
        for event in EVENTS:
            table_clause = f" ON {table.name}" if dialect == "postgresql" else ""
            yield f"DROP TRIGGER IF EXISTS {_name(table, event)}{table_clause}"
    if dialect == "postgresql":
        yield f"DROP FUNCTION IF EXISTS {TRIGGER}()"


def _name(table: Table, event: str) -> str:
    return f"{TRIGGER}_{table.name}_{event.lower()}"
