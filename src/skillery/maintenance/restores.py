"""`skillery restore`: a backup into an empty database and storage."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
from sqlalchemy import Connection, MetaData, Table, insert, select, update

from skillery import audit
from skillery.backends import Storage
from skillery.contents.storage_copies import forget_copies, forget_mark
from skillery.database import Database, migrate
from skillery.database.tables import SEARCH_INDEX, audit_head, objects, skill_files, skill_versions, skills
from skillery.errors import StartupError
from skillery.formats.paths import leads_outside
from skillery.maintenance.backup_archives import ArchiveHead
from skillery.maintenance.rows import INLINE, decode_row, rows_are_valid
from skillery.runs.ended_runs import close_all
from skillery.skills.search_index import index_latest

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
