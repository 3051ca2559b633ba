"""Upload of a folder of skills as a tar stream. The stream is built while it is sent, and contains only files of
skills, the licence files above them, and the statements of their origins.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skillery.cli.folder_walk import Policy, walk
from skillery.errors import SkilleryError, StartupError
from skillery.formats.foreign_skill import alias_key, read_foreign_skill
from skillery.formats.lenient_skill_md import read_skill_md
from skillery.formats.licences import MOST_BYTES
from skillery.formats.repairs import Repairs
from skillery.formats.skill_toml import toml_manifest
from skillery.importing.entries import Entry, LeftOut
from skillery.importing.finder import SKILL_MD, SKILL_TOML, Finder, FoundSkills, LocatedSkill, Nested

CHUNK_BYTES = 1024 * 1024


class Override(NamedTuple):
    """A skill that is not sent, because a skill of a later folder overrides it."""

    stated: str
    """The name in its SKILL.md."""
    by: str
    """Path of the overriding skill."""
    is_same: bool
    """Whether the two skills have the same files."""


class Folder(NamedTuple):
    """A scanned folder, and the skills in it."""

    path: Path
    finder: Finder
    scan: FoundSkills
    special: tuple[LeftOut, ...]
    """Pipes, devices, junk folders, and files that cannot be read."""
    overridden: Mapping[str, Override] = {}
    """Skills that are overridden, by the path of the skill in the folder. They are not in `scan` and are not sent."""

    def without(self, overridden: Mapping[str, Override]) -> Folder:
        roots = [root for root in self.scan.roots if root not in overridden]
        return self._replace(scan=self.scan._replace(roots=roots), overridden=overridden)

    def skills(self) -> Iterator[LocatedSkill]:
        return (self.finder.skill(root) for root in self.scan.roots)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Files that belong to no skill."""
        return (*self.special, *self.scan.left_out)


def scan_folder(
    path: Path, imported: Sequence[Path] = (), *, anywhere: bool = False, nested: Nested = "keep"
) -> Folder:
    """Scan a folder for skills. Raise StartupError if the folder cannot be read or is too large.

    A link to a skill is followed if its target is in the same repository, in one of the `imported` folders, or in a
    nearby agent folder (`Policy.allows`). With `anywhere`, every link to a skill is followed. `nested` decides
    what a SKILL.md in the folder of another skill is.
    """
    walked = walk(path, Policy.of([path, *imported], anywhere=anywhere))
    finder = Finder(walked.entries, walked.links, nested=nested, read=_read_entry)
    return Folder(path, finder, finder.skills(), tuple(walked.special))


def fingerprint(path: Path, imported: Sequence[Path] = (), *, anywhere: bool = False) -> str:
    """Return a hash of the names, sizes, modes and times of the files in the folder, to notice changes.

    The arguments have the same meaning as in `scan_folder`. If the folder cannot be scanned, return a text that begins
    with `unreadable`.
    """
    lines = hashlib.sha256()
    try:
        for entry in walk(path, Policy.of([path, *imported], anywhere=anywhere)).entries:
            status = entry.place.lstat()
            lines.update(f"{entry.path!r} {status.st_size} {status.st_mtime_ns} {status.st_mode}\n".encode())
    except (OSError, StartupError):
        return f"unreadable {lines.hexdigest()}"
    return lines.hexdigest()


def _read_entry(entry: Entry) -> bytes:
    with _opened(entry.place) as file:
        return file.read(entry.size)


async def tar_chunks(folder: Folder, dates: Mapping[str, int] = {}) -> AsyncIterator[bytes]:
    """Yield a tar with all skills of the folder, in chunks. The tar contains the target files in place of links.
    `dates` has the time of all files of a skill, by the path of the skill.
    """
    chunks = _tar(folder, dates)
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


def _tar(folder: Folder, dates: Mapping[str, int]) -> Iterator[bytes]:
    """Yield a tar with all skills of the folder, in chunks of about CHUNK_BYTES."""
    buffer = bytearray()
    for part in _parts(folder, dates):
        buffer += part
        if len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


