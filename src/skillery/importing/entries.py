"""The entries of an archive, all with safe paths, and access to their contents."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from skillery.errors import ArchiveTooLarge, InvalidArchive
from skillery.formats.wording import has_surrogate, quoted

MIB = 1024 * 1024
MAX_PATH = 4096
MAX_DEPTH = 64
_DRIVE = re.compile(r"[A-Za-z]:")


class ImportLimits(msgspec.Struct, frozen=True):
    """Limits for one archive. They are checked before any file of the archive is read."""

    max_bytes: int = 1024 * MIB
    """The maximum number of bytes of the archive as sent, before decompression."""
    max_unpacked_bytes: int = 4096 * MIB
    max_entries: int = 100_000


class Entry(NamedTuple):
    """A file, or a link if `target` is not "". Folders are not entries."""

    path: str
    size: int
    executable: bool
    target: str
    place: Any
    """Position of the content in the archive. The type depends on the format."""
    encoding: str = ""
    """The encoding in which the path was read, if the archive does not state it."""
    has_mode: bool = True
    """False if the archive does not say whether files are executable."""
    time: int = 0
    """When the file was changed, in seconds since 1970, or 0 if that is unknown."""


class Archive(Protocol):
    """An open archive with checked entries.

    No path or link target is outside of the archive, no entry is a device, and all entries together are within the
    limits.
    """

    entries: Sequence[Entry]

    def read(self, entry: Entry) -> bytes:
        """Return the content of a file. Any thread may call this. Raise InvalidArchive, with the path, if the
        content is damaged.
        """
        ...

    def close(self) -> None: ...


def refuse(path: str, subject: str, hint: str = "Nothing was imported. Pack the folder again.") -> InvalidArchive:
    """Return the error for an archive with an unsafe entry `path`. `subject` is a clause after the path."""
    return InvalidArchive(f"the entry {quoted(path, 200)} {subject}", hint=hint, entry=shown(path))


def broken(subject: str, last: str | None, hint: str = "Nothing was imported. Send it again.") -> InvalidArchive:
    """Return the error for an archive that is damaged at or after the entry `last` (None: at an unknown place)."""
    where = f" at or after the entry {quoted(last, 200)}" if last else ""
    return InvalidArchive(f"the archive {subject}{where}", hint=hint, **({"entry": shown(last)} if last else {}))


def safe_path(name: str) -> str:
    """Return the path of an entry, or "" for the root of the archive.

    Raise InvalidArchive if the path is absolute, has a segment `..`, is too long or contains a NUL.
    """
    if "\x00" in name:
        raise refuse(name, "has a NUL in its name")
    path = name.replace("\\", "/")
    if path.startswith("/") or _DRIVE.match(path):
        raise refuse(name, "has an absolute path")
    if len(path) > MAX_PATH or path.count("/") > MAX_DEPTH:
        raise refuse(name, f"has a path of more than {MAX_PATH} characters or {MAX_DEPTH} folders")
    if ".." in path.split("/"):
        raise refuse(name, "has a path with '..', which is outside of the archive")
    return "/".join(segment for segment in decoded(path).split("/") if segment not in {"", "."})


def decoded(name: str) -> str:
    """Return the name. If its bytes are not UTF-8, decode them as Latin-1, which has a character for every byte."""
    if not has_surrogate(name):
        return name
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def safe_target(path: str, target: str) -> str:
    """Return the target of the link at `path` as written.

    Raise InvalidArchive if the target is outside of the archive, is too long or is invalid.
    """
    target = decoded(target)
    if not target or "\x00" in target:
        raise refuse(path, "is a link without a valid target")
    if len(target) > MAX_PATH or target.count("/") > 2 * MAX_DEPTH:
        raise refuse(path, "is a link whose target is too long")
    if target.startswith(("/", "\\")) or _DRIVE.match(target):
        raise refuse(path, f"is a link to the absolute path {quoted(target)}")
    if posixpath.normpath(posixpath.join(posixpath.dirname(path), target)).split("/")[0] == "..":
        raise refuse(path, f"is a link to a target outside of the archive: {quoted(target)}")
    return target


class Sizes:
    """Counts entries and bytes of an archive. `add` raises ArchiveTooLarge, with the entry, if a limit is exceeded."""

    def __init__(self, limits: ImportLimits) -> None:
        self._limits = limits
        self.entries = 0
        self.size = 0

    def add(self, path: str, size: int) -> None:
        self.entries += 1
        self.size += size
        if self.entries > self._limits.max_entries:
            raise too_many(self._limits.max_entries, path)
        if self.size > self._limits.max_unpacked_bytes:
            raise unpacks_too_large(self._limits.max_unpacked_bytes, path)


def too_many(most: int, path: str | None = None) -> ArchiveTooLarge:
    return ArchiveTooLarge(
        f"the archive has more than {most} entries",
        hint="Nothing was imported. Split the archive, or ask an admin to raise the setting imports.max_entries.",
        max_entries=most,
        **({"entry": shown(path)} if path else {}),
    )


def unpacks_too_large(most: int, path: str | None) -> ArchiveTooLarge:
    where = f" with the entry {quoted(path, 200)}" if path else ""
    return ArchiveTooLarge(
        f"the archive unpacks to more than {most} bytes{where}",
        hint="Nothing was imported. Split the archive, or ask an admin to raise the setting imports.max_unpacked_mb.",
        max_unpacked_bytes=most,
        **({"entry": shown(path)} if path else {}),
    )


def shown(path: str) -> str:
    """Return a path for a field of an answer: cut, and without lone surrogates."""
    return path[:300].encode("utf-8", "replace").decode()


JUNK_FOLDERS = frozenset(
    {"__MACOSX", "__pycache__", "node_modules", ".git", ".hg", ".svn", ".Trashes", ".Spotlight-V100"}
)
JUNK_FILES = frozenset({".DS_Store", "Thumbs.db", "desktop.ini", "Icon\r"})
_JUNK = "left behind by a system or an interpreter"
Why = Literal["junk", "hidden", "link", "special", "outside"]


class LeftOut(msgspec.Struct, frozen=True):
    """A file or link that is not imported, or a folder with `files` such files.

    `path` is relative to the skill. If the file belongs to no skill, `path` is relative to the archive.
    """

    path: str
    why: Why
    message: str
    files: int = 1


class Reason(NamedTuple):
    """The reason why one file is omitted. `path` is the topmost omitted folder above the file, or the file itself."""

    path: str
    why: Why
    message: str


def junk(path: str) -> Reason | None:
    """Return the reason if a path is junk (a file that a system or an interpreter left behind), else None."""
    segments = path.split("/")
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if segment in (JUNK_FILES if is_last else JUNK_FOLDERS) or segment.startswith("._"):
            return Reason("/".join(segments[: number + 1]), "junk", _JUNK)
    return Reason(path, "junk", _JUNK) if path.endswith(".pyc") else None


def hidden(path: str) -> Reason | None:
    """Return the reason if a path of a skill is hidden (a segment begins with a dot), else None."""
    segments = path.split("/")
    for number, segment in enumerate(segments):
        if segment.startswith("."):
            message = "begins with a dot: a published secret cannot be withdrawn"
            return Reason("/".join(segments[: number + 1]), "hidden", message)
    return None


def gathered(reasons: Iterator[Reason]) -> Iterator[LeftOut]:
    """Yield each omitted file or folder once, with the number of its files."""
    for (path, why, message), files in Counter(reasons).items():
        yield LeftOut(shown(path), why, message, files)


# -- Resolution of the links in an archive: each step is looked up among the entries, not in a file system -------------


MAX_STEPS = 40
"""The maximum number of links that the resolution of one path may follow, as on Linux."""
OUTSIDE = "\0"
"""First character of the paths of entries outside of the imported folder. No file can have such a name."""
CIRCLE = "leads in a circle"
OUT = "leads out of the imported folder"
NOTHING = "leads to nothing"


class Links(NamedTuple):
    """The links of a local folder, resolved by the file system. Empty for archives, which are resolved by their
    entries.
    """

    leads: Mapping[str, str] = {}
    """The path of a link's target among the entries, by the path of the link."""
    lost: Mapping[str, str] = {}
    """The reason why a link is not followed, by the path of the link."""


