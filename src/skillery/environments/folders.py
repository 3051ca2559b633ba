"""The folders of built environments: named by the SHA-256 of their lock, the interpreter that they are for, and a
number that grows where one was built anew."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from skillery.environments.builder import ABOUT, Built
from skillery.environments.trees import remove, take_away

_NAME = re.compile(r"([0-9a-f]{64})-([A-Za-z0-9_-]+)(?:\.([0-9]+))?")


class Installed(NamedTuple):
    """One environment of this server."""

    lock: str
    """The SHA-256 of it."""
    size_bytes: int
    """Of its packages, those included that others have as well."""
    used_at: datetime
    folder: Path
    trees: tuple[str, ...]
    own_bytes: int
    """What it takes beside its trees."""
    in_use: bool = False


class Shelf:
    def __init__(self, folder: Path, away: Path) -> None:
        self._folder = folder
        self._away = away
        self._found: dict[str, Path] = {}

    def find(self, lock: str) -> Path | None:
        """The newest one."""
        known = self._found.get(lock)
        if known is None or not known.is_dir():
            known = max(self._of(lock), key=_number, default=None)
            if known is None:
                self._found.pop(lock, None)
                return None
            self._found[lock] = known
        return known

    def _of(self, lock: str) -> list[Path]:
        first = f"{lock}-{sys.implementation.cache_tag}"
        return [path for path in self._folder.glob(f"{first}*") if path.name.partition(".")[0] == first]

    def newest(self, lock: str) -> Installed | None:
        """Blocking: what `find` finds."""
        folder = self.find(lock)
        return next((one for one in self._all() if one.folder == folder), None)

    def next_folder(self, lock: str) -> Path:
        """Where the next one goes; the first has no number, so that nothing is counted where nothing was built anew."""
        there = self._of(lock)
        name = f"{lock}-{sys.implementation.cache_tag}"
        return self._folder / (f"{name}.{max(map(_number, there)) + 1}" if there else name)

    def older(self, lock: str) -> list[Path]:
        """All but the newest, which from now on is the one."""
        found = sorted(self._of(lock), key=_number)
        if found:
            self._found[lock] = found[-1]
        return found[:-1]

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
            return msgspec.json.decode((folder / ABOUT).read_bytes(), type=Built)
        except (OSError, msgspec.MsgspecError):  # of an earlier release: whole, and with files of its own
            return Built((), sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))

    def used_at(self, folder: Path) -> datetime:
        return datetime.fromtimestamp(folder.stat().st_mtime, UTC)

    def take_away(self, folder: Path) -> Path | None:
        """Where it is now, to be removed; None where it has gone already."""
        return take_away(folder, self._away)

    def drop(self, folder: Path) -> None:
        remove(self.take_away(folder))

    def drop_soon(self, folder: Path) -> None:
        """From wherever the last one who had it has let it go."""
        threading.Thread(target=self.drop, args=(folder,), name="drop-environment").start()

    def tidy(self) -> None:
        """Blocking, at the start: of each lock the newest stays."""
        newest: dict[str, Path] = {}
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            base = folder.name.partition(".")[0]
            other = newest.setdefault(base, folder)
            if other is not folder:
                newest[base], old = (folder, other) if _number(folder) > _number(other) else (other, folder)
                self.drop(old)


def _number(folder: Path) -> int:
    number = folder.name.partition(".")[2]
    return int(number) if number.isdigit() else 0
