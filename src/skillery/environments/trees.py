"""Trees: unpacked packages, one folder for each. All environments share their files."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from skillery.environments.jobs import BuildFailed, too_large
from skillery.environments.wheels import MOST_FILES, ListedFiles, is_left_out
from skillery.formats.requirements import Pin
from skillery.formats.wording import printable

FILES, METADATA_FILE = "files", "tree.json"


class TreeRecord(msgspec.Struct, frozen=True):
    """Metadata of one tree, stored next to its files."""

    package: str
    size_bytes: int
    """Size on the disk."""


class Trees:
    """The trees, named by the SHA-256 in the lock and the interpreter. A folder with such a name is complete."""

    def __init__(self, folder: Path, trash: Path) -> None:
        self._folder = folder
        self._trash = trash
        self._known: dict[str, TreeRecord] = {}

    def find(self, pin: Pin, python: str) -> str | None:
        """Return the key of an existing tree of a package with one of its hashes, or None if there is none. `python` is
        that of `key_of`.

        An author can write the hash of one package next to the name of another. The source of packages then refuses it.
        """
        keys = (key_of(digest, python) for digest in sorted(pin.hashes))
        return next((key for key in keys if (self._folder / key).is_dir() and self._is_of(pin, key)), None)

    def _is_of(self, pin: Pin, key: str) -> bool:
        return self.about(key).package == f"{pin.name} {pin.version}"

    def files(self, key: str) -> Path:
        return self._folder / key / FILES

    def about(self, key: str) -> TreeRecord:
        known = self._known.get(key)
        if known is None:
            known = msgspec.json.decode((self._folder / key / METADATA_FILE).read_bytes(), type=TreeRecord)
            self._known[key] = known
        return known

    def all(self) -> dict[str, TreeRecord]:
        """Return all trees by key."""
        records = {}
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                records[folder.name] = self.about(folder.name)
        return records

    def keep(self, staging: Path, key: str) -> None:
        """Rename an unpacked package to its key, and replace an existing tree."""
        rename_into_place(staging, self._folder / key, self._trash)
        self._known.pop(key, None)

    def is_older(self, key: str, time: float) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / key).stat().st_mtime < time
        return False

    def move_away(self, key: str) -> Path | None:
        """Move a tree to the trash. Environments that share its files keep the files. Return its new path or None."""
        self._known.pop(key, None)
        return move_away(self._folder / key, self._trash)


def key_of(digest: str, python: str) -> str:
    """Return the key of the file with a digest, such as `sha256:…` of a wheel. The files of npm have SHA-512. `python`
    is the version of another Python that the wheel is for, or "".
    """
    algorithm, _, value = digest.rpartition(":")
    tag = f"cpython-{python.replace('.', '')}" if python else sys.implementation.cache_tag
    return f"{value}-{'node' if algorithm == 'sha512' else tag}"


# -- The files of a package, as the sandbox sends them. They become a tree if they match the list of the package -------


LONGEST_HEAD = 16 * 1024
LARGEST_CODE = 64 * 1024 * 1024


class TreeWriter:
    """Writes the files of a package as the sandbox sends them.

    The writer accepts listed files, with the content that the list states (RECORD of a wheel), and compiled code of
    these modules.
    """

    def __init__(self, listed: ListedFiles, staging: Path, max_bytes: int, max_mb: int) -> None:
        self._listed = listed
        self._staging = staging
        self._left = max_bytes
        self._max_mb = max_mb
        self._size = 0
        self._files = 0
        self._seen: set[str] = set()
        self._made: set[str] = set()
        self._streams: dict[str, _Stream] = {}
        make_folder(staging / FILES)

    def take(self, kind: str, piece: bytes) -> None:
        if kind not in self._streams and len(self._streams) >= 64:
            raise self._broken("too many streams")
        self._streams.setdefault(kind, _Stream(self)).take(piece)

    def finish(self) -> TreeRecord:
        """Complete the tree. Raise BuildFailed if a file is missing."""
        if any(stream.is_open for stream in self._streams.values()):
            raise self._broken("an incomplete file")
        missing = next((name for name in self._listed.files if name not in self._seen), None)
        if missing is not None:
            raise BuildFailed(f"{self._listed.package} does not contain its file '{printable(missing, 128)}'")
        tree = TreeRecord(self._listed.package, self._size)
        (self._staging / METADATA_FILE).write_bytes(msgspec.json.encode(tree))
        return tree

    def begin(self, head: bytes) -> tuple[_File | None, int]:
        """Return the file for the next bytes, and their number. The file is None if the bytes must be skipped."""
        try:
            kind, name, size, executable = msgspec.json.decode(head, type=tuple[str, str, int, bool])
        except msgspec.MsgspecError:
            raise self._broken("an invalid head") from None
        if size < 0:
            raise self._broken("a negative size")
        if kind == "file" and is_left_out(name):
            return None, size
        entry = self._listed.files.get(name)
        if entry is None:
            raise BuildFailed(f"{self._listed.package}: '{printable(name, 128)}' is not in its list of files")
        self._count(size)
        if kind == "code":
            return self._code(name, entry.target, size), size
        if kind != "file" or name in self._seen:
            raise BuildFailed(f"{self._listed.package} has '{printable(name, 128)}' twice")
        self._seen.add(name)
        mode = 0o555 if executable else 0o444
        return _File(self._open(entry.target), self._listed.package, name, mode, entry.kind, entry.value), size

    def _code(self, name: str, target: str, size: int) -> _File | None:
        folder, _, file = target.rpartition("/")
        cached = f"{folder}/__pycache__/" if folder else "__pycache__/"
        path = f"{cached}{file.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"
        if not target.endswith(".py") or size > LARGEST_CODE:
            raise self._broken("code without a module")
        return None if target.startswith("bin/") else _File(self._open(path), self._listed.package, name, 0o444, "", "")

    def _count(self, size: int) -> None:
        used = max(BLOCK, on_disk(size))  # an empty file takes an inode
        self._size += used
        self._left -= used
        self._files += 1
        if self._left < 0:
            raise too_large(self._max_mb, self._listed.package)
        if self._files > 2 * MOST_FILES:
            raise BuildFailed(f"{self._listed.package} has more than {MOST_FILES} files and folders")

    def _open(self, target: str) -> BinaryIO:
        path = self._staging / FILES / target
        folder = target.rpartition("/")[0]
        if folder not in self._made:
            for _ in range(make_folder(path.parent)):
                self._count(BLOCK)
            self._made.add(folder)
        try:
            return path.open("xb")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise BuildFailed(f"{self._listed.package} has '{printable(target, 128)}' twice, or as a folder") from None

    def _broken(self, why: str) -> BuildFailed:
        return BuildFailed(f"{self._listed.package} could not be unpacked ({why})")


class _File:
    """A file that is being written and hashed."""

    def __init__(self, file: BinaryIO, package: str, name: str, mode: int, kind: str, value: str) -> None:
        self._file = file
        self._package = package
        self._name = name
        self._mode = mode
        self._hash = hashlib.new(kind) if kind else None
        self._value = value

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        if self._hash is not None:
            self._hash.update(data)

    def close(self) -> None:
        os.fchmod(self._file.fileno(), self._mode)
        self._file.close()
        _value = base64.urlsafe_b64encode(self._hash.digest()).rstrip(b"=").decode() if self._hash else self._value
        if _value != self._value.rstrip("="):
            raise BuildFailed(
                f"{self._package} contains a damaged or changed file: "
                f"'{printable(self._name, 128)}' (the hash differs from the list of files)"
            )


class _Stream:
    """A stream of files. A line before each file states its name and size."""

    def __init__(self, writer: TreeWriter) -> None:
        self._writer = writer
        self._head = b""
        self._file: _File | None = None
        self._left = -1

    @property
    def is_open(self) -> bool:
        return self._left >= 0 or bool(self._head)

    def take(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest or self._left == 0:
            rest = self._content(rest) if self._left >= 0 else self._next(rest)

    def _next(self, rest: memoryview) -> memoryview:
        start = bytes(rest[:LONGEST_HEAD])
        end = start.find(b"\n")
        self._head += start if end < 0 else start[:end]
        if len(self._head) > LONGEST_HEAD:
            raise BuildFailed("a package could not be unpacked (a head that is too long)")
        if end < 0:
            return rest[len(start) :]
        self._file, self._left = self._writer.begin(self._head)
        self._head = b""
        return rest[end + 1 :]

    def _content(self, rest: memoryview) -> memoryview:
        taken = rest[: self._left]
        if self._file is not None:
            self._file.write(taken)
        self._left -= len(taken)
        if self._left == 0:
            if self._file is not None:
                self._file.close()
            self._file, self._left = None, -1
        return rest[len(taken) :]


# -- files and folders on the disk -------------------------------------------------------------------------------------

BLOCK = 4096


def rename_into_place(staging: Path, target: Path, trash: Path) -> None:
    """Flush the folder `staging` to the disk and rename it to `target`, which is complete even after a power failure.

    An older folder at `target` is moved to the trash and removed.
    """
    sync(staging)
    target.parent.mkdir(parents=True, exist_ok=True)
    old = move_away(target, trash)
    staging.rename(target)
    remove(old)


def move_away(folder: Path, trash: Path) -> Path | None:
    """Move a folder to the trash, so that no reader sees a part of it. Return its new path, or None if it does not
    exist.
    """
    moved = trash / secrets.token_hex(16)
    trash.mkdir(parents=True, exist_ok=True)
    try:
        return folder.rename(moved)
    except FileNotFoundError:
        return None


def remove(taken: Path | None) -> None:
    """Remove a folder that was moved to the trash. Blocking; large folders take long."""
    if taken is not None:
        shutil.rmtree(taken, ignore_errors=True)


def sync(folder: Path) -> None:
    """Flush the file system of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")
    except AttributeError:  # system without syncfs
        os.sync()
    finally:
        os.close(descriptor)


def on_disk(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def make_folder(path: Path) -> int:
    """Create a folder and its parents, readable for all users with any umask. Return how many were created."""
    if path.is_dir():
        return 0
    missing = [path]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o755)
    return len(missing)
