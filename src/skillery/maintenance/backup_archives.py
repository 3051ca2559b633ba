"""The backup file: a tar archive that begins with a description and ends with the SHA-256 of every member.

- `head.json`: format, release, revision of the database, time.
- `tables/<table>.jsonl`: the names of the columns in the first line, then one row in each line, as an array.
- `contents/<sha256>`: the contents of the storage.
- `secrets.key`: the key of secrets, only on request.
- `sums.json`: the last member, with the SHA-256 of every other member.

An archive without `sums.json` was truncated, and is refused. No member is unpacked to a path that the archive states.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import msgspec

from skillery.backends import Storage
from skillery.contents.store import new_upload
from skillery.errors import StartupError
from skillery.formats.tars import FILE, DamagedTar, read_members
from skillery.formats.wording import printable

FORMAT = 1
HEAD, SUMS, SECRET_KEY = "head.json", "sums.json", "secrets.key"
FRESH = timedelta(hours=24)
CHUNK_BYTES = 1024 * 1024
MOST_SUMS_BYTES = 1024 * 1024 * 1024
_TABLE = re.compile(r"tables/([a-z_]{1,63})\.jsonl")
_CONTENT = re.compile(r"contents/([0-9a-f]{64})")


class DamagedArchive(StartupError):
    """Raised if the file is not a backup or was changed. Nothing was restored from the file."""


class ArchiveHead(msgspec.Struct, frozen=True):
    """The description of a backup."""

    format: int
    release: str
    revision: str
    """Revision of the database."""
    created_at: datetime


class _Described(msgspec.Struct):
    """The part of `backup_stores.Document` that says what a backup is of."""

    head: ArchiveHead


def newest_backup(folder: Path) -> ArchiveHead | None:
    """Return the description of the newest backup in the folder, without verifying it, or None if there is none."""
    heads = []
    for path in folder.iterdir() if folder.is_dir() else ():
        # The folder may have other files, and a damaged backup does not count.
        with contextlib.suppress(StartupError):
            for name, stream, size in members(path):
                if name == HEAD:
                    heads.append(_decoded(path, name, _whole(path, stream, size), ArchiveHead))
                break
    # A folder of incremental backups: the name of each ends with the digest of its description.
    for name in sorted(path.name for path in (folder / "names").glob("*Z-*"))[-1:]:
        digest = name.rpartition("-")[2]
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            heads.append(msgspec.json.decode((folder / digest[:2] / digest).read_bytes(), type=_Described).head)
    return max(heads, key=lambda head: head.created_at, default=None)


def check_fresh_backup(folder: Path, revision: str) -> None:
    """Raise StartupError unless the newest backup in the folder is of this revision and not older than FRESH."""
    newest = newest_backup(folder)
    if newest is None:
        problem = "has no backup"
    elif newest.revision != revision:
        problem = f"has a backup of revision {newest.revision}, but the database is at {revision}"
    elif datetime.now(UTC) - newest.created_at > FRESH:
        problem = f"has no backup after {newest.created_at:%Y-%m-%d %H:%M} UTC, over a day ago"
    else:
        return
    raise StartupError(f"the folder {folder} {problem}: run skillery backup with the release that serves the database")


class ArchiveWriter:
    """Context manager that writes a backup. The file appears under `path` only when it is complete.

    Until `close`, the data is in a temporary file next to `path`. Only the owner can read the file.
    """

    def __init__(self, path: Path, head: ArchiveHead) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.partial")
        self._partial.unlink(missing_ok=True)
        descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.TarFile(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)
        self._sums: dict[str, str] = {}
        self.add_bytes(HEAD, msgspec.json.encode(head))

    def add_bytes(self, name: str, data: bytes) -> None:
        self.add(name, io.BytesIO(data), len(data))

    def add(self, name: str, stream: BinaryIO, size: int) -> str:
        """Add a member and return its SHA-256. Raise OSError if the stream ends before `size` bytes."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        member.mtime = int(datetime.now(UTC).timestamp())
        hashing = Hashing(stream)
        self._tar.addfile(member, cast(Any, hashing))
        self._sums[name] = hashing.digest()
        return self._sums[name]

    def close(self) -> None:
        self.add_bytes(SUMS, msgspec.json.encode(self._sums))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.rename(self._path)

    def abort(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Hashing(io.RawIOBase):
    """A stream that reads from another one and computes the SHA-256 of the read bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def read(self, size: int | None = -1) -> bytes:
        chunk = self._stream.read(-1 if size is None else size)
        self._hash.update(chunk)
        return chunk

    def digest(self) -> str:
        return self._hash.hexdigest()


class Archive:
    """A backup file as the source of a restore: see `skillery.maintenance.restores.Source`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.title = path.name
        self.storage: Storage | None = None

    def verify(self) -> ArchiveHead:
        """Read the whole archive, compare every sum, and return the description.

        Raise DamagedArchive if the file is not a backup or was changed. Raise StartupError if the file cannot be read
        or has another format.
        """
        with _speaking(self.path):
            return _verified(self.path)

    def tables(self) -> Iterator[tuple[str, BinaryIO]]:
        for name, stream, _ in members(self.path):
            if match := _TABLE.fullmatch(name):
                yield match[1], stream

    def restore_contents(self, storage: Storage) -> int:
        count = 0
        for name, stream, _ in members(self.path):
            if match := _CONTENT.fullmatch(name):
                _put(storage, match[1], stream)
                count += 1
        return count

    def secret_key(self) -> bytes | None:
        return next((stream.read() for name, stream, _ in members(self.path) if name == SECRET_KEY), None)

    def inline(self, digests: Sequence[str]) -> Sequence[bytes]:
        return ()  # the rows themselves have them


def _put(storage: Storage, sha256: str, stream: BinaryIO) -> None:
    """Store a content. Raise StartupError if it does not have the digest `sha256`."""
    hashing = Hashing(stream)
    with new_upload(storage) as upload:
        while chunk := hashing.read(CHUNK_BYTES):
            upload.write(chunk)
        if hashing.digest() != sha256:
            raise StartupError(
                "the backup changed during the restore, so nothing uses the restored contents; start the restore again"
            )
        upload.commit(sha256)


def _verified(path: Path) -> ArchiveHead:
    """Return the description. Read every member, and raise DamagedArchive or StartupError as `verify_archive` does."""
    digests: dict[str, str] = {}
    head: ArchiveHead | None = None
    sums: dict[str, str] | None = None
    for name, stream, size in members(path):
        if sums is not None or name in digests:
            raise damaged(path, f"'{name[:80]}' is at a place where no member belongs")
        if name == SUMS:
            sums = _decoded(path, name, _whole(path, stream, size), dict[str, str])
        elif name == HEAD:
            data = _whole(path, stream, size)
            head, digests[name] = _decoded(path, name, data, ArchiveHead), hashlib.sha256(data).hexdigest()
        else:
            digests[name] = _sum(stream)
            content = _CONTENT.fullmatch(name)
            if content and content[1] != digests[name]:
                raise damaged(path, f"'{name}' contains another content")
    if head is None:
        raise damaged(path, "it is not a backup of Skillery")
    if sums is None:
        raise damaged(path, "its end is missing")
    differing = sorted(name for name in digests.keys() | sums.keys() if digests.get(name) != sums.get(name))
    if differing:
        raise damaged(path, f"'{differing[0][:80]}' was changed after it was written")
    if head.format != FORMAT:
        raise StartupError(
            f"the backup {path} has format {head.format}, and this release reads {FORMAT}: use a newer release"
        )
    return head


def members(path: Path) -> Iterator[tuple[str, BinaryIO, int]]:
    """Yield name, stream and size of each member, in order.

    Raise DamagedArchive if the file is not a backup or has other members than a backup. Raise StartupError if the file
    cannot be read.
    """
    with _speaking(path), path.open("rb") as headers, path.open("rb") as file:
        for member in read_members(headers):
            if member.kind != FILE or not _is_ours(member.name):
                raise damaged(path, f"it contains '{printable(member.name, 80)}', which is not a member of a backup")
            stream = io.BufferedReader(_Content(file, member.place, member.size))
            yield member.name, cast(BinaryIO, stream), member.size


class _Content(io.RawIOBase):
    """The content of one member of an open archive."""

    def __init__(self, file: BinaryIO, place: int, size: int) -> None:
        self._file, self._at, self._end = file, place, place + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        chunk = self._file.read(min(len(buffer), self._end - self._at))
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)


