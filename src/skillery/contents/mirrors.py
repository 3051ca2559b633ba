"""The storage of a server, and the second storage while the contents are copied between the two.

Each call reads the record of the copy (`skillery.contents.storage_copies`), so a server needs no restart when a copy
begins or ends. A call takes some milliseconds, the read a tenth of one.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sqlalchemy import Connection

from skillery.backends import Storage, Upload
from skillery.backends.storage import NO_MARKS
from skillery.contents.storage_copies import StorageCopy, find_copy, find_mark, former_marks
from skillery.contents.store import CHUNK_BYTES, new_upload
from skillery.database import Database
from skillery.errors import ContentMissing, SkilleryError, StartupError, StorageFull, Unavailable


class Second(NamedTuple):
    """The second storage of a copy that is under way."""

    copy_id: str
    name: str
    storage: Storage


class MirroredStorage:
    """The storage of a server. While a copy is under way, it also stores and deletes each content in the second
    storage.

    Reads use the storage `own`, and the second storage only if `own` does not have the content. If the second storage
    fails, a write raises Unavailable, so that both storages have every acknowledged content.
    """

    def __init__(self, database: Database, name: str, own: Storage, open_storage: Callable[[str], Storage]) -> None:
        """`name` is the name of the storage `own`. `open_storage` opens a storage by its name."""
        self._database = database
        self._name = name
        self._own = own
        self.folder: Path | None = getattr(own, "folder", None)
        """The folder of a storage on this machine."""
        self._open_storage = open_storage
        self._mark = own.find_mark()
        self._second: Second | None = None
        self._opening = threading.Lock()
        # The methods of optional Protocols, such as ListsContents, are those of the own storage.
        for method in dir(own):
            if not method.startswith("_") and not hasattr(self, method) and callable(getattr(own, method)):
                setattr(self, method, getattr(own, method))

    def begin(self) -> Upload:
        return MirroredUpload(self, self._own, self.second())

    def open(self, digest: str) -> BinaryIO:
        try:
            return self._own.open(digest)
        except ContentMissing:
            second = self.second()
            if second is None:
                raise
            return second.storage.open(digest)

    def local_path(self, digest: str) -> Path | None:
        return self._own.local_path(digest)

    def delete(self, digest: str) -> None:
        second = self.second()
        self._own.delete(digest)
        if second is not None:
            with errors_of_second(second.name):
                second.storage.delete(digest)

    def check(self) -> None:
        self._own.check()

    def mark(self, made: str) -> str:
        return self._own.mark(made)

    def find_mark(self) -> str | None:
        return self._own.find_mark()

    def remove_unfinished(self, begun_before: datetime, dry_run: bool) -> int:
        return self._own.remove_unfinished(begun_before, dry_run)

    def second(self) -> Second | None:
        """Return the second storage, or None if no copy is under way.

        Raise Unavailable if the second storage cannot be opened, or if a copy has ended and the database now keeps its
        contents in that other storage.
        """
        copy, former = self._database.read_now(_copy_and_former_marks)
        if copy is None:
            self._second = None
            if self._mark in former:
                raise Unavailable(
                    f"this server uses the storage '{self._name}', but the contents were moved to another storage",
                    hint="An admin has to restart this server with the new storage in the setting 'storage'.",
                )
            return None
        second = self._second
        return second if second is not None and second.copy_id == copy.id else self._open_second(copy)

    def _open_second(self, copy: StorageCopy) -> Second:
        name = copy.other(self._name)
        with self._opening:
            if self._second is None or self._second.copy_id != copy.id:
                self._second = Second(copy.id, name, self._opened(copy, name))
            return self._second

    def _opened(self, copy: StorageCopy, name: str) -> Storage:
        """Open a storage of the copy. Raise Unavailable if it has another mark than the storage of the copy."""
        try:
            storage = self._open_storage(name)
        except (StartupError, SkilleryError) as error:
            raise Unavailable(
                f"the contents are being copied to the storage '{name}', which this server cannot open",
                hint=f"Nothing was stored. An admin has to add [backends.storage.{name}] to the settings of "
                "this server and restart it. skillery storage status shows the copy.",
            ) from error
        mark = copy.target_mark if name == copy.target else self._database.read_now(find_mark)
        if storage.find_mark() not in {NO_MARKS, mark}:
            raise Unavailable(
                f"the storage '{name}' of this server has other settings than the copy that is under way",
                hint=f"Nothing was stored. An admin has to set the same [backends.storage.{name}] for this server and "
                "for skillery storage copy, and restart this server. If the copy has just started, try again.",
            )
        return storage


class MirroredUpload:
    """An upload to one storage, or to both while a copy is under way."""

    def __init__(self, mirror: MirroredStorage, storage: Storage, second: Second | None) -> None:
        self._mirror = mirror
        self._storage = storage
        self._second = second
        self._copy: Upload | None = None
        if second is not None:
            with errors_of_second(second.name):
                self._copy = second.storage.begin()
        try:
            self._own = storage.begin()
        except BaseException:
            self._abort_copy()
            raise

    def write(self, chunk: bytes) -> None:
        self._own.write(chunk)
        if self._second is not None and self._copy is not None:
            with errors_of_second(self._second.name):
                self._copy.write(chunk)

    def commit(self, digest: str) -> None:
        self._own.commit(digest)
        present_second = self._mirror.second()
        if present_second is not None:
            with errors_of_second(present_second.name):
                self._commit_copy(digest, present_second)
        else:
            self._abort_copy()

    def _commit_copy(self, digest: str, second: Second) -> None:
        """Commit the upload to the second storage. If the copy began during the upload, copy the content now."""
        if self._copy is not None and self._second is not None and self._second.copy_id == second.copy_id:
            self._copy.commit(digest)
        else:  # the copy has begun during this upload
            self._abort_copy()
            copy_content(self._storage, second.storage, digest)

    def abort(self) -> None:
        self._abort_copy()
        self._own.abort()

    def _abort_copy(self) -> None:
        if self._copy is not None:
            with suppress(Exception):  # the caller has a result or another error, and a sweep removes the rest
                self._copy.abort()


class DamagedContent(Exception):
    """Raised if a content in a storage does not match its digest. The message is the digest."""


def copy_content(source: Storage, target: Storage, digest: str) -> int:
    """Copy one content and return its size in bytes. The memory is constant. Blocking.

    Raise ContentMissing if the source does not have the content, and DamagedContent if it does not match its digest.
    Nothing is stored then.
    """
    hasher, size = hashlib.sha256(), 0
    with source.open(digest) as stream, new_upload(target) as upload:
        while chunk := stream.read(CHUNK_BYTES):
            hasher.update(chunk)
            size += len(chunk)
            upload.write(chunk)
        if hasher.hexdigest() != digest:
            raise DamagedContent(digest)
        upload.commit(digest)
    return size


@contextmanager
def errors_of_second(name: str) -> Iterator[None]:
    """Context manager that converts errors of the second storage to Unavailable, with the name of the storage."""
    try:
        yield
    except StorageFull:
        raise
    except Exception as error:
        raise Unavailable(
            f"the storage '{name}' of the copy that is under way does not work now",
            hint="Nothing was stored. Try again later. An admin sees the copy with skillery storage status.",
        ) from error


def _copy_and_former_marks(connection: Connection) -> tuple[StorageCopy | None, frozenset[str]]:
    return find_copy(connection), former_marks(connection)
