"""`skillery backup FILE`: a consistent copy of the registry while servers are running, and the rows of every backup."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Boolean, Connection, DateTime, Table, select

from skillery import audit
from skillery.backends import Storage
from skillery.database import Database, migrate
from skillery.database.backend_values import find_value, forget_value, keep_value
from skillery.database.tables import (
    deletions,
    environment_rebuilds,
    environments,
    exports,
    locks,
    metadata,
    objects,
    runs,
    search_postings,
    search_spellings,
    search_vectors,
    search_words,
    servers,
    uploads,
    web_sessions,
)
from skillery.errors import ContentMissing, StartupError
from skillery.maintenance.backup_archives import (
    FORMAT,
    SECRET_KEY,
    ArchiveHead,
    ArchiveWriter,
)
from skillery.maintenance.rows import encode_row

ROWS_AT_ONCE = 500
_OF_MACHINES = (servers, uploads, deletions, locks, environments, environment_rebuilds)
_COMPUTED = (search_words, search_postings, search_spellings, search_vectors, exports)
LEFT_OUT = {table.name for table in (*_OF_MACHINES, *_COMPUTED, web_sessions)}
"""Tables that are not in a backup.

Some describe the machines of the running servers. Others can be computed again: search tables have another form in each
kind of database, and `exports` is a cache. Sessions of browsers that have ended must not return with a backup.
"""


TABLES = [table for table in metadata.sorted_tables if table.name not in LEFT_OUT]


class BackedUp(msgspec.Struct, frozen=True):
    """The result of a backup: the numbers of rows and contents, and their bytes."""

    revision: str
    rows: dict[str, int]
    contents: int
    bytes: int


def back_up(database: Database, storage: Storage, path: Path, release: str, secret_key: Path | None = None) -> BackedUp:
    """Write the registry to the file `path`. The file appears only when it is complete.

    Writers can continue: the database is read in one snapshot, and contents never change. Raise StartupError if the
    database is not at the revision of this release, if a content is missing, damaged or deleted during the backup, or
    if the file cannot be written.
    """
    head = head_of(database, release)
    try:
        with (
            ArchiveWriter(path, head) as archive,
            database.snapshot() as connection,
        ):
            # Contents are read first, so that a sweep has little time to delete some of them before.
            contents, size = _add_contents(connection, storage, archive)
            rows = {str(table.name): _add_table(connection, table, archive, path.parent) for table in TABLES}
            if secret_key is not None:
                archive.add_bytes(SECRET_KEY, secret_key.read_bytes())
    except OSError as error:
        raise StartupError(f"cannot write the backup {path}: {error.strerror or error}") from None
    return BackedUp(head.revision, rows, contents, size)


def head_of(database: Database, release: str) -> ArchiveHead:
    """Return the description of a new backup. Raise StartupError if the database is not at the revision of this
    release.
    """
    revision = migrate.current(database)
    if revision != migrate.head():
        raise StartupError(
            f"the database is at revision {revision or 'none'}, but this release needs {migrate.head()}: "
            "back it up with the release that serves it, or run skillery db migrate first"
        )
    return ArchiveHead(FORMAT, release, migrate.head(), datetime.now(UTC))


def _add_contents(connection: Connection, storage: Storage, archive: ArchiveWriter) -> tuple[int, int]:
    """Add the contents in the storage. Return their number and bytes. Raise StartupError if one is
    missing or damaged.
    """
    stored = select(objects.c.sha256, objects.c.size_bytes).where(objects.c.data.is_(None)).order_by(objects.c.sha256)
    count = total = 0
    for sha256, size in connection.execute(stored.execution_options(yield_per=ROWS_AT_ONCE)):
        try:
            with storage.open(sha256) as stream:
                added = archive.add(f"contents/{sha256}", stream, size)
        except (ContentMissing, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise missing_content(sha256) from None
        if added != sha256:
            raise damaged_content(sha256)
        count, total = count + 1, total + size
    return count, total


def damaged_content(sha256: str) -> StartupError:
    return StartupError(
        f"the content {sha256} is damaged in the storage; skillery check --deep lists all damaged contents"
    )


def missing_content(sha256: str) -> StartupError:
    return StartupError(
        f"the content {sha256} is not in the storage. If a sweep has deleted it just now, repeat the backup; "
        "otherwise skillery check lists what refers to it"
    )


def _add_table(connection: Connection, table: Table, archive: ArchiveWriter, folder: Path) -> int:
    """Add the rows of a table and return their number.

    The rows are first written to a temporary file, because a tar member begins with its size.
    """
    source = read_rows(connection, table)
    count = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(source.columns)
        for row in source.rows:
            file.write(source.line_of(row))
            count += 1
        size = file.tell()
        file.seek(0)
        archive.add(f"tables/{table.name}.jsonl", file, size)
    return count


LAST_BACKUP = "last backup"
"""The name of the time of the last backup in the database."""


def note_backup(connection: Connection, actor: audit.Actor, title: str, contents: int, at: datetime) -> None:
    """Record a complete backup: an audit entry, and the time for the metric."""
    forget_value(connection, LAST_BACKUP)
    keep_value(connection, LAST_BACKUP, at.isoformat().encode())
    audit.record(connection, actor, "backup", title, after={"contents": contents})


def last_backup(connection: Connection) -> datetime | None:
    """Return the time of the newest backup that the database knows of."""
    noted = find_value(connection, LAST_BACKUP)
    return None if noted is None else datetime.fromisoformat(noted.decode())


# -- the rows of a table, for both kinds of backups --------------------------------------------------------------------


class Rows(NamedTuple):
    """The rows of a table, as the driver returns them. New rows are at the end, if the key permits."""

    columns: bytes
    """The names of the columns, as a line of JSON."""
    rows: Iterator[tuple[Any, ...]]
    line_of: Callable[[tuple[Any, ...]], bytes]
    """Returns a row as a line of JSON, which is the same for both databases."""


_OF_SQLITE: dict[type, Callable[[Any], Any]] = {Boolean: bool, DateTime: datetime.fromisoformat}
"""How the types that SQLite does not have become values."""


def read_rows(connection: Connection, table: Table) -> Rows:
    columns = columns_of(table)
    order = (runs.c.started_at, runs.c.id) if table is runs else table.primary_key.columns
    # Text instead of the statement: rows that need no line are then read in a third of the time.
    statement = str(select(*columns).order_by(*order).compile(dialect=connection.dialect))
    result = connection.exec_driver_sql(statement, execution_options={"stream_results": True})
    rows = (tuple(row) for batch in result.partitions(ROWS_AT_ONCE) for row in batch)
    conversions = [
        (number, _OF_SQLITE[type(column.type)])
        for number, column in enumerate(columns)
        if type(column.type) in _OF_SQLITE and connection.dialect.name == "sqlite"
    ]
    return Rows(columns_line(column.name for column in columns), rows, partial(_line, conversions))


def columns_line(names: Iterable[str]) -> bytes:
    return msgspec.json.encode([str(name) for name in names]) + b"\n"


def _line(conversions: Sequence[tuple[int, Callable[[Any], Any]]], row: tuple[Any, ...]) -> bytes:
    values = list(row)
    for number, convert in conversions:
        if values[number] is not None:
            values[number] = convert(values[number])
    return encode_row(values)


def columns_of(table: Table) -> list[Any]:
    return [column for column in table.columns if column.computed is None]