def _is_ours(name: str) -> bool:
    return name in {HEAD, SUMS, SECRET_KEY} or bool(_TABLE.fullmatch(name) or _CONTENT.fullmatch(name))


def _sum(stream: BinaryIO) -> str:
    hashing = Hashing(stream)
    while hashing.read(CHUNK_BYTES):
        pass
    return hashing.digest()


def _whole(path: Path, stream: BinaryIO, size: int) -> bytes:
    if size > MOST_SUMS_BYTES:
        raise damaged(path, "one of its members is too large")
    return stream.read()


def _decoded(path: Path, name: str, data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise damaged(path, f"'{name}' cannot be read") from None


@contextmanager
def _speaking(path: Path) -> Iterator[None]:
    """Context manager that converts errors of reading to StartupError or DamagedArchive, with the path of the file."""
    try:
        yield
    except DamagedTar:
        raise damaged(path, "it is not a backup, or was cut off") from None
    except FileNotFoundError:
        raise StartupError(f"there is no file {path}") from None
    except OSError as error:
        raise StartupError(f"cannot read the backup {path}: {error.strerror or error}") from None


def damaged(title: str | Path, why: str) -> DamagedArchive:
    return DamagedArchive(f"the backup {title} is damaged: {why}; nothing was restored; use another backup")
