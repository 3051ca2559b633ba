"""Upload of a folder of skills as a tar stream. The stream is built while it is sent, and contains only files of
skills.
"""

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
from skillery.importing.entries import Entry, LeftOut
from skillery.importing.finder import SKILL_MD, Finder, FoundSkills, LocatedSkill

CHUNK_BYTES = 1024 * 1024


class Override(NamedTuple):
    """A skill that is not sent, because a skill of a later folder overrides it. `stated` is the name that the skill
    states.
    """

    stated: str
    by: str
    """Path of the overriding skill."""
    is_same: bool
    """Whether the two skills have the same files."""


class Folder(NamedTuple):
    """A scanned folder, and the skills in it."""

    path: Path
    finder: Finder
    found: FoundSkills
    special: tuple[LeftOut, ...]
    """Pipes, devices, junk folders, and files that cannot be read."""
    overridden: Mapping[str, Override] = {}
    """Skills that are overridden, by the path of the skill in the folder. They are not in `found` and are not sent."""

    def without(self, overridden: Mapping[str, Override]) -> Folder:
        roots = [root for root in self.found.roots if root not in overridden]
        return self._replace(found=self.found._replace(roots=roots), overridden=overridden)

    def skills(self) -> Iterator[LocatedSkill]:
        return (self.finder.skill(root) for root in self.found.roots)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Files that belong to no skill."""
        return (*self.special, *self.found.left_out)


def scan_folder(path: Path, imported: Sequence[Path] = (), *, anywhere: bool = False, split: bool = False) -> Folder:
    """Scan a folder for skills. Raise StartupError if the folder cannot be read or is too large.

    A link to a skill is followed if its target is in the same repository, in one of the `imported` folders, or in a
    nearby agent folder (`Policy.allows`). With `anywhere`, every link to a skill is followed. With `split`, a SKILL.md
    in the folder of another skill is a separate skill.
    """
    walked = walk(path, Policy.of([path, *imported], anywhere=anywhere))
    finder = Finder(walked.entries, walked.links, split=split)
    return Folder(path, finder, finder.found(), tuple(walked.special))


def fingerprint(path: Path, imported: Sequence[Path] = (), *, anywhere: bool = False) -> str:
    """Return a hash of the names, sizes, modes and times of the files in the folder, to notice changes.

    The arguments are the same as in `scan_folder`. If the folder cannot be scanned, return a text that begins with
    `unreadable`.
    """
    lines = hashlib.sha256()
    try:
        for entry in walk(path, Policy.of([path, *imported], anywhere=anywhere)).entries:
            status = entry.place.lstat()
            lines.update(f"{entry.path!r} {status.st_size} {status.st_mtime_ns} {status.st_mode}\n".encode())
    except (OSError, StartupError):
        return f"unreadable {lines.hexdigest()}"
    return lines.hexdigest()


async def tar_chunks(folder: Folder) -> AsyncIterator[bytes]:
    """Yield a tar with all skills of the folder, in chunks. The tar contains the target files in place of links."""
    chunks = _tar(folder)
    while chunk := await asyncio.to_thread(next, chunks, None):
        yield chunk


async def file_chunks(path: Path) -> AsyncIterator[bytes]:
    """Yield the content of a file in chunks. Raise StartupError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise StartupError(f"cannot read '{path}': {error.strerror}") from None


def _tar(folder: Folder) -> Iterator[bytes]:
    """Yield a tar with all skills of the folder, in chunks of about CHUNK_BYTES."""
    buffer = bytearray()
    for part in _parts(folder):
        buffer += part
        if len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


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
            # The size in the header is fixed: a file that shrank is filled with zeros, and bytes appended later are not
            # sent.
            chunk = file.read(min(left, CHUNK_BYTES)) or b"\0" * min(left, CHUNK_BYTES)
            left -= len(chunk)
            yield chunk
    yield b"\0" * (-info.size % tarfile.BLOCKSIZE)


def _opened(path: Path) -> io.BufferedReader:
    """Open a regular file. Raise StartupError if the file cannot be read or is not a regular file.

    After the scan, a link or a pipe may have replaced the file. Therefore, links are not followed and opening does not
    block.
    """
    try:
        file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: PTH123, SIM115
    except OSError as error:
        raise StartupError(f"cannot read '{path}': {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise StartupError(f"cannot read '{path}': it is no longer a regular file")
    return file
