"""Folders and files of a job as trees: a list of entries with digests, and the digest of this list.

A server sends the digest of each tree with a job. A node that does not have the tree in its cache requests it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from skillery_ray.wire import PIECE

MOST_KNOWN = 4096
CONTENT = "content"
"""The path of the only entry of a tree that stands for one file."""
_LOCK_LENGTH = 64

Signature = tuple[Any, ...]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A file, an empty folder or a symbolic link of a tree."""

    path: str
    mode: Literal["100644", "100755", "040000", "120000"]
    sha256: str = ""
    size_bytes: int = 0
    mtime_ns: int = 0
    """The time of the last change, so that compiled Python files stay valid. The digest does not contain it."""
    target: str = ""

    @property
    def is_file(self) -> bool:
        return self.mode.startswith("100")


class Tree(msgspec.Struct, frozen=True):
    """The entries of a folder or file on this computer."""

    root: Path
    entries: tuple[Entry, ...]
    digest: str

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield the contents of all files in order, in pieces that contain bytes of one file only. Blocking."""
        is_file = self.root.is_file()
        for entry in self.entries:
            if not entry.is_file:
                continue
            with (self.root if is_file else self.root / entry.path).open("rb") as file:
                while piece := file.read(PIECE):
                    yield piece


def digest_of(entries: tuple[Entry, ...]) -> str:
    """Return the SHA-256 of a tree in hex: of one line for each entry, sorted by path."""
    lines = sorted(f"{entry.mode} {entry.sha256 or entry.target} {entry.path}\n" for entry in entries)
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


class Trees:
    """The trees of the folders and files that this server has sent. Blocking: several threads may call it."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Signature, Tree]] = OrderedDict()

    def of_folder(self, folder: Path, lock: str = "") -> Tree:
        """Return the tree of a folder. A folder with the packages of a lock never changes, so it is read only once."""
        if len(lock) == _LOCK_LENGTH:
            return self._of(folder, (lock,))
        return self._of(folder, tuple(_signatures(folder)))

    def of_file(self, file: Path) -> Tree:
        status = file.stat()
        return self._of(file, (status.st_size, status.st_mtime_ns, status.st_ino))

    def _of(self, root: Path, signature: Signature) -> Tree:
        """Return the tree of a folder or file. If the signature is that of the cached tree, nothing is read."""
        key = str(root)
        cached = self._known.get(key)
        if cached is not None and cached[0] == signature:
            return cached[1]
        entries = (_entry(root, CONTENT),) if root.is_file() else tuple(_entries(root))
        tree = Tree(root, entries, digest_of(entries))
        self._known[key] = (signature, tree)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return tree


def _signatures(folder: Path) -> Iterator[tuple[str, int, int, int, int]]:
    for path, status in _walk(folder, ""):
        yield path, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino


def _walk(folder: Path, below: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all files, links and empty folders, in the order of their names. Nothing else can be part of a tree."""
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    if not entries and below:
        yield below, folder.stat()
    for entry in entries:
        path = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), path)
        elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
            yield path, entry.stat(follow_symlinks=False)


def _entries(folder: Path) -> Iterator[Entry]:
    for path, status in _walk(folder, ""):
        if stat.S_ISDIR(status.st_mode):
            yield Entry(path, "040000")
        elif stat.S_ISLNK(status.st_mode):
            yield Entry(path, "120000", target=str((folder / path).readlink()))
        else:
            yield _entry(folder / path, path)


def _entry(file: Path, path: str) -> Entry:
    status = file.stat()
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Entry(path, "100755" if status.st_mode & 0o100 else "100644", digest, status.st_size, status.st_mtime_ns)
