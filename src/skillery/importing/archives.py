"""Opening of an uploaded archive. The content determines the format; the file name does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from skillery.errors import InvalidArchive
from skillery.importing.entries import Archive, ImportLimits
from skillery.importing.tars import TarArchive, unpacked
from skillery.importing.zips import ZipArchive

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
def open_archive(file: BinaryIO, limits: ImportLimits, folder: Path) -> Iterator[Archive]:
    """Context manager that opens an archive of any supported format. Blocking.

    A compressed tar is unpacked into a file without a name in `folder`. Raise InvalidArchive if the archive is
    malformed or has an unsafe entry. Raise ArchiveTooLarge if the archive exceeds the limits. Both are raised when the
    context is entered.
    """
    start = _start(file)
    if start.startswith(_ZIPS):
        zipped = ZipArchive(file, limits)
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
