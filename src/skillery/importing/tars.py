"""Tar archives, plain or compressed with gzip.

A compressed tar is first unpacked to a file without a name: then contents can be read in any order, and no file remains
if this process dies. Python's tarfile reads the headers through a wrapper that limits their size. The contents are read
by their offsets.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from skillery.errors import InvalidArchive
from skillery.importing.entries import (
    Entry,
    ImportLimits,
    Sizes,
    broken,
    refuse,
    safe_path,
    safe_target,
    unpacks_too_large,
)
from skillery.importing.zips import MAX_RATIO

CHUNK_BYTES = 1024 * 1024
MAX_HEADER_BYTES = 256 * 1024
"""The maximum number of bytes of a name or an extended header. tarfile reads each of them as a whole."""
MAX_HEADERS_BYTES = 2 * MAX_HEADER_BYTES
"""The maximum number of bytes of all headers of one entry. An entry may have several, and tarfile reads all of them
first.
"""
RATIO_BYTES = 64 * 1024 * 1024
_BLOCK = 512
_WORDS = frozenset(tarfile.PAX_FIELDS)


class TarArchive:
    def __init__(self, file: BinaryIO, limits: ImportLimits) -> None:
        """Read and check all headers. The caller closes the file.

        Raise InvalidArchive if the archive is malformed or has an unsafe entry, and ArchiveTooLarge if it exceeds the
        limits.
        """
        self._fd = file.fileno()
        sizes = Sizes(limits)
        self.entries: Sequence[Entry] = [
            entry for member in members(file) if (entry := _entry(member, sizes)) is not None
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
                    what = f"unpacks to more than {MAX_RATIO} times its size"
                    raise broken(what, _last_name(into), "Nothing was imported.")
                into.write(chunk)
    except EOFError:
        raise broken("is cut off", _last_name(into)) from None
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise
        raise broken("is damaged", _last_name(into)) from None


def members(file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Yield the members one after another, without collecting them. Raise InvalidArchive if the tar is damaged."""
    size = file.seek(0, 2)
    file.seek(0)
    last: str | None = None
    headers, end = _Headers(file), 0
    try:
        with tarfile.open(fileobj=cast(BinaryIO, headers), mode="r:", errors="surrogateescape") as tar:
            while (member := tar.next()) is not None:
                _forget(tar)
                headers.next_entry()
                last = member.name
                if member.size < 0 or tar.offset <= end:
                    raise broken("is damaged: an entry has a negative size", last)
                end = tar.offset
                if (member.isreg() and member.offset_data + member.size > size) or end - _BLOCK >= size:
                    raise broken("is cut off", last)
                yield member
            end = tar.offset
    except (tarfile.TarError, EOFError, ValueError, OverflowError, IndexError, RecursionError) as error:
        raise broken(f"is not a readable tar ({type(error).__name__})", last) from None
    file.seek(end)
    # tarfile treats an unreadable header and a truncated file like the end of the archive. Check for the real end.
    block = file.read(_BLOCK)
    if len(block) < _BLOCK or block.strip(b"\x00"):
        raise broken("is damaged" if block.strip(b"\x00") else "is cut off", last)


def _forget(tar: tarfile.TarFile) -> None:
    """Drop the data that tarfile collects: all members, and unknown words of the global headers."""
    tar.members.clear()  # type: ignore[attr-defined]
    for_all = cast(dict[str, str], tar.pax_headers)
    for word in for_all.keys() - _WORDS:
        del for_all[word]


def _entry(member: tarfile.TarInfo, sizes: Sizes) -> Entry | None:
    """Return the entry, or None for a folder. Raise InvalidArchive if the entry is unsafe."""
    path = safe_path(member.name)
    sizes.add(path, member.size if member.isreg() else 0)
    if member.isdir() or not path:
        return None
    if member.issparse():
        raise refuse(path, "is a sparse file", "Nothing was imported. Pack it without holes.")
    if member.issym():
        return Entry(path, 0, False, safe_target(path, member.linkname), None)
    if member.islnk():
        # The target of a hard link is a path in the archive.
        target = "../" * path.count("/") + safe_path(member.linkname)
        return Entry(path, 0, False, safe_target(path, target), None)
    if not member.isreg():
        raise refuse(path, "is not a file, folder or link", "Nothing was imported. Leave devices and pipes out.")
    return Entry(path, member.size, bool(member.mode & 0o111), "", member.offset_data)


def _last_name(into: BinaryIO) -> str | None:
    """Return the name of the last entry with a complete header in the content unpacked up to now, or None."""
    last = None
    try:
        for member in members(into):
            last = member.name
    except InvalidArchive as error:
        return str(error.data.get("entry", "")) or last
    return last


class _Headers:
    """The file that tarfile reads, with a limit on each read and on the headers of one entry."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MAX_HEADERS_BYTES
        self.tell = file.tell
        self.seek = file.seek
        self.name = ""
        self.mode = "rb"

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > MAX_HEADER_BYTES:
            raise broken(f"has a header of more than {MAX_HEADER_BYTES} bytes", None)
        self._left -= size
        if self._left < 0:
            raise broken(f"has headers of more than {MAX_HEADERS_BYTES} bytes for one entry", None)
        return self._file.read(size)

    def next_entry(self) -> None:
        self._left = MAX_HEADERS_BYTES

    def close(self) -> None:
        """Do nothing, because the caller owns the file."""
