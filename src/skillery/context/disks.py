"""Folders of this server that must have room: for the cache, the packages and an embedded database."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from shutil import disk_usage

log = logging.getLogger(__name__)
PROBE_BYTES = 64 * 1024
LOG_EVERY_SECONDS = 60.0


class Disks:
    """The folders by name. All methods block."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._logged_at = float("-inf")

    def check(self, name: str) -> None:
        """Raise OSError if a file of PROBE_BYTES cannot be written to a folder. Pass if there is no such name."""
        if name in self._folders:
            check_folder(self._folders[name])

    def measure(self) -> dict[str, tuple[int, int]]:
        """Return the free bytes and the size of the disk of each folder that exists."""
        usages = {name: disk_usage(path) for name, path in self._folders.items() if path.is_dir()}
        return {name: (usage.free, usage.total) for name, usage in usages.items()}

    def watch(self) -> None:
        """Log the folders that cannot be written, in one line a minute."""
        if time.monotonic() - self._logged_at < LOG_EVERY_SECONDS:
            return
        failing = [text for name, path in self._folders.items() if (text := _failure(name, path))]
        if failing:
            self._logged_at = time.monotonic()
            log.error("folders cannot be written, so publishing and runs fail: %s", "; ".join(failing))


def check_folder(folder: Path) -> None:
    """Write and delete a file of PROBE_BYTES in a folder, which is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".probe.{secrets.token_hex(8)}"
    try:
        path.write_bytes(bytes(PROBE_BYTES))
    finally:
        path.unlink(missing_ok=True)


def _failure(name: str, folder: Path) -> str:
    try:
        check_folder(folder)
    except OSError as error:
        return f"{name} ({folder}): {error.strerror}"
    return ""
