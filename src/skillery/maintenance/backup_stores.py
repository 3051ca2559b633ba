"""The storage of incremental backups, by digest: contents, and the rows of each table in parts.

A backup is a document with the digests of its parts, which is a content too. The name of the document is added when
everything else is stored. So a backup whose process was killed has no name, and the next backup uses its contents.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import msgspec

from skillery.backends import KeepsNames, ListsContents, Storage
from skillery.contents.mirrors import DamagedContent, copy_content
from skillery.contents.store import put_large
from skillery.database.tables import objects
from skillery.errors import ContentMissing, StartupError
from skillery.maintenance.backup_archives import FORMAT, ArchiveHead, DamagedArchive, damaged
from skillery.settings.groups import Backups

log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 8
MOST_WAITING = 10_000
YOUNG, GRACE = timedelta(days=1), timedelta(days=4)
"""A new backup uses contents of no backup while they are younger than YOUNG. They are deleted after GRACE.
A backup takes at most the time in between.
"""
_NAME = re.compile(r"(\d{8}T\d{12}Z)-([0-9a-f]{64})")
_TIME = "%Y%m%dT%H%M%S%fZ"
_CONTENTS = msgspec.json.Decoder(list[tuple[str, int | str, Any]])


class StoredTable(msgspec.Struct, frozen=True):
    """The rows of a table. `parts` together are the lines of JSON of `backups.Rows`, first that of the columns."""

    rows: int
    parts: Sequence[str]
    sources: Sequence[tuple[str, int]] = ()
    """For each part after the first: the digest of its rows as the database returned them, and the size of the part."""


class Document(msgspec.Struct, frozen=True):
    """The description of a stored backup."""

    head: ArchiveHead
    tables: dict[str, StoredTable]
    contents: int
    """The number of contents, with those that are part of the database."""
    bytes: int
    secret_key: str | None = None
    """The digest of the key of secrets, if the backup has it."""


class StoredBackup(NamedTuple):
    """A complete backup: its name in the storage, and what the name says."""

    name: str
    id: str
    at: datetime
    digest: str


class BackupStore:
    """The storage of backups. Blocking."""

    def __init__(self, storage: Storage, name: str) -> None:
        """`name` is the name of the storage, for messages. Raise StartupError if the storage cannot have backups."""
        if not isinstance(storage, KeepsNames) or not isinstance(storage, ListsContents):
            raise StartupError(
                f"the storage '{name}' has no backups: its plugin does not implement KeepsNames and ListsContents of "
                "skillery.backends"
            )
        self.storage = storage
        self._names: KeepsNames = storage
        self._lists: ListsContents = storage

    def list(self) -> Sequence[StoredBackup]:
        """Return the complete backups, newest first."""
        matches = (match for name in self._names.names() if (match := _NAME.fullmatch(name)))
        backups = [StoredBackup(m[0], m[1], datetime.strptime(m[1], _TIME).replace(tzinfo=UTC), m[2]) for m in matches]
        return sorted(backups, reverse=True)

    def find(self, wanted: str | None) -> StoredBackup:
        """Return the backup whose id begins with `wanted`, or the newest one. Raise StartupError if there is none, or
        several.
        """
        backups = [backup for backup in self.list() if backup.id.startswith(wanted or "")]
        if not backups:
            if wanted:
                raise StartupError(f"no backup has an id that begins with '{wanted}': skillery backup list shows all")
            raise StartupError("there is no backup yet: run skillery backup")
        if wanted and len(backups) > 1:
            raise StartupError(
                f"the ids of {len(backups)} backups begin with '{wanted}': pass more of the id, which skillery backup "
                "list shows"
            )
        return backups[0]

    def read(self, digest: str, title: str) -> bytes:
        """Return a content. Raise DamagedArchive if the content is missing or does not match its digest."""
        try:
            with self.storage.open(digest) as stream:
                content = stream.read()
        except ContentMissing:
            raise damaged(title, f"the content {digest} is missing") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise damaged(title, f"the content {digest} was changed")
        return content

    def put(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        put_large(self.storage, digest, content)
        return digest

    def sizes(self, before: datetime) -> dict[str, int]:
        """Return the sizes of all contents that were stored before a time, by digest."""
        return dict(self._lists.stored_before(before))

    def complete(self, document: Document, base: StoredBackup | None) -> StoredBackup:
        """Store the document of a backup, and then its name. `base` is the backup whose contents the new one uses.

        Raise StartupError if `base` was removed since: its contents may be deleted. A removal deletes the name first,
        then reads all names, and then deletes contents. So either the removal or this method notices the other.
        """
        digest = self.put(msgspec.json.encode(document))
        name = f"{document.head.created_at.strftime(_TIME)}-{digest}"
        self._names.add_name(name)
        if base is not None and base not in self.list():
            self._names.remove_name(name)
            raise StartupError("another command has removed the last backup during this one: repeat the backup")
        return next(backup for backup in self.list() if backup.name == name)

    def references(self, backups: Sequence[StoredBackup]) -> set[str]:
        """Return the digests of all contents of the backups, with their documents and parts."""
        used: set[str] = set()
        for backup in backups:
            source = StoredSource(self, backup)
            tables = source.document.tables
            parts = {part for table in tables.values() for part in table.parts}
            # Backups have most parts in common, and each is read once.
            new_parts = [part for part in tables[objects.name].parts if part not in used]
            used |= {backup.digest, source.document.secret_key or backup.digest} | parts
            used |= {sha256 for sha256, _ in source.contents(new_parts)}
        return used

    def base(self) -> tuple[StoredBackup | None, set[str]]:
        """Return the newest backup that is not damaged, and its references."""
        for backup in self.list():
            with suppress(DamagedArchive):
                return backup, self.references([backup])
        return None, set()

    def remove_old(self, keep: Backups) -> Sequence[StoredBackup]:
        """Remove the backups that `keep` does not keep, and all old contents that no other backup refers to.

        If another backup is damaged, its references are unknown, so all contents stay.
        """
        backups = self.list()
        old = [backup for backup in backups if backup not in kept_of(backups, keep)]
        for backup in old:
            self._names.remove_name(backup.name)
        if old:
            self.storage.remove_unfinished(datetime.now(UTC) - GRACE, False)
            try:
                used = self.references(self.list())
            except DamagedArchive as error:
                log.warning("%s; contents of removed backups stay", str(error).partition(";")[0])
                return old
            at_once(self.storage.delete, sorted(self.sizes(datetime.now(UTC) - GRACE).keys() - used))
        return old


def kept_of(backups: Sequence[StoredBackup], keep: Backups) -> set[StoredBackup]:
    """Return the backups to keep, of all backups, newest first: see the settings. The newest one is always kept."""
    if not keep.keep_daily and not keep.keep_weekly:
        return set(backups)
    kept = set(backups[:1])
    times: tuple[tuple[Callable[[StoredBackup], Any], int], ...] = (
        (lambda backup: backup.at.date(), keep.keep_daily),
        (lambda backup: backup.at.isocalendar()[:2], keep.keep_weekly),
    )
    for time_of, count in times:
        newest = {time_of(backup): backup for backup in reversed(backups)}
        kept |= {newest[time] for time in sorted(newest, reverse=True)[:count]}
    return kept


def at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of `work` for all items, several at the same time."""
    results: list[R] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(items), MOST_WAITING):
            results += pool.map(work, items[start : start + MOST_WAITING])
    return results


