"""`skillery db copy`: copies the registry to another database, SQLite or Postgres, while servers are running.

1. The contents in the database (`objects`) are copied and compared while servers write: they never change.
2. The database becomes read-only (`skillery.database.read_only`). Reads continue.
3. All other rows, and the contents that were added or deleted since then, are copied from one snapshot and compared.
4. The target is committed, in one transaction: it is either empty or complete. The old database stays read-only, so
   that no change is lost in it.

If the copier dies, the old database accepts changes again after `accept_writes`. The target is empty, or complete if
the copier died after the commit: it is outdated as soon as the old database accepts changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Select, Table, delete, func, insert, select, update

from skillery import audit
from skillery.database import Database, migrate
from skillery.database.read_only import KEY, ReadOnly, accept_writes, find_read_only, make_read_only, put_note
from skillery.database.tables import (
    audit_head,
    metadata,
    objects,
    registry,
    search_words,
)
from skillery.errors import StartupError
from skillery.maintenance.rows import decode_row, encode_row

T = TypeVar("T")
ROWS_AT_ONCE = 500
ROWS_PER_SECOND = 5_000
"""A careful guess for the expected time of the read-only phase: docs/operate/migrating.md has measured times."""


class Checksum(msgspec.Struct):
    """Number of rows, and the sum of their hashes. The order of the rows does not matter."""

    rows: int = 0
    total: int = 0

    def add(self, line: bytes) -> None:
        self.rows += 1
        self.total = (self.total + _hash(line)) % (1 << 128)

    def remove(self, hashed: int) -> None:
        self.rows -= 1
        self.total = (self.total - hashed) % (1 << 128)


class Copied(msgspec.Struct, frozen=True):
    """The result of a copy."""

    target: str
    rows: dict[str, int]
    """Number of rows for each table."""
    checksums: dict[str, str]
    seconds: float
    read_only_seconds: float
    """Time from the refusal of changes to the complete target."""


Tell = Callable[[str], None]
"""Gets a sentence after each step."""


def copy_database(source: Database, target: Database, actor: audit.Actor, tell: Tell) -> Copied:
    """Copy the registry to the empty database `target`, and leave the database `source` read-only. Blocking.

    Raise StartupError if the target is not empty, if another copy is running, or if the rows that were read back from
    the target differ. The target is then empty, and the source accepts changes again.
    """
    with _alone(source):
        _check(source, target)
        copying = _Copying(source, target, tell)
        try:
            migrate.create(target, migrate.head(), copying.load, lambda connection: copying.settle(connection, actor))
        except BaseException:
            accept_writes(source)
            raise
        if not source.write_now(copying.keep_read_only):
            raise StartupError(
                f"changes were allowed again during the copy, so {where(target)} is outdated: empty it, then copy again"
            )
        return copying.copied(time.monotonic())


@contextmanager
def _alone(source: Database) -> Iterator[None]:
    """Context manager that lets one copy of a database run at a time. Raise StartupError if another copy is running."""
    with ExitStack() as stack:
        if not source.is_sqlite:
            is_alone = stack.enter_context(source.alone("database copy"))
        else:
            file = stack.enter_context(Path(f"{source.url.database}.copying").open("w"))
            is_alone = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_alone = False
        if not is_alone:
            raise StartupError("another skillery db copy of this database is running: wait for its end")
        yield


def _check(source: Database, target: Database) -> None:
    """Raise StartupError unless the source is at this release's revision and not copied yet, and
    the target is empty.
    """
    revision = migrate.current(source)
    if revision != migrate.head():
        raise StartupError(
            f"the database is at revision {revision or 'none'}, but this release needs {migrate.head()}: "
            "copy it with the release that serves it, or run skillery db migrate first"
        )
    if migrate.current(target) is not None:
        raise StartupError(
            f"the database {where(target)} is not empty, and a registry is never copied over another: "
            "choose an empty database"
        )
    note = source.read_now(find_read_only)
    if note is not None and note.is_copied:
        raise StartupError(
            f"the registry was copied to {note.target} already: start the servers with that database. If you "
            "want to copy again, delete it, then run skillery db copy --resume-writes --new-database-is-deleted"
        )


class _Copying:
    """The state of one copy of a database.

    `load` and `settle` run in the transaction of the target, whose connection is `into`. `keep_read_only` runs in a
    transaction of the source.
    """

    def __init__(self, source: Database, target: Database, tell: Tell) -> None:
        self._source = source
        self._target = target
        self._tell = tell
        self._began = time.monotonic()
        self._read_only_at = 0.0
        self._sums: dict[str, Checksum] = {}
        self._contents: dict[str, int] = {}
        """The hashes of the copied rows of `objects`, by digest."""
        self.note = ReadOnly("", datetime.now(UTC), 0)

    def load(self, into: Connection) -> None:
        """Copy all rows. Make the source read-only after its contents are copied, and before all
        other rows are copied.
        """
        for table in reversed(metadata.sorted_tables):
            if table is not audit_head:
                into.execute(table.delete())  # rows that a migration adds
        with self._source.snapshot() as connection:
            self._copy_contents(connection, into, set())
        self._compare(into, objects)
        self._tell(f"{len(self._contents)} small contents are copied; servers still write")
        self._refuse_writes()
        with self._source.snapshot() as connection:
            self._follow_contents(connection, into)
            for table in metadata.sorted_tables:
                if table is not objects:
                    self._copy_table(connection, into, table)

    def settle(self, into: Connection, actor: audit.Actor) -> None:
        """Compare all rows with the rows of the source, and add an audit entry. Raise StartupError if a row differs."""
        for table in metadata.sorted_tables:
            if table is not objects:
                self._compare(into, table)
        if not self._target.is_sqlite:
            migrate.advance_sequences(into, metadata.sorted_tables)
        details = {"target": where(self._target), "rows": sum(checksum.rows for checksum in self._sums.values())}
        audit.record_at_once(into, actor, "copy_database", where(self._source), after=details)

    def keep_read_only(self, connection: Connection) -> bool:
        """Note that the copy is complete. Return False if the source has accepted changes during the copy."""
        if find_read_only(connection) != self.note:
            return False
        put_note(connection, msgspec.structs.replace(self.note, is_copied=True))
        return True

    def copied(self, now: float) -> Copied:
        rows = {name: checksum.rows for name, checksum in sorted(self._sums.items())}
        checksums = {name: f"{checksum.total:032x}" for name, checksum in sorted(self._sums.items())}
        return Copied(where(self._target), rows, checksums, now - self._began, now - self._read_only_at)

    def _refuse_writes(self) -> None:
        expected = 1 + self._source.read_now(_count_rows) // ROWS_PER_SECOND
        self.note = ReadOnly(where(self._target), datetime.now(UTC), expected)
        self._read_only_at = time.monotonic()
        make_read_only(self._source, self.note)
        self._tell(f"the database is read-only for about {expected} s, while all other rows are copied")

    def _copy_table(self, connection: Connection, into: Connection, table: Table) -> None:
        checksum = self._sums[table.name] = Checksum()
        # The migration has created the row of this table, and no statement can delete it.
        adding: Any = update(table).where(table.c.id == 1) if table is audit_head else insert(table)
        for lines in _batches(_lines(connection, table)):
            for line in lines:
                checksum.add(line)
            into.execute(adding, [_values(table, line) for line in lines])

    def _copy_contents(self, connection: Connection, into: Connection, digests: set[str]) -> None:
        """Copy the rows of contents with these digests, or of all contents if `digests` is empty. Note their hashes."""
        checksum = self._sums.setdefault(objects.name, Checksum())
        chosen = _rows_of(connection, objects)
        if digests:
            chosen = chosen.where(objects.c.sha256.in_(digests))
        for lines in _batches(_encoded(connection, chosen)):
            values = [_values(objects, line) for line in lines]
            for line, row in zip(lines, values, strict=True):
                checksum.add(line)
                self._contents[row["sha256"]] = _hash(line)
            into.execute(insert(objects), values)

    def _follow_contents(self, connection: Connection, into: Connection) -> None:
        """Copy the contents that were added since the first snapshot, and delete the copies of
        those that were deleted.
        """
        present = set(connection.scalars(select(objects.c.sha256)))
        for batch in _batches(sorted(self._contents.keys() - present)):
            into.execute(delete(objects).where(objects.c.sha256.in_(batch)))
            for sha256 in batch:
                self._sums[objects.name].remove(self._contents.pop(sha256))
        for batch in _batches(sorted(present - self._contents.keys())):
            self._copy_contents(connection, into, set(batch))
            for line in _encoded(into, _rows_of(into, objects).where(objects.c.sha256.in_(batch))):
                if _hash(line) != self._contents[_values(objects, line)["sha256"]]:
                    raise _differs(self._target, objects)
        rows = int(into.execute(select(func.count()).select_from(objects)).scalar_one())
        if rows != self._sums[objects.name].rows:
            raise _differs(self._target, objects)

    def _compare(self, into: Connection, table: Table) -> None:
        """Read the rows back from the target. Raise StartupError if they differ from the rows of the source."""
        checksum = Checksum()
        for line in _lines(into, table):
            checksum.add(line)
        if checksum != self._sums[table.name]:
            raise _differs(self._target, table)


def where(database: Database) -> str:
    """Return the URL of a database without its password and query, with the scheme of the setting `database`."""
    url = database.url.set(query={}, drivername="sqlite" if database.is_sqlite else "postgresql", password=None)
    return url.render_as_string()


def _differs(target: Database, table: Table) -> StartupError:
    return StartupError(
        f"the table '{table.name}' in {where(target)} differs from the source after the copy; the copy was discarded"
    )


def _count_rows(connection: Connection) -> int:
    tables = [table for table in metadata.sorted_tables if table is not objects]
    return sum(int(connection.execute(select(func.count()).select_from(table)).scalar_one()) for table in tables)


def _rows_of(connection: Connection, table: Table) -> Select[Any]:
    columns = _columns(table)
    if table is search_words and connection.dialect.name == "postgresql":
        # A tsvector has the words of the text that SQLite stores.
        columns[columns.index(search_words.c.words)] = func.tsvector_to_array(search_words.c.words)
    chosen = select(*columns)
    return chosen.where(registry.c.key != KEY) if table is registry else chosen


def _columns(table: Table) -> list[Any]:
    return [column for column in table.columns if column.computed is None]


def _lines(connection: Connection, table: Table) -> Iterator[bytes]:
    """Yield the rows in the encoding of backups, which is the same for both databases."""
    chosen = _rows_of(connection, table)
    if table is not search_words:
        yield from _encoded(connection, chosen)
        return
    position = _columns(table).index(search_words.c.words)
    for row in connection.execute(chosen.execution_options(yield_per=ROWS_AT_ONCE)):
        words = row[position].split() if isinstance(row[position], str) else row[position]
        yield encode_row((*row[:position], " ".join(sorted(words)), *row[position + 1 :]))


def _encoded(connection: Connection, chosen: Select[Any]) -> Iterator[bytes]:
    for row in connection.execute(chosen.execution_options(yield_per=ROWS_AT_ONCE)):
        yield encode_row(tuple(row))


def _values(table: Table, line: bytes) -> dict[str, Any]:
    names = [column.name for column in _columns(table)]
    return dict(zip(names, decode_row(line), strict=True))


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    following = iter(items)
    while batch := list(islice(following, ROWS_AT_ONCE)):
        yield batch


def _hash(line: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(line, digest_size=16).digest(), "big")
