"""`skillery backup`: writes a consistent copy of the registry while servers are running."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from sqlalchemy import Connection, Table, select

from skillery.backends import Storage
from skillery.database import Database, migrate
from skillery.database.tables import (
    deletions,
    environment_rebuilds,
    environments,
    exports,
    locks,
    metadata,
    objects,
    search_postings,
    search_spellings,
    search_vectors,
    search_words,
    servers,
    uploads,
    web_sessions,
)
from skillery.errors import ContentMissing, StartupError
from skillery.maintenance.backups.archive import FORMAT, SECRET_KEY, ArchiveHead, ArchiveWriter, encode_row

ROWS_AT_ONCE = 200
_OF_MACHINES = (servers, uploads, deletions, locks, environments, environment_rebuilds)
_COMPUTED = (search_words, search_postings, search_spellings, search_vectors, exports)
LEFT_OUT = {table.name for table in (*_OF_MACHINES, *_COMPUTED, web_sessions)}
"""Tables that are not in a backup.

Some describe the machines of the running servers. Others can be computed again: search tables have another form in each
kind of database, and `exports` is a cache. Sessions of browsers that have ended must not return with a backup.
"""


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
    revision = migrate.current(database)
    if revision != migrate.head():
        raise StartupError(
            f"the database is at revision {revision or 'none'}, but this release needs {migrate.head()}: "
            "back it up with the release that serves it, or run skillery db upgrade first"
        )
    try:
        with (
            ArchiveWriter(path, ArchiveHead(FORMAT, release, revision, datetime.now(UTC))) as archive,
            database.snapshot() as connection,
        ):
            # Contents are read first, so that a sweep has little time to delete some of them before.
            contents, size = _add_contents(connection, storage, archive)
            tables = [table for table in metadata.sorted_tables if table.name not in LEFT_OUT]
            rows = {str(table.name): _add_table(connection, table, archive, path.parent) for table in tables}
            if secret_key is not None:
                archive.add_bytes(SECRET_KEY, secret_key.read_bytes())
    except OSError as error:
        raise StartupError(f"cannot write the backup {path}: {error.strerror or error}") from None
    return BackedUp(revision, rows, contents, size)


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
            raise _missing(sha256) from None
        if added != sha256:
            raise StartupError(
                f"the content {sha256} is damaged in the storage; skillery check --deep lists all damaged contents"
            )
        count, total = count + 1, total + size
    return count, total


def _missing(sha256: str) -> StartupError:
    return StartupError(
        f"the content {sha256} is not in the storage. If a sweep has deleted it just now, repeat the backup; "
        "otherwise skillery check lists what refers to it"
    )


def _add_table(connection: Connection, table: Table, archive: ArchiveWriter, folder: Path) -> int:
    """Add the rows of a table and return their number.

    The rows are first written to a temporary file, because a tar member begins with its size.
    """
    columns = [column for column in table.columns if column.computed is None]
    rows = select(*columns).order_by(*table.primary_key.columns).execution_options(yield_per=ROWS_AT_ONCE)
    count = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(msgspec.json.encode([str(column.name) for column in columns]) + b"\n")
        for row in connection.execute(rows):
            file.write(encode_row(tuple(row)))
            count += 1
        size = file.tell()
        file.seek(0)
        archive.add(f"tables/{table.name}.jsonl", file, size)
    return count
