"""Incremental backups: they store only new contents, and the parts of tables that have changed rows.

Parts of a table end at certain rows, and not after a number of rows. So a new or changed row changes one part. Each
backup reads all rows, and encodes only the parts whose rows differ from those that the last backup has read.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from skillery.backends import Storage
from skillery.backends.storage import NO_MARKS
from skillery.contents.mirrors import DamagedContent, copy_content
from skillery.database import Database
from skillery.database.backend_values import find_value, keep_value
from skillery.database.tables import objects
from skillery.errors import ContentMissing, StartupError
from skillery.maintenance.backup_stores import (
    GRACE,
    YOUNG,
    BackupStore,
    Document,
    StoredSource,
    StoredTable,
    at_once,
)
from skillery.maintenance.backups import (
    ROWS_AT_ONCE,
    TABLES,
    Rows,
    columns_line,
    damaged_content,
    head_of,
    missing_content,
    read_rows,
)
from skillery.maintenance.rows import INLINE, encode_row
from skillery.settings.groups import Backups

SHORTEST_PART, LONGEST_PART = 256 * 1024, 4 * 1024 * 1024
LAST_ROW = 0xFF
"""The last row of a part has zeros in these bits of its checksum."""
SERIES = "series of backups"
_pack = msgspec.msgpack.Encoder().encode


class Added(msgspec.Struct, frozen=True):
    """The result of a backup. `new_bytes` were not in an earlier backup. `removed` are the ids of old backups."""

    id: str
    revision: str
    rows: dict[str, int]
    contents: int
    bytes: int
    new_contents: int
    new_bytes: int
    removed: Sequence[str]


def add_backup(
    database: Database, storage: Storage, store: BackupStore, keep: Backups, release: str, secret_key: Path | None
) -> Added:
    """Add a backup to the store, and remove old ones. `secret_key` is the file of the key, if the backup has it.

    Raise StartupError as `back_up` does, or if the store belongs to another registry.
    """
    head = head_of(database, release)
    _claim(database, store.storage)
    adding = _Adding(store, storage, f"{release} {head.revision} {database.url.get_backend_name()}")
    with database.snapshot() as connection:
        tables = {objects.name: adding.add_contents(connection)}
        tables |= {
            str(table.name): adding.add_table(table.name, read_rows(connection, table))
            for table in TABLES
            if table is not objects
        }
    key = None if secret_key is None else adding.add(secret_key.read_bytes())
    if datetime.now(UTC) - head.created_at > GRACE - YOUNG:
        raise StartupError(f"the backup took longer than {(GRACE - YOUNG).days} days: repeat it, it continues")
    backup = store.complete(Document(head, tables, adding.contents, adding.bytes, key), adding.base)
    return Added(
        backup.id,
        head.revision,
        {name: table.rows for name, table in tables.items()},
        adding.contents,
        adding.bytes,
        adding.new_contents,
        adding.new_bytes,
        [old.id for old in store.remove_old(keep)],
    )


def _claim(database: Database, storage: Storage) -> None:
    """Mark a new store as the store of this registry. A restored registry continues its series. Raise StartupError if
    the store has another mark.
    """
    series = database.read_now(lambda connection: find_value(connection, SERIES))
    if series is None:
        made = f"backups {secrets.token_hex(16)}".encode()
        series = database.write_now(lambda connection: keep_value(connection, SERIES, made))
    if storage.mark(series.decode()) not in {series.decode(), NO_MARKS}:
        raise StartupError(
            "the storage of backups has the contents or the backups of another registry: choose another folder or "
            "prefix in [backends.backup.<name>]"
        )


class _Adding:
    """The contents of a backup that is being added."""

    def __init__(self, store: BackupStore, storage: Storage, reader: str) -> None:
        """`reader` says what else decides how rows become lines. Its parts are used only by the same reader."""
        self._store = store
        self._storage = storage
        self._reader = reader.encode()
        self.base, references = store.base()
        self._sizes = store.sizes(datetime.now(UTC) + YOUNG)
        earlier = StoredSource(store, self.base).document.tables if self.base is not None else {}
        self._earlier = {
            source: (part, size)
            for table in earlier.values()
            for part, (source, size) in zip(table.parts[1:], table.sources, strict=False)
        }
        self._present = {digest: size for digest, size in self._sizes.items() if digest in references}
        self.contents = self.bytes = self.new_contents = self.new_bytes = 0

    @cached_property
    def _young(self) -> dict[str, int]:
        """Contents that no backup refers to, but that no removal deletes during this backup."""
        old = self._store.sizes(datetime.now(UTC) - YOUNG)
        return {digest: size for digest, size in self._sizes.items() if digest not in old}

    def _has(self, digest: str, size: int) -> bool:
        return self._present.get(digest) == size or self._young.get(digest) == size

    def add(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        if self._present.get(digest) != len(content):
            self._store.put(content)
            self.new_bytes += len(content)
        return digest

    def add_table(self, name: str, table: Rows) -> StoredTable:
        """Store the rows of a table in parts, and the names of its columns in a part of their own."""
        parts, sources, count = [self.add(table.columns)], [], 0
        seed = hashlib.sha256(b"%s %s %s" % (self._reader, name.encode(), table.columns))
        for rows, packed in _split(table.rows):
            source = seed.copy()
            source.update(packed)
            part, size = self._earlier.get(source.hexdigest(), ("", 0))
            if self._present.get(part) != size:
                lines = b"".join(map(table.line_of, rows))
                part, size = self.add(lines), len(lines)
            parts.append(part)
            sources.append((source.hexdigest(), size))
            count += len(rows)
        return StoredTable(count, parts, sources)

    def add_contents(self, connection: Connection) -> StoredTable:
        """Store all contents that are not in the store, and the rows of their table."""
        new: list[tuple[str, int, bool]] = []

        def rows() -> Iterator[tuple[str, int, bool]]:
            chosen = select(objects.c.sha256, objects.c.size_bytes, objects.c.data.is_not(None))
            result = connection.execute(chosen.order_by(objects.c.sha256).execution_options(yield_per=ROWS_AT_ONCE))
            for sha256, size, is_inline in result:
                self.contents, self.bytes = self.contents + 1, self.bytes + size
                if not self._has(sha256, size):
                    new.append((sha256, size, is_inline))
                yield sha256, size, is_inline

        columns = columns_line(("sha256", "size_bytes", "data"))
        table = self.add_table(objects.name, Rows(columns, rows(), _content_line))
        stored = [sha256 for sha256, _, is_inline in new if not is_inline]
        inline = [sha256 for sha256, _, is_inline in new if is_inline]
        at_once(self._copy, stored)
        for start in range(0, len(inline), ROWS_AT_ONCE):
            chosen = objects.c.sha256.in_(inline[start : start + ROWS_AT_ONCE])
            at_once(self._put_row, connection.execute(select(objects.c.sha256, objects.c.data).where(chosen)).all())
        self.new_contents += len(new)
        self.new_bytes += sum(size for _, size, _ in new)
        return table

    def _copy(self, sha256: str) -> None:
        try:
            copy_content(self._storage, self._store.storage, sha256)
        except ContentMissing:
            raise missing_content(sha256) from None
        except DamagedContent:
            raise damaged_content(sha256) from None

    def _put_row(self, row: Any) -> None:
        if self._store.put(bytes(row.data)) != row.sha256:
            raise damaged_content(row.sha256)


def _content_line(row: tuple[str, int, bool]) -> bytes:
    return encode_row((row[0], row[1], INLINE if row[2] else None))


def _split(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Sequence[tuple[Any, ...]], bytes]]:
    """Yield the rows of each part, and all their values as bytes."""
    part: list[tuple[Any, ...]] = []
    packed = bytearray()
    for row in rows:
        packed_row = _pack(row)
        part.append(row)
        packed += packed_row
        is_end = len(packed) >= SHORTEST_PART and not zlib.crc32(packed_row) & LAST_ROW
        if is_end or len(packed) >= LONGEST_PART:
            yield part, bytes(packed)
            part.clear()
            packed.clear()
    if part:
        yield part, bytes(packed)