class Tree:
    """All entries of an archive by path, and their folders."""

    def __init__(self, entries: Iterable[Entry], links: Links = Links()) -> None:  # noqa: B008 - it is frozen
        self.by_path: dict[str, Entry] = {}
        self.links = links
        self.twice: dict[str, list[Entry]] = {}
        self._folders: set[str] = {""}
        self._sorted: list[str] = []
        for entry in entries:
            if entry.path in self.by_path:
                self.twice.setdefault(entry.path, []).append(entry)
                continue
            self.by_path[entry.path] = entry
            for folder in parents(entry.path):
                if folder in self._folders:
                    break
                self._folders.add(folder)

    def is_folder(self, path: str) -> bool:
        return path in self._folders

    def file(self, path: str) -> Entry | None:
        """Return the file at a path after all links are followed, or None if there is no file."""
        real = self.real(path)
        return self.by_path.get(real) if real is not None else None

    def below(self, folder: str) -> Iterator[Entry]:
        """Yield every entry in a folder and in the folders below."""
        if not self._sorted:
            self._sorted = sorted(self.by_path)
        prefix = f"{folder}/" if folder else ""
        for path in islice(self._sorted, bisect_left(self._sorted, prefix), None):
            if not path.startswith(prefix):
                return
            yield self.by_path[path]

    def real(self, path: str) -> str | None:
        """Return the path of the file or folder that `path` leads to, or None if `path` leads to no entry."""
        return self._walk(path)[0]

    def why_lost(self, path: str) -> str:
        """Return the reason why a link leads to no file or folder of the archive."""
        return self.links.lost.get(path) or self._walk(path)[1]

    def _walk(self, path: str) -> tuple[str | None, str]:
        """Return the path that `path` leads to and "", or None and the reason if it leads nowhere."""
        todo, done, steps = path.split("/")[::-1], "", 0
        while todo:
            segment = todo.pop()
            if segment in {"", "."}:
                continue
            if segment == "..":
                if not done:
                    return None, OUT
                done = done.rpartition("/")[0]
                continue
            done = f"{done}/{segment}" if done else segment
            entry = self.by_path.get(done)
            if entry is None or not entry.target:
                continue
            steps += 1
            if steps > MAX_STEPS:
                return None, CIRCLE
            done = self._step(done, entry.target, todo)
        return (done, "") if done in self.by_path or self.is_folder(done) else (None, NOTHING)

    def _step(self, link: str, target: str, todo: list[str]) -> str:
        """Follow one link, and return the path from which the walk continues.

        If the file system has resolved the link, this is the path of its target. Otherwise it is the folder of the
        link, and the segments of the target are added to `todo`.
        """
        lead = self.links.leads.get(link)
        if lead is not None:
            return lead
        todo.extend(target.split("/")[::-1])
        return link.rpartition("/")[0]


def parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, nearest first: `a/b`, `a`, "" for `a/b/c`."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def is_outside(path: str) -> bool:
    """Return whether an entry is outside of the imported folder. Only links lead to such entries."""
    return path.startswith(OUTSIDE)
