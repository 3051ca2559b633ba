"""Backups: write a copy of the registry, and restore a copy into an empty database and storage."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
from sqlalchemy import Connection, MetaData, Table, insert, select, update

from skillery import audit
from skillery.backends import Storage
from skillery.contents.storage_copies import forget_copies, forget_mark
from skillery.database import Database, migrate
from skillery.database.tables import (
    SEARCH_INDEX,
    audit_head,
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
    skill_files,
    skill_versions,
    skills,
    uploads,
    web_sessions,
)
from skillery.errors import ContentMissing, StartupError
from skillery.formats.paths import leads_outside
from skillery.maintenance.backup_archives import (
    FORMAT,
    SECRET_KEY,
    ArchiveHead,
    ArchiveWriter,
)
from skillery.maintenance.rows import INLINE, decode_row, encode_row, rows_are_valid
from skillery.runs.ended_runs import close_all
from skillery.skills.search_index import index_latest

# -- skillery backup: a consistent copy of the registry while servers are running --------------------------------------


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
    count = -1
    with tempfile.TemporaryFile(dir=folder) as file:
        for line in table_lines(connection, table):
            file.write(line)
            count += 1
        size = file.tell()
        file.seek(0)
        archive.add(f"tables/{table.name}.jsonl", file, size)
    return count


def table_lines(connection: Connection, table: Table) -> Iterator[bytes]:
    """Yield the names of the columns, then each row, as lines of JSON. New rows are at the end, if the key permits."""
    columns = columns_of(table)
    yield msgspec.json.encode([str(column.name) for column in columns]) + b"\n"
    order = (runs.c.started_at, runs.c.id) if table is runs else table.primary_key.columns
    for row in connection.execute(select(*columns).order_by(*order).execution_options(yield_per=ROWS_AT_ONCE)):
        yield encode_row(tuple(row))


def columns_of(table: Table) -> list[Any]:
    return [column for column in table.columns if column.computed is None]


# -- skillery restore: a backup into an empty database and storage -----------------------------------------------------


ROWS_AT_ONCE = 200
_SHA256 = re.compile(r"[0-9a-f]{64}")
ONE_ROW = audit_head.name
"""A table with a single row, which its migration creates and which cannot be deleted. A restore updates this row."""


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore."""

    revision: str
    """The revision of the backup. The restored database has the revision of this release."""
    rows: dict[str, int]
    contents: int
    secret_key: bool


class Source(Protocol):
    """A backup that can be restored."""

    title: str
    storage: Storage | None
    """The storage that has the contents already, if there is one."""

    def verify(self) -> ArchiveHead:
        """Verify the backup, and return its description. Raise StartupError if it is damaged."""
        ...

    def tables(self) -> Iterator[tuple[str, BinaryIO]]:
        """Yield the name of each table, and its lines."""
        ...

    def restore_contents(self, storage: Storage) -> int:
        """Write the contents of the storage, and return their number. Raise StartupError if one is damaged."""
        ...

    def inline(self, digests: Sequence[str]) -> Sequence[bytes]:
        """Return the contents that belong to rows with the value INLINE."""
        ...

    def secret_key(self) -> bytes | None: ...


def restore(database: Database, storage: Storage, source: Source, secret_key: Path, actor: audit.Actor) -> Restored:
    """Restore a backup. If the backup contains the key of the secrets, write it to the file `secret_key`.

    The backup is verified before anything is written. Contents are stored first, while no row refers to them.
    Then one transaction creates the tables, adds all rows, removes the state of the old servers, and adds an audit
    entry. So the database is either empty or complete.

    Raise StartupError if the database is not empty, or if the backup is damaged or of a newer release. If `secret_key`
    exists with another key, restore everything else, and then raise StartupError.
    """
    head = source.verify()
    if head.revision not in migrate.revisions():
        raise StartupError(
            f"the backup {source.title} was made by release {head.release}, whose tables (revision {head.revision}) "
            "this one does not know: restore it with that release or a newer one"
        )
    _check_empty(database)
    contents, key = source.restore_contents(storage), source.secret_key()
    rows: dict[str, int] = {}

    def load(connection: Connection) -> None:
        for table in _tables(connection):
            if table.name != ONE_ROW:
                # The backup also has the rows that a migration adds.
                connection.execute(table.delete())
        by_name = {table.name: table for table in _tables(connection)}
        for name, stream in source.tables():
            with rows_are_valid(source.title, name):
                rows[name] = _load_table(connection, by_name.get(name), name, stream, source)
        if not database.is_sqlite:
            migrate.advance_sequences(connection, by_name.values())

    def settle(connection: Connection) -> None:
        _settle(connection)
        counts = {"rows": sum(rows.values()), "contents": contents}
        restored = {"release": head.release, "revision": head.revision, **counts}
        audit.record_at_once(connection, actor, "restore", source.title, after=restored)

    migrate.create(database, head.revision, load, settle)
    if key is not None:
        _write_key(secret_key, key)
    return Restored(head.revision, rows, contents, key is not None)


