"""The files of a workspace that is saved: listed, hashed and sent by a process without code of the run."""

from __future__ import annotations

import json
import os
import stat
from importlib import import_module

from . import _gathering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cellblock.runtime import _host, _wire
else:
    from . import _host, _wire

ONLY_FOLDERS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_DEPTH = 64
MOST_NAMED = 100
PATH_BYTES = 1024
PIECE = 1 << 20
LARGE = 1 << 20
"""From this size on, the faster `hashlib` is worth its import."""


def small_sha256() -> Any:
    """Return the function of the interpreter itself: Python 3.12 and later, or 3.11. Some systems build neither.

    Not hashlib: every fork of the zygote would copy the page table of its large library.
    """
    for name in ("_sha2", "_sha256"):
        try:
            return import_module(name).sha256
        except ImportError:
            continue
    return import_module("hashlib").sha256


sha256 = small_sha256()
NOTHING: str = sha256().hexdigest()


class Listing:
    """The entries of a workspace, and the names of what cannot be saved."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self.entries: list[tuple[str, str, str, int, int, str]] = []
        self.left_out: list[str] = []

    def walk(self, folder: int, below: str = "", depth: int = 1) -> None:
        """Add all entries of the open folder. No symbolic link is followed."""
        for name in sorted(os.listdir(folder)):
            path = f"{below}{name}"
            if not self._fits(path) or not self._add(folder, name, path, depth):
                self.leave_out(path)

    def leave_out(self, path: str) -> None:
        if len(self.left_out) < MOST_NAMED:
            self.left_out.append(ascii(path)[1:-1])

    def _fits(self, path: str) -> bool:
        """Return whether the path is UTF-8 text without control characters, of at most PATH_BYTES bytes."""
        try:
            return len(path.encode()) <= PATH_BYTES and not any(c < " " or "\x7f" <= c < "\xa0" for c in path)
        except UnicodeEncodeError:
            return False

    def _add(self, folder: int, name: str, path: str, depth: int) -> bool:
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(seen.st_mode):
            return self._add_file(folder, name, path, seen)
        if stat.S_ISDIR(seen.st_mode) and depth < MOST_DEPTH:
            self._add_folder(folder, name, path, seen, depth)
            return True
        if stat.S_ISLNK(seen.st_mode):
            return self._add_link(os.readlink(name, dir_fd=folder), path)
        return False

    def _add_folder(self, folder: int, name: str, path: str, seen: os.stat_result, depth: int) -> None:
        if seen.st_mode & 0o500 != 0o500:
            os.chmod(name, 0o700, dir_fd=folder)
        before = len(self.entries)
        descriptor = os.open(name, ONLY_FOLDERS, dir_fd=folder)
        try:
            self.walk(descriptor, f"{path}/", depth + 1)
        finally:
            os.close(descriptor)
        if len(self.entries) == before:
            self.entries.append((path, "040000", NOTHING, 0, 0, ""))

    def _add_link(self, target: str, path: str) -> bool:
        try:
            content = target.encode()
        except UnicodeEncodeError:
            return False
        self.entries.append((path, "120000", sha256(content).hexdigest(), 0, 0, target))
        return True

    def _add_file(self, folder: int, name: str, path: str, seen: os.stat_result) -> bool:
        # A sparse file can be larger than all that a workspace may have.
        if seen.st_size > self._left:
            return False
        if not seen.st_mode & 0o400:
            os.chmod(name, 0o600, dir_fd=folder)
        digest, size = hashed(folder, name, seen.st_size)
        self._left -= size
        mode = "100755" if seen.st_mode & 0o100 else "100644"
        self.entries.append((path, mode, digest, size, seen.st_mtime_ns, ""))
        return True


BUFFER = memoryview(bytearray(64 * 1024))
"""One buffer for all reads. A new buffer for each would cost page faults, a larger one leaves the cache."""


def hashed(folder: int, name: str, most: int) -> tuple[str, int]:
    """Return digest and size of a file that has `most` bytes. No process changes it any more."""
    descriptor = os.open(name, _gathering.ONLY_FILES, dir_fd=folder)
    digest, size = (sha256() if most < LARGE else import_module("hashlib").sha256()), 0
    try:
        while size < most and (count := os.readv(descriptor, [BUFFER])):
            digest.update(BUFFER[:count])
            size += count
    finally:
        os.close(descriptor)
    return digest.hexdigest(), size


def save(path: str, order: dict[str, Any]) -> None:
    """Send the list of the files, then the contents that the host needs."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listing = Listing(order["most_bytes"])
    listing.walk(root)
    listed = json.dumps({"files": listing.entries, "left_out": listing.left_out}).encode()
    answer = _host.ask("workspace", body=listed)
    needed = [listing.entries[position] for position in json.loads(answer)]
    with _host.alone() as channel:
        _wire.write_all(channel, _wire.packed({"op": "workspace_contents"}, sum(entry[3] for entry in needed)))
        for entry in needed:
            send_file(channel, root, entry[0], entry[3])
        _wire.receive(channel)


def send_file(channel: int, root: int, path: str, size: int) -> None:
    """Send exactly `size` bytes of a file. Raise EOFError if it has fewer."""
    descriptor = os.open(path, _gathering.ONLY_FILES, dir_fd=root)
    try:
        while size:
            piece = os.read(descriptor, min(PIECE, size))
            if not piece:
                raise EOFError
            size -= len(piece)
            _wire.write_all(channel, piece)
    finally:
        os.close(descriptor)
