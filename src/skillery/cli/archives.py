"""A folder of skills on its way to a server: what belongs to skills, as a tar that is made while it is sent."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from skillery.cli.folder_walk import Policy, walk
from skillery.errors import StartupError
from skillery.importing.entries import Entry
from skillery.importing.finder import SKILL_MD, Finder, Found, FoundSkill
from skillery.importing.left_out import LeftOut

CHUNK_BYTES = 1024 * 1024


class Counting(NamedTuple):
    """A skill that is not sent, because another one counts instead."""

    stated: str
    by: str
    """Where the other one lies."""
    is_same: bool
    """Whether both have the same files."""


class Folder(NamedTuple):
    """A folder as it was when it was looked through."""

    path: Path
    finder: Finder
    found: Found
    special: tuple[LeftOut, ...]
    """Pipes, devices, and what cannot be read."""
    overridden: Mapping[str, Counting] = {}
    """By their roots the skills that are not sent; they are none of `found`."""

    def without(self, overridden: Mapping[str, Counting]) -> Folder:
        roots = [root for root in self.found.roots if root not in overridden]
        return self._replace(found=self.found._replace(roots=roots), overridden=overridden)

    def skills(self) -> Iterator[FoundSkill]:
        return (self.finder.skill(root) for root in self.found.roots)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What belongs to no skill."""
        return (*self.special, *self.found.left_out)


def look_through(path: Path, imported: Sequence[Path] = (), *, anywhere: bool = False, split: bool = False) -> Folder:
    """Return what a folder holds. Raises StartupError if it cannot be read.

    A link to a skill is followed if it stays in its repository or in one of the `imported` folders, or `anywhere`.
    """
    walked = walk(path, Policy.of([path, *imported], anywhere=anywhere))
    finder = Finder(walked.entries, walked.links, split=split)
    return Folder(path, finder, finder.found(), tuple(walked.special))


def fingerprint(path: Path, imported: Sequence[Path] = (), *, anywhere: bool = False) -> str:
    """Return another text when something in the folder has changed, by names, sizes and times."""
    lines = hashlib.sha256()
    try:
        for entry in walk(path, Policy.of([path, *imported], anywhere=anywhere)).entries:
            status = entry.place.lstat()
            lines.update(f"{entry.path!r} {status.st_size} {status.st_mtime_ns} {status.st_mode}\n".encode())
    except (OSError, StartupError):
        return f"unreadable {lines.hexdigest()}"
    return lines.hexdigest()


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
        raise StartupError(f"cannot read '{path}': it is no longer a regular file")
    return file
