"""`directory`: contents as files named by their SHA-256, on a disk of this machine."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from skillery import hookimpl
from skillery.backends import Offer, Place, Storage
from skillery.errors import ContentMissing, StorageFull, Unavailable, is_disk_full

MARK = "registry"
NAMES = "names"
CHECK_BYTES = 64 * 1024
_HEX = frozenset("0123456789abcdef")


class DirectorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of `[backends.storage.directory]`."""

    path: str = ""
    """The folder of the files. Empty means `contents` in the home."""


class DirectoryStorage(Storage):
    """Stores contents as files.

    A file is written under a temporary name, flushed to the disk and renamed, then its folder is flushed: a reader
    sees the complete file or none, even after a crash.
    """

    is_local = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Watched for free bytes, as an attribute of this name of any storage is."""
        self._incoming = folder / "incoming"
        # The contents of backups are the rows of the database: only the user of the server reads them.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._incoming.mkdir(mode=0o700, exist_ok=True)
        for left_over in self._incoming.iterdir():
            _remove_unless_in_use(left_over)

    def begin(self) -> DirectoryUpload:
        return DirectoryUpload(self, self._incoming / secrets.token_hex(16))

    def open(self, digest: str) -> BinaryIO:
        try:
            return self.path_of(digest).open("rb")
        except FileNotFoundError:
            raise ContentMissing(f"no content {digest} in the storage") from None

    def local_path(self, digest: str) -> Path | None:
        path = self.path_of(digest)
        return path if path.is_file() else None

    def delete(self, digest: str) -> None:
        with _speaking():
            self.path_of(digest).unlink(missing_ok=True)

    def stored_before(self, time: datetime) -> Iterator[tuple[str, int]]:
        timestamp = time.timestamp()
        for folder in self.folder.glob("[0-9a-f][0-9a-f]/"):
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # deleted since
                        stat = entry.stat()
                        if stat.st_mtime < timestamp and _is_digest(entry.name):  # not a foreign file
                            yield entry.name, stat.st_size

    def check(self) -> None:
        upload = self.begin()
        try:
            # More than the buffer of the file, so that a full disk refuses it at once.
            upload.write(bytes(CHECK_BYTES))
        finally:
            upload.abort()

    def mark(self, made: str) -> str:
        path = self.folder / MARK
        partial = self.folder / f".{MARK}.{secrets.token_hex(8)}"
        try:
            with partial.open("x") as file:
                file.write(made)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                path.hardlink_to(partial)  # complete or not at all, and never over another mark
            _flush_folder(self.folder)
        finally:
            partial.unlink(missing_ok=True)
        return path.read_text()

    def find_mark(self) -> str | None:
        try:
            return (self.folder / MARK).read_text()
        except FileNotFoundError:
            return None

    def add_name(self, name: str) -> None:
        with _speaking():
            # An empty file needs no temporary name: it is complete when it exists.
            (self.folder / NAMES).mkdir(exist_ok=True)
            (self.folder / NAMES / name).touch(0o444)
            _flush_folder(self.folder / NAMES)
            _flush_folder(self.folder)

    def names(self) -> Iterator[str]:
        for path in (self.folder / NAMES).glob("*"):
            yield path.name

    def remove_name(self, name: str) -> None:
        with _speaking():
            (self.folder / NAMES / name).unlink(missing_ok=True)

    def path_of(self, digest: str) -> Path:
        """Return the path of a content. Raise ContentMissing if `digest` is not a digest: other text never becomes a
        path.
        """
        if not _is_digest(digest):
            raise ContentMissing("not the SHA-256 of a content")
        return self.folder / digest[:2] / digest


class DirectoryUpload:
    """See `skillery.backends.Upload`."""

    def __init__(self, storage: DirectoryStorage, path: Path) -> None:
        self._storage = storage
        with _speaking():
            self._path, self._file = path, _open_locked(path)

    def write(self, chunk: bytes) -> None:
        with _speaking():
            self._file.write(chunk)

    def commit(self, digest: str) -> None:
        target = self._storage.path_of(digest)
        with _speaking():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._path.chmod(0o444)
            if not target.parent.is_dir():
                target.parent.mkdir(mode=0o700, exist_ok=True)
                _flush_folder(target.parent.parent)
            self._path.rename(target)
            self._file.close()  # closing removes the lock that marks the file as in use
            _flush_folder(target.parent)

    def abort(self) -> None:
        with suppress(OSError):  # a full disk may refuse the last buffer
            self._file.close()
        self._path.unlink(missing_ok=True)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= _HEX


def _open_locked(path: Path) -> BinaryIO:
    """Return a new file, locked while it is open. Other servers with this folder see that the file is in use."""
    while True:
        file = path.open("xb")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # a starting server removed it before it was locked


def _remove_unless_in_use(path: Path) -> None:
    with suppress(FileNotFoundError, BlockingIOError):
        if path.is_symlink():
            path.unlink()
        elif path.is_file():
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _speaking() -> Iterator[None]:
    """Context manager that converts errors of the disk to errors for callers."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise StorageFull from error
        raise Unavailable("the storage cannot be written now", hint="Nothing was stored. Try again.") from error


def _open(settings: DirectorySettings, place: Place) -> DirectoryStorage:
    return DirectoryStorage(Path(settings.path).expanduser() if settings.path else place.home / "contents")


@hookimpl
def skillery_storage() -> Offer:
    return Offer("directory", _open, DirectorySettings)
