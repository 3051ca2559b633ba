"""A folder of skills on its way to a server: what belongs to skills, as a tar that is made while it is sent."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from skillery.errors import StartupError
from skillery.importing.entries import MAX_DEPTH, Entry, shown
from skillery.importing.finding import JUNK_FOLDERS, SKILL_MD, Finder, Found, FoundSkill, LeftOut

CHUNK_BYTES = 1024 * 1024
MOST_FILES = 1_000_000
"""That a folder may hold; far more are no folder of skills."""


class Folder(NamedTuple):
    """A folder as it was when it was looked through."""

    path: Path
    finder: Finder
    found: Found
    special: tuple[LeftOut, ...]
    """Pipes, devices, and what cannot be read."""
    overridden: Mapping[str, tuple[str, str]] = {}
    """By its root what a skill calls itself and where the one lies that counts instead; it is none of `found`."""

    def without(self, overridden: Mapping[str, tuple[str, str]]) -> Folder:
        roots = [root for root in self.found.roots if root not in overridden]
        return self._replace(found=self.found._replace(roots=roots), overridden=overridden)

    def skills(self) -> Iterator[FoundSkill]:
        return (self.finder.skill(root) for root in self.found.roots)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What belongs to no skill."""
        return (*self.special, *self.found.left_out)


def look_through(path: Path) -> Folder:
    """Raises StartupError where it cannot be read."""
    special: list[LeftOut] = []
    try:
        entries = list(_entries(path, special))
    except OSError as error:
        raise StartupError(f"cannot read '{error.filename}': {error.strerror}") from None
    finder = Finder(entries)
    return Folder(path, finder, finder.found(), tuple(special))


def fingerprint(path: Path) -> str:
    """Another one when something in the folder has changed, by names, sizes and times."""
    lines = hashlib.sha256()
    try:
        for entry in _entries(path, []):
            status = (path / entry.path).lstat()
            lines.update(f"{entry.path!r} {status.st_size} {status.st_mtime_ns} {status.st_mode}\n".encode())
    except OSError:
        return f"unreadable {lines.hexdigest()}"
    return lines.hexdigest()


def _entries(root: Path, special: list[LeftOut]) -> Iterator[Entry]:
    waiting = [""]
    count = 0
    while waiting:
        folder = waiting.pop()
        found = sorted(os.scandir(root / folder), key=lambda one: one.name)
        for one in found:
            path = f"{folder}/{one.name}" if folder else one.name
            count += 1
            if count > MOST_FILES or path.count("/") > MAX_DEPTH:
                raise StartupError(f"'{root}' has too many files or folders to be a folder of skills")
            if one.is_dir(follow_symlinks=False):
                if one.name in JUNK_FOLDERS:
                    # Not walked through: it stands for all that is in it.
                    special.append(LeftOut(shown(path), "junk", "left behind by a system or an interpreter"))
                else:
                    waiting.append(path)
                continue
            entry = _entry(root, path, one.stat(follow_symlinks=False))
            if isinstance(entry, LeftOut):
                special.append(entry)
            else:
                yield entry


def _entry(root: Path, path: str, status: os.stat_result) -> Entry | LeftOut:
    full = root / path
    if stat.S_ISLNK(status.st_mode):
        target = str(full.readlink())
        if target.startswith("/"):
            # One that leads back into the folder is as good as a relative one.
            target = "../" * path.count("/") + os.path.relpath(target, root.resolve())
        return Entry(path, 0, False, target, None)
    if not stat.S_ISREG(status.st_mode):
        return LeftOut(shown(path), "special", "no file, folder or link")
    if not os.access(full, os.R_OK):
        return LeftOut(shown(path), "special", "it may not be read")
    return Entry(path, status.st_size, bool(status.st_mode & 0o111), "", full)


async def packed(folder: Folder) -> AsyncIterator[bytes]:
    """A tar of all its skills; what links stand for is in their place."""
    chunks = _tar(folder)
    while chunk := await asyncio.to_thread(next, chunks, None):
        yield chunk


async def file_chunks(path: Path) -> AsyncIterator[bytes]:
    """Raises StartupError where it cannot be read."""
    try:
        with path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise StartupError(f"cannot read '{path}': {error.strerror}") from None


def _tar(folder: Folder) -> Iterator[bytes]:
    """In pieces of about CHUNK_BYTES."""
    gathered = bytearray()
    for part in _parts(folder):
        gathered += part
        if len(gathered) >= CHUNK_BYTES:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


def _parts(folder: Folder) -> Iterator[bytes]:
    for skill in folder.skills():
        for name, entry in skill.files.items():
            name = skill.renamed if name == SKILL_MD and skill.renamed else name  # noqa: PLW2901
            yield from _member(f"{skill.root}/{name}" if skill.root else name, entry)
    yield b"\0" * 2 * tarfile.BLOCKSIZE


def _member(path: str, entry: Entry) -> Iterator[bytes]:
    info = tarfile.TarInfo(path)
    info.mode = 0o755 if entry.executable else 0o644
    with _opened(entry.place) as file:
        info.size = os.fstat(file.fileno()).st_size
        yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        left = info.size
        while left:
            # What has been cut off since is zeros, what has been added is not sent.
            chunk = file.read(min(left, CHUNK_BYTES)) or b"\0" * min(left, CHUNK_BYTES)
            left -= len(chunk)
            yield chunk
    yield b"\0" * (-info.size % tarfile.BLOCKSIZE)


def _opened(path: Path) -> io.BufferedReader:
    """What has become a link or a pipe since it was looked at is neither followed nor waited for."""
    try:
        file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: PTH123, SIM115
    except OSError as error:
        raise StartupError(f"cannot read '{path}': {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise StartupError(f"cannot read '{path}': it is no file any more")
    return file
