"""Mounts of installed environments.

The folder of an environment stays while a caller holds its mount. If a newer build replaces the environment, the old
folder is removed after its last mount is released.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from datetime import datetime
from pathlib import Path

from skillery.backends import PackageMount
from skillery.environments.builder import PACKAGES
from skillery.environments.folders import Installed, Shelf

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
            found = [one._replace(in_use=one.folder in self._mounts) for one in installed]
        return sorted(found, key=lambda one: one.used_at, reverse=True)

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