# -- restore a backup --------------------------------------------------------------------------------------------------


class StoredSource:
    """A stored backup as the source of a restore: see `skillery.maintenance.restores.Source`."""

    def __init__(self, store: BackupStore, backup: StoredBackup) -> None:
        self._store = store
        self._backup = backup
        self.title = backup.id
        self.storage: Storage | None = store.storage

    @cached_property
    def document(self) -> Document:
        """The description of the backup. Raise StartupError if the document is missing, damaged or of a newer
        format.
        """
        content = self._read(self._backup.digest)
        try:
            document = msgspec.json.decode(content, type=Document)
        except msgspec.DecodeError:
            raise damaged(self.title, "its document cannot be read") from None
        if document.head.format != FORMAT:
            raise StartupError(
                f"the backup {self.title} has format {document.head.format}, and this release reads {FORMAT}: use a "
                "newer release"
            )
        return document

    def verify(self) -> ArchiveHead:
        """Compare all parts with their digests. Contents are compared when they are restored."""
        parts = [part for table in self.document.tables.values() for part in table.parts]
        at_once(lambda part: len(self._read(part)), parts)
        return self.document.head

    def tables(self) -> Iterator[tuple[str, BinaryIO]]:
        for name, table in self.document.tables.items():
            yield (
                name,
                cast(BinaryIO, io.BufferedReader(_Parts(self._read, table.parts))),
            )

    def restore_contents(self, storage: Storage) -> int:
        """Copy the contents that the storage does not have yet. The store itself has all of them."""
        parts = self.document.tables[objects.name].parts
        stored = [sha256 for sha256, is_inline in self.contents(parts) if not is_inline]
        if storage is not self.storage:
            at_once(partial(self._copy, storage), stored)
        return len(stored)

    def inline(self, digests: Sequence[str]) -> Sequence[bytes]:
        return at_once(self._read, digests) if digests else ()

    def secret_key(self) -> bytes | None:
        key = self.document.secret_key
        return None if key is None else self._read(key)

    def _read(self, digest: str) -> bytes:
        return self._store.read(digest, self.title)

    def contents(self, parts: Sequence[str]) -> Iterator[tuple[str, bool]]:
        """Yield the digest of each content in parts of the table `objects`, and whether it is part of the database."""
        for part in parts:
            # All lines are decoded at once, which takes a tenth of the time.
            for sha256, size, data in _CONTENTS.decode(b"[%s]" % self._read(part).strip().replace(b"\n", b",")):
                if isinstance(size, int):  # not the names of the columns
                    yield sha256, data is not None

    def _copy(self, storage: Storage, sha256: str) -> None:
        try:
            copy_content(self._store.storage, storage, sha256)
        except ContentMissing:
            raise damaged(self.title, f"the content {sha256} is missing") from None
        except DamagedContent:
            raise damaged(self.title, f"the content {sha256} was changed") from None


class _Parts(io.RawIOBase):
    """The parts of a table as one stream."""

    def __init__(self, read: Callable[[str], bytes], parts: Sequence[str]) -> None:
        self._read = read
        self._parts = iter(parts)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(self._read(part))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