def _parts(folder: Folder, dates: Mapping[str, int]) -> Iterator[bytes]:
    sent: set[str] = set()
    others: dict[str, Entry] = {}
    for skill in folder.skills():
        for name, entry in skill.files.items():
            name = skill.renamed if name == SKILL_MD and skill.renamed else name  # noqa: PLW2901
            path = f"{skill.root}/{name}" if skill.root else name
            sent.add(path)
            yield from _member(path, entry, dates.get(skill.root, 0))
        if skill.licence is not None and skill.licence.size <= MOST_BYTES:
            others[skill.licence.path] = skill.licence
        if skill.origin is not None:
            others[skill.origin.path] = skill.origin
    for path in sorted(others.keys() - sent):
        yield from _member(path, others[path], 0)
    yield b"\0" * 2 * tarfile.BLOCKSIZE


def _member(path: str, entry: Entry, date: int) -> Iterator[bytes]:
    """Yield the tar header and the content of a file."""
    info = tarfile.TarInfo(path)
    info.mode, info.mtime = (0o755 if entry.executable else 0o644), date
    with _opened(entry.place) as file:
        info.size = os.fstat(file.fileno()).st_size
        yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        bytes_left = info.size
        while bytes_left:
            # The size in the header is fixed: a file that shrank is filled with zeros, and bytes appended later are not
            # sent.
            chunk = file.read(min(bytes_left, CHUNK_BYTES)) or b"\0" * min(bytes_left, CHUNK_BYTES)
            bytes_left -= len(chunk)
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


# -- Overrides in one import: a skill of a later folder overrides the skill of the same name in an earlier folder ------
# The folders are those of the command, and the discovery folders in a project folder (Skill Tools 1.0.0 §7).


DISCOVERY = ("skills/", ".opencode/skills/", ".claude/skills/", ".agents/skills/")
"""Discovery folders of agents. A skill in a later folder overrides a skill of the same name in an earlier one."""
_MAX_BYTES = 1024 * 1024
"""Limit of the bytes that are read from a file that states the name of a skill."""


class _Skill(NamedTuple):
    path: str
    """Path of the skill, for reports."""
    located: LocatedSkill
    rank: int
    """Rank of its discovery folder, or -1 if it is in none."""


def override(folders: Sequence[Folder | None], names: Sequence[str], *, discover: bool) -> list[Folder | None]:
    """Return each folder without the skills that a skill of a later folder overrides.

    `names` are the names of the folders: a skill at the root of a folder has this name if it states none. With
    `discover`, the discovery folders in a folder count as folders. None in `folders` stands for an archive, which is
    not scanned.
    """
    ranks = [_discovered(folder) if discover and folder is not None else {} for folder in folders]
    if len(folders) == 1 and not ranks[0]:
        return list(folders)
    later: dict[str, _Skill] = {}
    reduced: list[Folder | None] = []
    for folder, name, own in list(zip(folders, names, ranks, strict=True))[::-1]:
        reduced.append(_without(folder, name, later, own) if folder is not None else None)
    return reduced[::-1]


def _without(folder: Folder, name: str, later: dict[str, _Skill], ranks: Mapping[str, int]) -> Folder:
    """Return the folder without the skills that a skill in `later`, or in a discovery folder with a higher rank,
    overrides. Add the other skills to `later`.
    """
    overridden: dict[str, Override] = {}
    own_skills: dict[str, _Skill] = {}
    discovered: dict[str, _Skill] = {}
    # Skills in discovery folders of high rank come first, because they override the others.
    for root, stated_name in sorted(_stated_names(folder, name).items(), key=lambda pair: -ranks.get(pair[0], -1)):
        skill = _Skill(str(folder.path / root), folder.finder.skill(root), ranks.get(root, -1))
        key = alias_key(stated_name)
        overriding = later.get(key)
        if overriding is None and key in discovered and discovered[key].rank > skill.rank >= 0:
            overriding = discovered[key]
        if overriding is not None:
            overridden[root] = Override(stated_name, overriding.path, _is_same(skill.located, overriding.located))
            continue
        own_skills.setdefault(key, skill)
        if skill.rank >= 0:
            discovered.setdefault(key, skill)
    later |= own_skills
    return folder.without(overridden)


