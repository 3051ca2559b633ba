"""Wheels: the file list of a wheel (RECORD), and the paths to which its files are installed.

The host reads the list from a file whose hash it has verified. It reads no other content of a wheel.
"""

from __future__ import annotations

import csv
import errno
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from skillery.environments.jobs import BuildFailed
from skillery.formats.requirements import Pin
from skillery.formats.wording import printable

MOST_FILES = 50_000
MOST_ENTRIES = 2 * MOST_FILES
MOST_DIRECTORY_BYTES = 64 * 1024 * 1024
MOST_RECORD_BYTES = 32 * 1024 * 1024
LONGEST_ROW = 8 * 1024
ENTRY = b"PK\1\2"
ZIP64_END = 56 + 20
"""Size of a record and its locator, before the end of the directory."""
LONGEST_PATH, LONGEST_NAME = 1_000, 255
_RECORD = re.compile(r"([^/]+)-([^/-]+)\.dist-info/RECORD")
_SIGNED = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s"})
"""Files of a `.dist-info` folder without a hash in RECORD. RECORD cannot contain its own hash."""
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    csv.Error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
    OverflowError,
)
_PLAIN = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_PLACES = {"purelib": "", "platlib": "", "data": "", "scripts": "bin/"}


class ListedFile(NamedTuple):
    """A file of a package: its target path and its hash. Files without a hash in the list have ""."""

    target: str
    kind: str
    value: str


class ListedFiles(NamedTuple):
    """The files that the archive of a package may have."""

    package: str
    files: Mapping[str, ListedFile]
    """Files by their names in the archive."""


