"""Opening of an uploaded archive. The content determines the format; the file name does not matter."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from skillery.errors import InvalidArchive
from skillery.formats.tars import FILE, FOLDER, HARD_LINK, LINK, SPARSE, DamagedTar, Member, read_members
from skillery.importing.entries import (
    Archive,
    Entry,
    ImportLimits,
    Sizes,
    broken,
    refuse,
    safe_path,
    safe_target,
    unpacks_too_large,
)
from skillery.importing.zips import MAX_RATIO, ZipArchive

# -- Tar archives, plain or compressed with gzip -----------------------------------------------------------------------
# A compressed tar is first unpacked to a file without a name: then contents can be read in any order, and no file
# remains if this process dies. The contents are read by their offsets.


CHUNK_BYTES = 1024 * 1024
RATIO_BYTES = 64 * 1024 * 1024


class TarArchive:
    def __init__(self, file: BinaryIO, limits: ImportLimits) -> None:
        """Read and check all headers. The caller closes the file.

        Raise InvalidArchive if the archive is malformed or has an unsafe entry, and ArchiveTooLarge if it exceeds the
        limits.
        """
        self._fd = file.fileno()
        sizes = Sizes(limits)
        self.entries: Sequence[Entry] = [
            entry for member in _members(file) if (entry := _entry(member, sizes)) is not None
        ]

    def read(self, entry: Entry) -> bytes:
        parts, at, left = [], cast(int, entry.place), entry.size
        while left:
            part = os.pread(self._fd, left, at)
            if not part:
                raise refuse(entry.path, "is cut off", "Send the archive again.")
            parts.append(part)
            at, left = at + len(part), left - len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Do nothing, because the caller owns the file."""


def unpacked(file: BinaryIO, limits: ImportLimits, folder: Path) -> BinaryIO:
    """Return the content of a gzip file as a file without a name in `folder`. The caller closes the result.

    Raise InvalidArchive if the gzip file is damaged or expands suspiciously much, and ArchiveTooLarge if the content
    exceeds the limits.
    """
    packed = file.seek(0, 2)
    file.seek(0)
    into = cast(BinaryIO, tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - the caller closes it
    try:
        _unpack(file, into, packed, limits)
    except BaseException:
        into.close()
        raise
    into.seek(0)
    return into


def _unpack(file: BinaryIO, into: BinaryIO, packed: int, limits: ImportLimits) -> None:
    size = 0
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as content:
            # read1 also returns the content before a cut, which names the last entry. read would raise instead.
            while chunk := content.read1(CHUNK_BYTES):
                size += len(chunk)
                if size > limits.max_unpacked_bytes:
                    raise unpacks_too_large(limits.max_unpacked_bytes, _last_name(into))
                if size > RATIO_BYTES and size > MAX_RATIO * packed:
                    fault = f"unpacks to more than {MAX_RATIO} times its size"
                    raise broken(fault, _last_name(into), "Nothing was imported.")
                into.write(chunk)
    except EOFError:
        raise broken("is cut off", _last_name(into)) from None
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise
        raise broken("is damaged", _last_name(into)) from None


def _members(file: BinaryIO) -> Iterator[Member]:
    """Yield the members one after another. Raise InvalidArchive, with the last entry, if the tar is damaged."""
    try:
        yield from read_members(file)
    except DamagedTar as error:
        raise broken(error.what, error.last) from None


def _entry(member: Member, sizes: Sizes) -> Entry | None:
    """Return the entry, or None for a folder. Raise InvalidArchive if the entry is unsafe."""
    path = safe_path(member.name)
    sizes.add(path, member.size if member.kind == FILE else 0)
    if member.kind == FOLDER or not path:
        return None
    if member.kind == SPARSE:
        raise refuse(path, "is a sparse file", "Nothing was imported. Pack it without holes.")
    if member.kind == LINK:
        return Entry(path, 0, False, safe_target(path, member.target), None)
    if member.kind == HARD_LINK:
        # The target of a hard link is a path in the archive.
        target = "../" * path.count("/") + safe_path(member.target)
        return Entry(path, 0, False, safe_target(path, target), None)
    if member.kind != FILE:
        raise refuse(path, "is not a file, folder or link", "Nothing was imported. Leave devices and pipes out.")
    return Entry(path, member.size, bool(member.mode & 0o111), "", member.place)


def _last_name(into: BinaryIO) -> str | None:
    """Return the name of the last entry with a complete header in the content unpacked up to now, or None."""
    last = None
    try:
        for member in _members(into):
            last = member.name
    except InvalidArchive as error:
        return str(error.data.get("entry", "")) or last
    return last


_ZIPS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_GZIP = b"\x1f\x8b"
_USTAR = slice(257, 262)
_OTHERS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "rar",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_HINT = "Send a .zip, .skill, .tar.gz, .tgz or .tar of folders with a SKILL.md."


@contextmanager
def open_archive(file: BinaryIO, limits: ImportLimits, folder: Path, names: str = "") -> Iterator[Archive]:
    """Context manager that opens an archive of any supported format. Blocking.

    A compressed tar is unpacked into a file without a name in `folder`. `names` is the encoding of names in a zip that
    are not UTF-8, or "" to find it. Raise InvalidArchive if the archive is malformed or has an unsafe entry. Raise
    ArchiveTooLarge if the archive exceeds the limits. Both are raised when the context is entered.
    """
    start = _start(file)
    if start.startswith(_ZIPS):
        zipped = ZipArchive(file, limits, names)
        try:
            yield zipped
        finally:
            zipped.close()
    elif start.startswith(_GZIP):
        with unpacked(file, limits, folder) as plain:
            if not _is_tar(_start(plain)):
                raise InvalidArchive("the gzip contains no tar", hint=_HINT)
            yield TarArchive(plain, limits)
    elif _is_tar(start):
        yield TarArchive(file, limits)
    else:
        other = next((name for magic, name in _OTHERS.items() if start.startswith(magic)), None)
        raise InvalidArchive(f"the file is {other or 'no archive'}, expected a zip or a tar", hint=_HINT)


def _start(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read(512)


def _is_tar(start: bytes) -> bool:
    """Return whether a file begins like a tar. An empty tar contains only zeros."""
    return start[_USTAR] == b"ustar" or (len(start) == 512 and not start.strip(b"\x00"))
