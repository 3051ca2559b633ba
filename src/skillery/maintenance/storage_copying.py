"""`skillery storage`: copies all contents to another storage while servers are running, and verifies a storage.

1. `begin` records the copy. From then on, servers store every new content in both storages.
2. `Copier.copy` copies the contents that were recorded before, in the order of their digests.
3. `Copier.complete` looks for every recorded content in the target, and copies those that are missing, until none is.
4. The admin changes the setting `storage` and restarts the servers one by one.
5. `finish` deletes the record.

If a copier dies, the next one continues after the last recorded digest.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, func, select

from skillery import audit
from skillery.backends import Storage
from skillery.backends.storage import NO_MARKS
from skillery.contents.deletions import drop_files, wait_until_deleted
from skillery.contents.mirrors import DamagedContent, MirroredStorage, copy_content
from skillery.contents.storage_copies import StorageCopy, begin_copy, end_copy, find_copy, former_marks, save_copy
from skillery.database import Database
from skillery.database.tables import objects
from skillery.errors import ContentMissing, StartupError, Unavailable
from skillery.maintenance.integrity import Damage, is_recorded, stored_fault

BATCH = 32
AT_ONCE = 4
SAVE_SECONDS = 1.0
MOST_PASSES = 10
DELETION_SECONDS = 30.0


class Stored(NamedTuple):
    """The row of a content in the storage."""

    sha256: str
    size_bytes: int


class Progress(NamedTuple):
    """The progress of a pass over all contents."""

    step: str
    """copying, looking or verifying"""
    contents: int
    bytes: int
    all_contents: int
    all_bytes: int
    seconds: float
    done_bytes: int
    """Bytes that this process has read, for the rate."""

    @property
    def rate(self) -> float:
        """Bytes for each second."""
        return self.done_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        remaining_bytes = max(0, self.all_bytes - self.bytes)
        return remaining_bytes / self.rate if self.rate else None


Tell = Callable[[Progress], None]


def begin(
    database: Database, source: Storage, target: Storage, names: tuple[str, str], actor: audit.Actor
) -> StorageCopy:
    """Record the copy of a storage to another, or return the present copy to the same target. `names` are the names of
    both storages. Blocking.

    Raise StartupError if another copy is under way, or if the target does not work or belongs to another registry.
    """
    source_name, target_name = names
    target.check()
    source.check()
    for storage, name in ((source, source_name), (target, target_name)):
        if storage.find_mark() == NO_MARKS:
            raise StartupError(
                f"the storage '{name}' has no marks: use a release of its plugin with the methods mark and find_mark. "
                "Without marks, a server with the previous setting writes to the wrong storage after the copy"
            )
    new_copy = StorageCopy(
        id=secrets.token_hex(16),
        source=source_name,
        target=target_name,
        target_mark=_new_mark(database, target, target_name),
        started_at=datetime.now(UTC),
    )

    def work(connection: Connection) -> StorageCopy:
        present_copy = begin_copy(connection, new_copy)
        if present_copy is new_copy:
            audit.record(connection, actor, "copy_storage", new_copy.target, after={"source": new_copy.source})
        return present_copy

    copy = database.write_now(work)
    if copy.target != target_name:
        raise StartupError(
            f"a copy from '{copy.source}' to '{copy.target}' is under way: complete it, or give it up with "
            "skillery storage finish --abandon"
        )
    if target.mark(copy.target_mark or "") != copy.target_mark:
        raise _foreign(copy.target)
    if not copy.is_target_marked:
        copy = msgspec.structs.replace(copy, is_target_marked=True)
        database.write_now(partial(save_copy, copy=copy))
    return copy


def _new_mark(database: Database, target: Storage, name: str) -> str:
    """Return the mark of the target if the database knows it, or a new mark. Raise StartupError for another mark."""
    mark = target.find_mark()
    copy = database.read_now(find_copy)
    if copy is not None and copy.target == name and copy.is_target_marked and mark != copy.target_mark:
        raise StartupError(
            f"the storage '{name}' is not the target of the current copy: check [backends.storage.{name}], or give the "
            "copy up with skillery storage finish --abandon and start a new copy"
        )
    known_marks = database.read_now(former_marks) | ({copy.target_mark} if copy is not None else set())
    if mark is not None and mark not in known_marks:
        raise _foreign(name)
    return mark or secrets.token_hex(16)


def _foreign(name: str) -> StartupError:
    return StartupError(
        f"the target storage '{name}' belongs to another registry, or already is the storage of this one: "
        "choose an empty storage"
    )


class Copier:
    """Copies the contents of one StorageCopy. Blocking."""

    def __init__(self, database: Database, source: Storage, target: Storage, tell: Tell) -> None:
        self._database = database
        self._source = source
        self._target = target
        self._tell = tell
        self._started = time.monotonic()
        self._done_bytes = 0
        self.faults: dict[str, Damage] = {}
        """Contents that cannot be copied, by digest."""

    def copy(self, copy: StorageCopy) -> StorageCopy:
        """Copy the contents after the cursor, and record the progress about every second. Raise StartupError if the
        copy was ended by another command.
        """
        saved_at, total = time.monotonic(), self._database.read_now(count_stored)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for batch in stored_batches(self._database, copy.cursor):
                list(pool.map(self._bring, batch))
                copy = msgspec.structs.replace(
                    copy,
                    cursor=batch[-1].sha256,
                    contents=copy.contents + len(batch),
                    bytes=copy.bytes + sum(content.size_bytes for content in batch),
                )
                self._done_bytes += sum(content.size_bytes for content in batch)
                if time.monotonic() - saved_at > SAVE_SECONDS:
                    saved_at = time.monotonic()
                    self._save(copy)
                self._report("copying", copy.contents, copy.bytes, total)
        return self._save(copy)

    def complete(self, copy: StorageCopy, *, verify: bool) -> StorageCopy:
        """Look for every content in the target, and copy missing ones until none is missing. Record the copy as
        complete, unless the attribute `faults` has an entry.

        With `verify`, read every content of the target and compare its digest.
        """
        for number in range(MOST_PASSES):
            self.faults.clear()
            if not self._look(deep=verify and number == 0) or self.faults:
                break
        else:
            raise StartupError("contents are missing in the target after ten passes; run skillery storage copy again")
        if self.faults:
            return copy
        return self._save(msgspec.structs.replace(copy, state="copied"))

    def _look(self, *, deep: bool) -> int:
        """Look for all contents in the target, and copy the missing ones. Return their number."""
        self._started, self._done_bytes = time.monotonic(), 0
        contents = size = copied = 0
        total = self._database.read_now(count_stored)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for batch in stored_batches(self._database):
                copied += sum(pool.map(partial(self._bring, deep=deep), batch))
                contents += len(batch)
                size += sum(content.size_bytes for content in batch)
                self._done_bytes = size
                self._report("verifying" if deep else "looking", contents, size, total)
        return copied

    def _bring(self, stored: Stored, *, deep: bool = False) -> bool:
        """Copy a content unless the target has it. Return whether it was copied."""
        if stored_fault(stored, self._target, deep) is None:
            return False
        try:
            copy_content(self._source, self._target, stored.sha256)
        except (ContentMissing, DamagedContent, OSError, Unavailable) as error:
            fault = stored_fault(stored, self._source, deep=True)
            if fault is None and isinstance(error, Unavailable):
                raise  # not the content, but one of the storages has failed
            if fault is not None and self._database.read_now(partial(is_recorded, sha256=stored.sha256)):
                self.faults[stored.sha256] = fault
            return fault is None
        if not self._database.read_now(partial(is_recorded, sha256=stored.sha256)):
            self._delete_again(stored.sha256)
        return True

    def _delete_again(self, sha256: str) -> None:
        """Delete a content from the target that a server has deleted while it was copied. The server may not have ended
        the deletion: while its tombstone exists, no other deletion of the content can begin.
        """
        copy = self._database.read_now(find_copy)
        if copy is None:
            return
        mirrored = MirroredStorage(self._database, copy.source, self._source, lambda _: self._target)
        wait_until_deleted(self._database, mirrored, [sha256], time.monotonic() + DELETION_SECONDS)
        drop_files(self._database, mirrored, [sha256])

    def _save(self, copy: StorageCopy) -> StorageCopy:
        if not self._database.write_now(partial(save_copy, copy=copy)):
            raise StartupError("the copy was ended by another command, so this command stops")
        return copy

    def _report(self, step: str, contents: int, size: int, total: tuple[int, int]) -> None:
        self._tell(Progress(step, contents, size, *total, time.monotonic() - self._started, self._done_bytes))


def finish(database: Database, name: str, actor: audit.Actor, *, abandon: bool) -> StorageCopy:
    """End the copy. The contents are from now on in the storage `name`, which the servers use now. Blocking.

    Raise StartupError if no copy is under way, if it is not complete, or if `name` is not its target and `abandon` is
    false.
    """

    def work(connection: Connection) -> StorageCopy:
        copy = find_copy(connection)
        if copy is None:
            raise StartupError("no copy of the storage is under way")
        _check_end(copy, name, abandon)
        end_copy(connection, copy, name)
        audit.record(connection, actor, "finish_storage_copy", name, after={"source": copy.source})
        return copy

    return database.write_now(work)


def _check_end(copy: StorageCopy, name: str, abandon: bool) -> None:
    """Raise StartupError unless the servers use the target of a complete copy, or, with `abandon`, the source."""
    if name == copy.target and copy.state == "copied" and not abandon:
        return
    if name == copy.source and abandon:
        return
    if name == copy.target:
        raise StartupError(
            f"setting 'storage' is '{name}', the target of the copy: "
            + (
                "--abandon keeps the source; set storage to it first"
                if abandon
                else "it is not complete; run skillery storage copy again"
            )
        )
    raise StartupError(
        f"setting 'storage' is '{name}': set storage = \"{copy.target}\" and restart every server, then finish. "
        f"--abandon gives the copy up and keeps '{copy.source}'"
    )


def verify_storage(database: Database, storage: Storage, tell: Tell) -> Iterator[Damage]:
    """Read every recorded content of a storage. Yield a fault for each content that is missing or does not match its
    digest.
    """
    started_at = time.monotonic()
    contents = size = 0
    total = database.read_now(count_stored)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for batch in stored_batches(database):
            for fault in pool.map(partial(stored_fault, storage=storage, deep=True), batch):
                if fault is not None and database.read_now(partial(is_recorded, sha256=fault.subject)):
                    yield fault
            contents += len(batch)
            size += sum(content.size_bytes for content in batch)
            tell(Progress("verifying", contents, size, *total, time.monotonic() - started_at, size))


def stored_batches(database: Database, after: str = "") -> Iterator[list[Stored]]:
    """Yield all contents of the storage after a digest, in the order of their digests."""
    while batch := database.read_now(partial(_page, after=after)):
        yield batch
        after = batch[-1].sha256


def _page(connection: Connection, after: str) -> list[Stored]:
    page = select(objects.c.sha256, objects.c.size_bytes).where(objects.c.data.is_(None), objects.c.sha256 > after)
    return [Stored(*row) for row in connection.execute(page.order_by(objects.c.sha256).limit(BATCH))]


def count_stored(connection: Connection) -> tuple[int, int]:
    """Return the number of contents in the storage and their bytes."""
    totals = select(func.count(), func.coalesce(func.sum(objects.c.size_bytes), 0)).where(objects.c.data.is_(None))
    count, size = connection.execute(totals).one()
    return int(count), int(size)
