"""Folders of built environments.

The name of a folder contains the SHA-256 of the lock and the interpreter. Each rebuild makes a new folder, with the
next number at the end of its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from skillery.backends import PackageMount
from skillery.environments.builder import METADATA_FILE, PACKAGES, Built
from skillery.environments.trees import move_away, remove

_NAME = re.compile(r"([0-9a-f]{64})-([A-Za-z0-9_-]+)(?:\.([0-9]+))?")


class Installed(NamedTuple):
    """An installed environment of this server."""

    lock: str
    """SHA-256 of the lock."""
    size_bytes: int
    """Size of the packages, including files shared with other environments."""
    used_at: datetime
    folder: Path
    trees: tuple[str, ...]
    own_bytes: int
    """Disk use of the environment without its trees."""
    in_use: bool = False


class Shelf:
    def __init__(self, folder: Path, trash: Path) -> None:
        self._folder = folder
        self._trash = trash
        self._newest: dict[str, Path] = {}

    def find(self, lock: str) -> Path | None:
        """Return the newest folder of a lock, or None if there is none."""
        known = self._newest.get(lock)
        if known is None or not known.is_dir():
            known = max(self._of(lock), key=_number, default=None)
            if known is None:
                self._newest.pop(lock, None)
                return None
            self._newest[lock] = known
        return known

    def _of(self, lock: str) -> list[Path]:
        first = f"{lock}-{sys.implementation.cache_tag}"
        return [path for path in self._folder.glob(f"{first}*") if path.name.partition(".")[0] == first]

    def newest(self, lock: str) -> Installed | None:
        """Return the newest environment of a lock, or None if there is none. Blocking."""
        folder = self.find(lock)
        return next((environment for environment in self._all() if environment.folder == folder), None)

    def next_folder(self, lock: str) -> Path:
        """Return the folder for the next build of a lock. The name of the first folder has no number."""
        there = self._of(lock)
        name = f"{lock}-{sys.implementation.cache_tag}"
        return self._folder / (f"{name}.{max(map(_number, there)) + 1}" if there else name)

    def older(self, lock: str) -> list[Path]:
        """Return all folders of a lock except the newest, and remember the newest."""
        folders = sorted(self._of(lock), key=_number)
        if folders:
            self._newest[lock] = folders[-1]
        return folders[:-1]

    def all(self) -> list[Installed]:
        return list(self._all())

    def _all(self) -> Iterator[Installed]:
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            named = _NAME.fullmatch(folder.name)
            with contextlib.suppress(FileNotFoundError):
                if named is not None:
                    built = self._about(folder)
                    used_at = self.used_at(folder)
                    yield Installed(named[1], built.size_bytes, used_at, folder, built.trees, built.own_bytes)

    def _about(self, folder: Path) -> Built:
        try:
            return msgspec.json.decode((folder / METADATA_FILE).read_bytes(), type=Built)
        except (OSError, msgspec.MsgspecError):  # environment of an earlier release: complete, without shared files
            return Built((), sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))

    def used_at(self, folder: Path) -> datetime:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC)

    def move_away(self, folder: Path) -> Path | None:
        """Move a folder to the trash. Return its new path, or None if the folder does not exist."""
        return move_away(folder, self._trash)

    def drop(self, folder: Path) -> None:
        remove(self.move_away(folder))

    def drop_in_thread(self, folder: Path) -> None:
        """Remove a folder in a new thread. Any thread that releases the last mount of the folder may call this."""
        threading.Thread(target=self.drop, args=(folder,), name="drop-environment").start()

    def tidy(self) -> None:
        """Remove all folders of each lock except the newest. Blocking; called at the start of the server."""
        newest: dict[str, Path] = {}
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            base = folder.name.partition(".")[0]
            other = newest.setdefault(base, folder)
            if other is not folder:
                newest[base], old = (folder, other) if _number(folder) > _number(other) else (other, folder)
                self.drop(old)


def _number(folder: Path) -> int:
    number = folder.name.partition(".")[2]
    return int(number) if number.isdecimal() else 0


# -- Mounts of installed environments ----------------------------------------------------------------------------------
# The folder of an environment stays while a caller holds its mount. If a newer build replaces the environment, the old
# folder is removed after its last mount is released.


USE_RECORD_SECONDS = 600.0


class PackageMounts:
    """The mounts in use, by a run or for a future run."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._used: dict[Path, float] = {}
        """Time when the last use was recorded, by folder."""
        self._mounts: weakref.WeakValueDictionary[Path, PackageMount] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()

    def find(self, sha256: str) -> PackageMount | None:
        """Return the mount of an installed environment, and record the use. Return None if it is not installed."""
        with self._lock:
            folder = self._shelf.find(sha256)
            if folder is None or not self._note_use(folder):
                return None
            mount = self._mounts.get(folder)
            if mount is None:
                mount = self._mounts[folder] = PackageMount(sha256, folder / PACKAGES)
            return mount

    def _note_use(self, folder: Path) -> bool:
        noted = self._used.get(folder)
        if noted is None or time.monotonic() - noted > USE_RECORD_SECONDS:
            try:
                os.utime(folder)
            except FileNotFoundError:
                return False
            self._used[folder] = time.monotonic()
        return True

    def installed(self) -> list[Installed]:
        """Return the environments of this server, most recently used first. Blocking."""
        installed = self._shelf.all()
        with self._lock:
            environments = [
                environment._replace(in_use=environment.folder in self._mounts) for environment in installed
            ]
        return sorted(environments, key=lambda environment: environment.used_at, reverse=True)

    def select_newest(self, sha256: str) -> None:
        """Use the newest folder of a lock from now on. Older folders are removed when no run uses them."""
        with self._lock:
            older = [(folder, self._mounts.get(folder)) for folder in self._shelf.older(sha256)]
        for folder, mount in older:
            if mount is None:
                self._shelf.drop(folder)
            else:  # if the server ends first, the next start removes the folder
                weakref.finalize(mount, self._shelf.drop_in_thread, folder).atexit = False

    def move_away(self, folder: Path, since: datetime | None) -> Path | None:
        """Move a folder to the trash, and return its new path. Return None if the folder is in use, was used after
        `since`, or does not exist.
        """
        with self._lock:
            if folder in self._mounts or (since is not None and not self._is_older(folder, since)):
                return None
            self._used.pop(folder, None)
            return self._shelf.move_away(folder)

    def _is_older(self, folder: Path, since: datetime) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._shelf.used_at(folder) < since
        return False
