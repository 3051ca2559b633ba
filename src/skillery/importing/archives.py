"""Opening of an uploaded archive. The content determines the format; the file name does not matter."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from skillery.errors import InvalidArchive
from skillery.formats.tars import FILE, FOLDER, HARD_LINK, LINK, SPARSE, DamagedTar, Member, read_members
from skillery.importing.entries import (
    MIB,
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

# -- Tar archives, plain or compressed ---------------------------------------------------------------------------------
# A tar that is compressed with gzip, bzip2 or xz is first unpacked to a file without a name: then contents can be read
# in any order, and no file remains if this process dies. The contents are read by their offsets.


CHUNK_BYTES = 1024 * 1024
RATIO_BYTES = 64 * 1024 * 1024
XZ_BYTES = 80 * 1024 * 1024
"""The maximum memory for one xz file. The highest level of xz needs 65 MiB, and a header can ask for 4 GiB."""
STREAM_BYTES = 64 * 1024
MOST_STREAMS = 10_000
"""The maximum number of streams of a bzip2 or xz file: pbzip2 writes one for each 900 KB."""


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
    """Return the content of a compressed file as a file without a name in `folder`. The caller closes the result.

    Raise InvalidArchive if the file is damaged or expands suspiciously much, and ArchiveTooLarge if the content
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
        for chunk in _chunks(file):
            size += len(chunk)
            if size > limits.max_unpacked_bytes:
                raise unpacks_too_large(limits.max_unpacked_bytes, _last_name(into))
            if size > RATIO_BYTES and size > MAX_RATIO * packed:
                fault = f"unpacks to more than {MAX_RATIO} times its size"
                raise broken(fault, _last_name(into), "Nothing was imported.")
            into.write(chunk)
    except EOFError:
        raise broken("is cut off", _last_name(into)) from None
    except lzma.LZMAError as error:
        is_large = "memory" in str(error).lower()
        fault = f"needs more than {XZ_BYTES // MIB} MiB of memory to unpack" if is_large else "is damaged"
        raise broken(fault, _last_name(into)) from None
    except (OSError, zlib.error) as error:
        # bz2 raises OSError without a number for damaged data. An error of the disk has a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise broken("is damaged", _last_name(into)) from None


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a compressed file. Raise EOFError if the file is cut off."""
    start = _start(file)
    file.seek(0)
    if start.startswith(_BZIP2):
        yield from _streams(file, bz2.BZ2Decompressor)
    elif start.startswith(_XZ):
        yield from _streams(file, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=XZ_BYTES))
    else:
        with gzip.GzipFile(fileobj=file, mode="rb") as content:
            # read1 also returns the content before a cut, which names the last entry. read would raise instead.
            while chunk := content.read1(CHUNK_BYTES):
                yield chunk


def _streams(file: BinaryIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> Iterator[bytes]:
    """Yield the content of all streams of a bzip2 or xz file. Parallel compressors write many streams."""
    data = file.read(STREAM_BYTES)
    for _ in range(MOST_STREAMS):
        stream = new()
        while not stream.eof:
            yield stream.decompress(data, CHUNK_BYTES)
            if stream.eof:
                break
            data = file.read(STREAM_BYTES) if stream.needs_input else b""
            if stream.needs_input and not data:
                raise EOFError
        data = (stream.unused_data or file.read(STREAM_BYTES)).lstrip(b"\0")
        if not data:
            return
    raise broken(
        f"has more than {MOST_STREAMS} compressed streams", None, "Nothing was imported. Pack it in one stream."
    )


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
    return Entry(path, member.size, bool(member.mode & 0o111), "", member.place, time=member.time)


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
_GZIP, _BZIP2, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
_USTAR = slice(257, 262)
_OTHERS = {
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "rar",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_HINT = "Send a .zip, .skill, .tar.gz, .tar.xz, .tar.bz2 or .tar of folders with a SKILL.md."


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
    elif start.startswith((_GZIP, _BZIP2, _XZ)):
        with unpacked(file, limits, folder) as plain:
            if not _is_tar(_start(plain)):
                raise InvalidArchive("the compressed file contains no tar", hint=_HINT)
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
