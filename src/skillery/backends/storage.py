"""Storages: contents by their digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from skillery.backends.values import Kind, WithDefaults, default

NO_MARKS = "this storage has no marks"
"""The result of `mark` and `find_mark` of a storage without them. A damaged mark is never this text."""


class Upload(Protocol):
    """A content that is being stored. The content is not visible before `commit`.

    After a crash, only temporary files are left. The next start of the server removes them.
    """

    def write(self, chunk: bytes) -> None: ...

    def commit(self, digest: str) -> None:
        """Make the content durable and visible under `digest`: 64 hex digits of SHA-256, which the caller has
        computed.
        """
        ...

    def abort(self) -> None: ...


@runtime_checkable
class Storage(Protocol, metaclass=WithDefaults):
    """Stores immutable contents by their SHA-256. Blocking: several worker threads call the methods at the same time.

    If the disk is full, the methods raise StorageFull and store nothing.
    """

    def begin(self) -> Upload: ...

    def open(self, digest: str) -> BinaryIO:
        """Return a seekable stream of the content. Raise ContentMissing if the storage does not have the content."""
        ...

    @default()
    def local_path(self, digest: str) -> Path | None:
        """Return the path of a read-only local file with the content, or None if the storage has no such file.
        Default: None.
        """
        return None

    def delete(self, digest: str) -> None:
        """Delete the content. Do nothing if the content is missing.

        During the call, the caller has no open transaction and no upload of the same content. If this method raises an
        exception, the call is repeated later.
        """
        ...

    @default()
    def check(self) -> None:
        """Raise an exception if the storage does not work at present. Default: do nothing."""
        return

    @default("mark", "find_mark")
    def mark(self, made: str) -> str:
        """Return the mark of the storage: an id that ties the storage to one database. If there is no mark, store
        `made` and return it.

        By the mark, a server notices that its storage belongs to another database. If several servers call this method
        at the same time, only the mark of one of them is stored. Default: the storage has no marks.
        """
        return NO_MARKS

    @default("mark", "find_mark")
    def find_mark(self) -> str | None:
        """Return the mark, None if none is stored yet, or NO_MARKS if the storage has no marks."""
        return NO_MARKS

    @default()
    def remove_unfinished(self, begun_before: datetime, dry_run: bool) -> int:
        """Remove the parts of all uploads that began before `begun_before` and have not ended. Return the number of
        uploads. If `dry_run` is true, only count them.

        For a storage that keeps the parts of an upload outside of this machine: sweeps call the method, so that killed
        servers leave no parts forever. Active uploads of any server begin later than `begun_before`. Default: 0.
        """
        return 0


@runtime_checkable
class ListsContents(Protocol):
    """A Storage that lists its contents.

    Without this Protocol, files that a killed server left in the storage are never removed.
    """

    def stored_before(self, time: datetime) -> Iterator[tuple[str, int]]:
        """Yield the digest and the size in bytes of every content that was stored before `time`, in any order.

        Contents that are stored or deleted during the call may be included or not.
        """
        ...


@runtime_checkable
class SignsDownloads(Protocol):
    """A Storage from which callers download contents directly, with an address that the storage has signed."""

    def sign(self, digest: str, seconds: int, headers: Mapping[str, str]) -> str | None:
        """Return an address that answers GET with the content, without other credentials, for `seconds` seconds.

        `headers` has the lower-case names and the values of headers that the answer must have: `content-type` and
        `content-disposition`. Return None if the storage cannot sign: the server then sends the content itself. The
        method does not check whether the content exists.
        """
        ...


@runtime_checkable
class KeepsNames(Protocol):
    """A Storage that also stores names, apart from its contents. `skillery backup` needs it: each complete backup has a
    name.

    A name has 1 to 100 of the characters `A-Z a-z 0-9 -`. A sweep of contents neither lists nor deletes names.
    """

    def add_name(self, name: str) -> None:
        """Store a name durably. After a crash, the name is stored or not. Do nothing if it is stored already."""
        ...

    def names(self) -> Iterator[str]:
        """Yield all stored names, in any order. A name that was added before the call is among them."""
        ...

    def remove_name(self, name: str) -> None:
        """Remove a name. Do nothing if it is not stored."""
        ...


KIND = Kind(
    "storage",
    Storage,
    (ListsContents, SignsDownloads, KeepsNames),
    setting="storage",
    reads=("open", "check"),
)
