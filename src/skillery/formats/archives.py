"""Archives (`.tar.gz` and `.zip`) with bytes that depend only on the files.

Archives are not compressed: the output of a compressor differs between releases of zlib, and published digests would
then be wrong. This module also writes the tar headers itself, because those of Python's `tarfile` have changed between
releases. Because nothing is compressed, the size of an archive is known before any file is read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

Form = Literal["tar.gz", "zip"]
FORMS: tuple[Form, ...] = ("tar.gz", "zip")
MEDIA_TYPES: dict[Form, str] = {"tar.gz": "application/gzip", "zip": "application/zip"}

_BLOCK = 512
_STORED = 0xFFFF
_MTIME = 315_532_800
"""1980-01-01 in UTC, in seconds since 1970: zip has no earlier time, and tar warns about times in 1970."""
_ZIP_MTIME = (1 << 5 | 1) << 16
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


class ArchiveEntry(NamedTuple):
    """One file of an archive: its path, its size in bytes, and whether it is executable."""

    path: str
    size: int
    executable: bool


Read = Callable[[ArchiveEntry], Iterable[bytes]]
"""Function that returns the content of an entry in pieces. `archive` may call the function more than once for an
entry.
"""


def archive(form: Form, entries: Sequence[ArchiveEntry], read: Read) -> Iterator[bytes]:
    """Yield the archive in pieces, without holding a whole file in memory.

    The files are at the root of the archive, sorted by the bytes of their paths. Raise OSError if the content of an
    entry does not have the size of the entry.
    """
    sorted_entries = sorted(entries, key=lambda entry: entry.path.encode())
    return _gzipped(_tar(sorted_entries, read)) if form == "tar.gz" else _zip(sorted_entries, read)


def archive_size(form: Form, entries: Sequence[ArchiveEntry]) -> int:
    """Return the size of the archive in bytes, without reading a file."""
    if form == "zip":
        names = sum(len(entry.path.encode()) for entry in entries)
        return sum(entry.size for entry in entries) + 2 * names + len(entries) * (30 + 46) + 22
    tar = 2 * _BLOCK + sum(len(_tar_header(entry)) + _padded(entry.size) for entry in entries)
    return len(_GZIP_HEADER) + tar + 5 * -(-tar // _STORED) + 8


def fits_plain_tar(path: str) -> bool:
    """Return whether the path fits into a plain tar header, without an extended header that some readers ignore."""
    return _split(path.encode()) is not None


def _exactly(entry: ArchiveEntry, read: Read) -> Iterator[bytes]:
    """Yield the content of an entry. Raise OSError if it does not have the size of the entry."""
    missing_bytes = entry.size
    for piece in read(entry):
        missing_bytes -= len(piece)
        yield piece
    if missing_bytes:
        raise OSError(f"the content of {entry.path} is not {entry.size} bytes long")


# -- tar (POSIX.1-1988, with an extended header of POSIX.1-2001 where a path is too long for that) -------------------


def _tar(entries: Sequence[ArchiveEntry], read: Read) -> Iterator[bytes]:
    for entry in entries:
        yield _tar_header(entry)
        yield from _exactly(entry, read)
        yield b"\0" * (_padded(entry.size) - entry.size)
    yield b"\0" * (2 * _BLOCK)


def _tar_header(entry: ArchiveEntry) -> bytes:
    path = entry.path.encode()
    prefix_and_name = _split(path)
    if prefix_and_name is not None:
        return _ustar(*prefix_and_name, entry.size, _mode(entry), b"0")
    record = _pax_record(b"path", path)
    extended = record + b"\0" * (_padded(len(record)) - len(record))
    header = _ustar(b"", b"././@PaxHeader", len(record), 0o644, b"x")
    return header + extended + _ustar(b"", path[:100], entry.size, _mode(entry), b"0")


def _split(path: bytes) -> tuple[bytes, bytes] | None:
    """Return a path as the header fields prefix and name, or None if it does not fit: they take 155 and 100 bytes."""
    if len(path) <= 100:
        return b"", path
    slashes = (place for place, byte in enumerate(path) if byte == ord("/"))
    return next(
        ((path[:slash], path[slash + 1 :]) for slash in slashes if slash <= 155 and len(path) - slash - 1 <= 100), None
    )


def _ustar(prefix: bytes, name: bytes, size: int, mode: int, kind: bytes) -> bytes:
    """Return a tar header of 512 bytes, with its checksum. All other fields have the same value in each archive."""
    fields = (
        name.ljust(100, b"\0"),
        _octal(mode, 8),
        _octal(0, 8),
        _octal(0, 8),
        _octal(size, 12),
        _octal(_MTIME, 12),
        b" " * 8,
        kind,
        b"\0" * 100,
        b"ustar\x0000",
        b"\0" * 64,
        _octal(0, 8),
        _octal(0, 8),
        prefix.ljust(155, b"\0"),
        b"\0" * 12,
    )
    header = b"".join(fields)
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def _octal(number: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, number)


def _pax_record(key: bytes, value: bytes) -> bytes:
    """Return the bytes `LENGTH key=value` and a line feed. LENGTH counts the whole record with its own digits."""
    size_without_length = len(key) + len(value) + 3
    length = size_without_length + len(str(size_without_length))
    length = size_without_length + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _mode(entry: ArchiveEntry) -> int:
    return 0o755 if entry.executable else 0o644


# -- gzip (RFC 1952), in stored blocks (RFC 1951 §3.2.4) -------------------------------------------------------------


def _gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a gzip file of stored (not compressed) blocks with these bytes."""
    crc, size = 0, 0
    yield _GZIP_HEADER
    buffer = bytearray()
    for piece in pieces:
        crc, size = zlib.crc32(piece, crc), size + len(piece)
        buffer += piece
        # Keep one byte more than a block: only the end of the pieces shows which block is the last.
        while len(buffer) > _STORED:
            yield _stored(bytes(buffer[:_STORED]), is_last=False)
            del buffer[:_STORED]
    yield _stored(bytes(buffer), is_last=True)
    yield struct.pack("<II", crc, size & 0xFFFFFFFF)


def _stored(data: bytes, *, is_last: bool) -> bytes:
    return struct.pack("<BHH", is_last, len(data), len(data) ^ 0xFFFF) + data


# -- zip (APPNOTE 6.3) -----------------------------------------------------------------------------------------------


def _zip(entries: Sequence[ArchiveEntry], read: Read) -> Iterator[bytes]:
    """Yield a zip file of stored (not compressed) entries."""
    directory, offset = bytearray(), 0
    for entry in entries:
        name = entry.path.encode()
        crc = 0
        # The content is read twice: the checksum precedes it in the file.
        for piece in _exactly(entry, read):
            crc = zlib.crc32(piece, crc)
        # 0x0800: the name is UTF-8. Version 2.0, made on Unix.
        common_fields = struct.pack("<HHHIIIIHH", 20, 0x0800, 0, _ZIP_MTIME, crc, entry.size, entry.size, len(name), 0)
        yield b"PK\x03\x04" + common_fields + name
        yield from _exactly(entry, read)
        mode = (0o100000 | _mode(entry)) << 16
        directory += b"PK\x01\x02" + struct.pack("<H", 3 << 8 | 20) + common_fields
        directory += struct.pack("<HHHII", 0, 0, 0, mode, offset) + name
        offset += 30 + len(name) + entry.size
    count = len(entries)
    yield bytes(directory)
    yield b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), offset, 0)
