"""Folders of built environments.

The name of a folder contains the SHA-256 of the lock and the interpreter. Each rebuild makes a new folder, with the
next number at the end of its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from skillery.backends import PackageMount
from skillery.environments.jobs import BuildFailed
from skillery.environments.trees import BLOCK, make_folder, move_away, on_disk, remove
from skillery.formats.npm import NpmPackage
from skillery.formats.package_json import MODULES
from skillery.formats.requirements import LeftOut
from skillery.formats.wording import printable

PACKAGES, METADATA_FILE = "packages", "environment.json"
_NAME = re.compile(r"([0-9a-f]{64})-([A-Za-z0-9_-]+)(?:\.([0-9]+))?")


class Built(msgspec.Struct, frozen=True):
    """Metadata of an environment, stored next to its packages."""

    trees: tuple[str, ...]
    size_bytes: int
    left_out: tuple[LeftOut, ...] = ()
    """The inferred packages that could not be installed."""
    own_bytes: int = 0
    """Disk use of the environment that the trees do not include: folders, and copies if the disk does not support
    links.
    """


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
                is_python = (folder / PACKAGES).is_dir()
                packages = folder / (PACKAGES if is_python else MODULES)
                mount = PackageMount(sha256, packages, "python" if is_python else "node")
                self._mounts[folder] = mount
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


# -- Hard links to the files of trees, and the commands of npm packages ----------------------------------------------


BIN = ".bin"


def link_npm(packages: Mapping[str, tuple[NpmPackage, Path]], target: Path) -> int:
    """Link the trees of npm packages to their paths below `target`, and write the commands of the packages at the top.
    Return the disk use of folders, copies and commands. Blocking.
    """
    size = make_folder(target) * BLOCK
    for path in sorted(packages):  # a package comes before the packages in its folder
        package, tree = packages[path]
        try:
            size += link([tree], target / path)
        except NotADirectoryError:
            raise _clash(path) from None
        for name, file in package.bin.items() if "/node_modules/" not in path else ():
            size += make_folder(target / BIN) * BLOCK + BLOCK
            program = f'exec node "$(dirname "$0")"/../{shlex.quote(f"{path}/{file}")} "$@"\n'
            command = target / BIN / name
            if not command.exists():
                command.write_text(f"#!/bin/sh\n{program}", "utf-8")
                command.chmod(0o555)
    return size


def link(trees: Iterable[Path], target: Path) -> int:
    """Link the files of all trees into the folder `target`. Return the disk use of its folders and copies. Blocking.

    If two trees have a file of the same name, the file and its compiled code come from the first tree.
    """
    size = 0
    owners: dict[str, int] = {}
    make_folder(target)
    for number, tree in enumerate(trees):
        for folder, names in _walk(tree):
            if folder and _make_new_folder(target / folder):
                size += BLOCK
            for name in names:
                path = f"{folder}/{name}" if folder else name
                source = _source_of(path)
                if owners.setdefault(source, number) != number or owners.setdefault(path, number) != number:
                    continue
                if not _link(tree / path, target / path):
                    size += on_disk((target / path).stat().st_size)
    return size


def _source_of(path: str) -> str:
    """Return the module of a file with compiled code; for any other file, return its path."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(".pyc") or not (folder == "__pycache__" or folder.endswith("/__pycache__")):
        return path
    above = folder.removesuffix("__pycache__")
    return f"{above}{name.removesuffix(f'.{sys.implementation.cache_tag}.pyc')}.py"


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder, relative to the root, with its files. A folder comes before its subfolders."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        names = []
        with os.scandir(root / folder) as entries:
            below = []
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                below.append(path) if entry.is_dir(follow_symlinks=False) else names.append(entry.name)
        waiting += below
        yield folder, names


def _make_new_folder(path: Path) -> bool:
    """Create a folder. Return False if it exists."""
    try:
        path.mkdir()
        path.chmod(0o755)
    except FileExistsError:
        if not path.is_dir():
            raise _clash(path.name) from None
        return False
    return True


def _link(source: Path, target: Path) -> bool:
    """Link a file. If the disk does not support links, copy the file and return False."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise _clash(target.name) from None
    except OSError as error:
        if error.errno is None or target.exists():
            raise
        shutil.copy2(source, target)
        return False
    return True


def _clash(name: str) -> BuildFailed:
    return BuildFailed(f"two packages have '{printable(name, 128)}', one as a file, one as a folder")