class NpmFiles(Mapping[str, ListedFile]):
    """The files of an npm package, which has no list of files. The lock has the hash of the whole archive.

    Every file at a safe path is accepted, and `package.json` must be there. Another path raises BuildFailed.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def __getitem__(self, name: str) -> ListedFile:
        if not _is_safe(name):
            raise BuildFailed(f"{self._package} has '{printable(name, 128)}', which is outside its folder")
        return ListedFile(name, "", "")

    def __iter__(self) -> Iterator[str]:
        yield "package.json"

    def __len__(self) -> int:
        return 1


def read_wheel(path: Path, pin: Pin) -> ListedFiles:
    """Return the file list of a wheel. Blocking.

    Raise BuildFailed if the file is not a wheel of this package, or if its list is incomplete or has unsafe names.
    """
    package = f"{pin.name} {pin.version}"
    try:
        with path.open("rb") as file:
            _check_directory(file, package)
            with zipfile.ZipFile(file) as archive:
                return ListedFiles(package, dict(_recorded(archive, pin, package)))
    except _DAMAGED:
        raise BuildFailed(f"{package} is not a valid wheel") from None
    except OSError as error:
        if error.errno not in {None, errno.EINVAL}:  # an invalid offset in the file
            raise
        raise BuildFailed(f"{package} is not a valid wheel") from None


def _recorded(archive: zipfile.ZipFile, pin: Pin, package: str) -> Iterator[tuple[str, ListedFile]]:
    lists = [match for name in archive.namelist() if (match := _RECORD.fullmatch(name))]
    if len(lists) != 1:
        raise BuildFailed(f"{package} has no list of its files")
    if not _is_of(pin, lists[0][1], lists[0][2]):
        raise BuildFailed(f"{package} is a wheel of another package, '{printable(lists[0][1], 100)}'")
    data = f"{lists[0][1]}-{lists[0][2]}.data/"
    targets: dict[str, str] = {}
    for name, kind, value in _rows(archive, lists[0][0], package):
        target = _target(name, data, lists[0][1], package)
        if targets.setdefault(target, name) != name:
            raise BuildFailed(f"{package} lists two files for '{printable(target, 128)}'")
        yield name, ListedFile(target, kind, value)


def _is_of(pin: Pin, name: str, version: str) -> bool:
    try:
        return canonicalize_name(name) == pin.name and Version(version) == Version(pin.version)
    except InvalidVersion:
        return False


def _rows(archive: zipfile.ZipFile, name: str, package: str) -> Iterator[tuple[str, str, str]]:
    if archive.getinfo(name).compress_type not in _PLAIN:
        raise BuildFailed(f"{package} has a list of files with an unsupported compression")
    with archive.open(name) as file:
        content = file.read(MOST_RECORD_BYTES + 1)
    if len(content) > MOST_RECORD_BYTES:
        raise BuildFailed(f"{package} has a list of files of more than {MOST_RECORD_BYTES} bytes")
    folder = name.rpartition("/")[0]
    for number, line in enumerate(io.StringIO(content.decode())):
        if number >= MOST_ENTRIES or len(line) > LONGEST_ROW:
            raise BuildFailed(f"{package} has a list of more than {MOST_ENTRIES} files, or lines that are too long")
        row = next(csv.reader([line]), None)
        if not row:
            continue
        path, hashed = row[0], row[1] if len(row) > 1 else ""
        kind, _, value = hashed.partition("=")
        if is_left_out(path):
            continue
        of_list = path.rpartition("/")[0] == folder and path.rpartition("/")[2] in _SIGNED
        if not of_list and (kind not in {"sha256", "sha384", "sha512"} or not value):
            raise BuildFailed(f"{package} has no hash for its file '{printable(path, 128)}'")
        yield path, ("" if of_list else kind), value


def is_left_out(name: str) -> bool:
    """Return whether a file is skipped. Compiled code in a wheel is not trusted, so the source is compiled again."""
    return name.endswith(".pyc") and "__pycache__" in name.split("/")


def _target(name: str, data: str, distribution: str, package: str) -> str:
    target = name
    if name.startswith(data):
        kind, _, rest = name.removeprefix(data).partition("/")
        places = _PLACES | {"headers": f"include/{distribution}/"}
        if kind not in places or not rest:
            raise BuildFailed(f"{package} lists '{printable(name, 128)}', which has no known target folder")
        target = places[kind] + rest
    if not _is_safe(target):
        raise BuildFailed(f"{package} lists '{printable(name, 128)}', which is outside its folder or not a file name")
    return target


def _is_safe(path: str) -> bool:
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or len(path.encode("utf-8", "replace")) > LONGEST_PATH:
        return False
    return all(part not in {"", ".", ".."} and len(part.encode("utf-8", "replace")) <= LONGEST_NAME for part in parts)


def _check_directory(file: BinaryIO, package: str) -> None:
    """Check the directory of an archive before it is read: a small archive can list millions of files."""
    size = file.seek(0, io.SEEK_END)
    start = file.seek(max(0, size - 22 - 65_535))
    tail = file.read()
    at = len(tail) - 22
    if at < 0 or tail[at : at + 4] != b"PK\5\6" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < 22:
        raise zipfile.BadZipFile
    entries, directory = struct.unpack_from("<HL", tail, at + 10)
    end = start + at
    if end >= ZIP64_END:
        file.seek(end - ZIP64_END)
        further = file.read(ZIP64_END)
        if further[56:60] == b"PK\6\7":  # `zipfile` uses this record and ignores the end record
            (offset,) = struct.unpack_from("<Q", further, 64)
            if further[:4] != b"PK\6\6" or offset != end - ZIP64_END:
                raise zipfile.BadZipFile
            end -= ZIP64_END
            entries, directory = struct.unpack_from("<QQ", further, 32)
    if directory <= min(end, MOST_DIRECTORY_BYTES):  # the number of entries is only claimed, and `zipfile` ignores it
        file.seek(end - directory)
        entries = max(entries, file.read(directory).count(ENTRY))
    if entries > MOST_ENTRIES or directory > MOST_DIRECTORY_BYTES:
        raise BuildFailed(f"{package} has {entries} files, but at most {MOST_FILES} are allowed")
    file.seek(0)
