"""The manifest of a snapshot: the list of its files, and its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skillery.backends import KeptFile
from skillery.errors import InvalidPath
from skillery.formats.wording import quoted

PATH_BYTES = 1024
"""The maximum length of a path in UTF-8."""
_decoder = msgspec.json.Decoder(tuple[KeptFile, ...])


class Manifest(NamedTuple):
    """The entries of a snapshot, sorted by path: files, links and empty folders."""

    files: tuple[KeptFile, ...]

    @property
    def digest(self) -> str:
        """The SHA-256 over one line for each entry, computed as for a bundle. It does not cover modification times."""
        hasher = hashlib.sha256()
        for file in self.files:
            hasher.update(f"{file.mode} {file.sha256} {file.path}\n".encode())
        return f"sha256:{hasher.hexdigest()}"

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def content(self) -> bytes:
        """The manifest as JSON, in which it is stored."""
        return msgspec.json.encode(self.files)

    @property
    def contents(self) -> dict[str, int]:
        """The size in bytes of each content that a file has, by digest."""
        return {file.sha256: file.size_bytes for file in self.files if file.is_file}

    def changes_since(self, before: Manifest) -> int:
        """Return the number of paths that were added, changed or removed since the manifest `before`."""
        entries_before, entries_now = (
            {(file.path, file.mode, file.sha256) for file in manifest.files} for manifest in (before, self)
        )
        return len({path for path, _, _ in entries_before ^ entries_now})

    def find(self, path: str) -> KeptFile | None:
        """Return the entry of a path, or None if there is no such entry."""
        return next((file for file in self.files if file.path == path), None)


EMPTY = Manifest(())


def make_manifest(files: Sequence[KeptFile]) -> Manifest:
    """Return the manifest of entries in any order.

    Raise InvalidPath if a path is invalid, occurs twice, or is also a folder of another path.
    """
    ordered = tuple(sorted(files, key=lambda file: file.path.encode()))
    paths = {file.path for file in ordered}
    folders = {path.rpartition("/")[0] for path in paths if "/" in path}
    folders |= {"/".join(path.split("/")[:depth]) for path in paths for depth in range(1, path.count("/"))}
    for file in ordered:
        if not _is_plain(file.path) or (file.path in folders):
            raise InvalidPath(f"the path {quoted(file.path[:200])} cannot be kept in a workspace")
    if len(paths) != len(ordered):
        raise InvalidPath("a path occurs twice in the workspace")
    return Manifest(ordered)


def _is_plain(path: str) -> bool:
    """Return whether a path has no control characters, no empty, `.` or `..` segment, and at most PATH_BYTES."""
    segments = path.split("/")
    has_control = any(letter < " " or "\x7f" <= letter < "\xa0" for letter in path)
    return not has_control and len(path.encode()) <= PATH_BYTES and not {"", ".", ".."}.intersection(segments)


def read_manifest(content: bytes) -> Manifest:
    """Return the manifest from its stored form."""
    return Manifest(_decoder.decode(content))