def _check_empty(database: Database) -> None:
    if migrate.current(database) is not None:
        raise StartupError(
            f"the database {database.url.render_as_string()} is not empty, and a backup is never restored over "
            "another registry: choose an empty database, or move this one away"
        )


def _tables(connection: Connection) -> list[Table]:
    """Return the tables of the database, each before the tables that its foreign keys refer to.

    The tables are read from the database, because it may have an older revision than `skillery.database.tables`.
    """
    data = MetaData()
    # The tables of the search index are left out: triggers fill them.
    data.reflect(connection, only=lambda name, _: name != "alembic_version" and not name.startswith(SEARCH_INDEX))
    return list(reversed(data.sorted_tables))


def _load_table(connection: Connection, table: Table | None, name: str, stream: BinaryIO, source: Source) -> int:
    """Add the rows of a member to its table, and return their number. `table` is None if the revision has no such
    table.
    """
    lines = iter(stream)
    columns = msgspec.json.decode(next(lines, b""), type=list[str])
    if table is None or not set(columns) <= set(table.columns.keys()):
        raise StartupError(f"the table '{name}' of the backup does not belong to its revision; nothing was restored")
    adding = update(table).where(table.c.id == 1) if name == ONE_ROW else insert(table)
    count = 0
    for batch in _batches(lines):
        values: list[dict[str, Any]] = [dict(zip(columns, decode_row(line), strict=True)) for line in batch]
        inline = [row for row in values if row.get("data") == INLINE]
        for row, data in zip(inline, source.inline([row["sha256"] for row in inline]), strict=True):
            row["data"] = data
        for row in values:
            _check_row(name, row)
        connection.execute(adding, values)
        count += len(values)
    return count


def _check_row(table: str, row: dict[str, Any]) -> None:
    """Raise ValueError if a content does not have its digest, or if a row refers to a file outside of its version."""
    if table == objects.name and not _SHA256.fullmatch(row["sha256"]):
        raise ValueError("not a digest")
    inline = row["data"] if table == objects.name else None
    if inline is not None and (hashlib.sha256(inline).hexdigest(), len(inline)) != (row["sha256"], row["size_bytes"]):
        raise ValueError("another content")
    if table == skill_versions.name and not _SHA256.fullmatch(row["digest"].removeprefix("sha256:")):
        raise ValueError("not a digest")
    if table == skill_files.name and leads_outside(row["path"]):
        raise ValueError("not a path")


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(lines, ROWS_AT_ONCE)):
        yield batch


def _settle(connection: Connection) -> None:
    """Prepare the restored rows for new servers: close the runs of the old servers, delete the storage mark, and fill
    the search tables, which are not in a backup.
    """
    close_all(connection, "the registry was restored from a backup that was made while this ran")
    forget_mark(connection)
    forget_copies(connection)
    for skill_id, latest in connection.execute(select(skills.c.id, skills.c.latest_version_id)).all():
        index_latest(connection, skill_id, latest)


def _write_key(path: Path, key: bytes) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
    except FileExistsError:
        if path.read_bytes() != key:
            raise StartupError(
                f"everything is restored except the key of secrets: {path} exists already and is a different key; "
                "append the key of the backup to it (tar -xO secrets.key), or move it away"
            ) from None
