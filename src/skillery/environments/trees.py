"""Trees: unpacked wheels, one folder for each wheel. All environments share their files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from skillery.environments.disk import move_away, rename_into_place

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

    def find(self, hashes: Iterable[str]) -> str | None:
        """Return the key of an existing tree with one of the hashes; None if there is none."""
        keys = (key_of(digest) for digest in sorted(hashes))
        return next((key for key in keys if (self._folder / key).is_dir()), None)

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
        found = {}
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found[folder.name] = self.about(folder.name)
        return found

    def keep(self, staging: Path, key: str) -> None:
        """Rename an unpacked wheel to its key, and replace an existing tree."""
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


def key_of(sha256: str) -> str:
    return f"{sha256.removeprefix('sha256:')}-{sys.implementation.cache_tag}"