def _discovered(folder: Folder) -> dict[str, int]:
    """Return the rank of the discovery folder of each skill, by the path of the skill. Other skills are omitted.

    If a link leads to a skill, the later folder counts. Return no ranks if the folder is not the project folder of an
    agent: all skills are in `skills/`, or none is in a discovery folder.
    """
    paths = [(root, root) for root in folder.scan.roots]
    paths += [(link.by, link.path) for link in folder.scan.merged if link.by in folder.scan.roots]
    ranks: dict[str, int] = {}
    for root, path in paths:
        for rank, prefix in enumerate(DISCOVERY):
            if path.startswith(prefix):
                ranks[root] = max(rank, ranks.get(root, 0))
    return ranks if any(ranks.values()) else {}


def _is_same(skill: LocatedSkill, other: LocatedSkill) -> bool:
    """Return whether two skills have the same files with the same content."""
    if skill.files.keys() != other.files.keys():
        return False
    pairs = [(entry, other.files[path]) for path, entry in skill.files.items()]
    if any((entry.size, entry.executable) != (twin.size, twin.executable) for entry, twin in pairs):
        return False
    return all(entry.place == twin.place or _bytes(entry.place) == _bytes(twin.place) for entry, twin in pairs)


def overridden_skills(folder: Folder | None) -> list[dict[str, Any]]:
    """Return reports for the skills of a folder that are not sent, in the form of the reports of a server."""
    if folder is None:
        return []
    reports = [
        {"path": root, "outcome": "merged" if skill.is_same else "overridden", "stated": skill.stated, "by": skill.by}
        for root, skill in folder.overridden.items()
    ]
    return reports + [{"path": link.path, "outcome": "merged", "by": link.by or "."} for link in folder.scan.merged]


def add_overridden(report: Mapping[str, Any], unsent: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the report of a server, with the skills that were not sent added to its counts."""
    if "total" in report:
        return {**report, "total": report["total"] + len(unsent)}
    if "counts" in report and unsent:
        counts = Counter(report["counts"]) + Counter(skill["outcome"] for skill in unsent)
        return {**report, "counts": dict(counts)}
    return report


def _stated_names(folder: Folder, name: str) -> dict[str, str]:
    """Return the name that each skill states, by the path of the skill. Skills without a readable name are omitted."""
    roots = folder.scan.roots
    folders = frozenset(root.rpartition("/")[2] for root in roots)
    names = {root: _name(folder.finder.skill(root), name, folders) for root in roots}
    return {root: stated_name for root, stated_name in names.items() if stated_name is not None}


def _name(skill: LocatedSkill, archive_name: str, folders: frozenset[str]) -> str | None:
    """Return the name that a skill states, or None if it states none or its files cannot be read."""
    try:
        if SKILL_TOML in skill.files:
            name = toml_manifest(_content(skill, SKILL_TOML)).get("name")
            return name if isinstance(name, str) else None
        if SKILL_MD not in skill.files:
            return None
        skill_md = read_skill_md(_content(skill, SKILL_MD))
        return read_foreign_skill(skill_md.skill_md, skill.folder or archive_name, folders, Repairs()).stated
    except SkilleryError:
        # The server reports the fault.
        return None


def _content(skill: LocatedSkill, path: str) -> bytes:
    return _bytes(skill.files[path].place, _MAX_BYTES)


def _bytes(place: Path, most: int = -1) -> bytes:
    try:
        with place.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise StartupError(f"cannot read '{place}': {error.strerror}") from None
