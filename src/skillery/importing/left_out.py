"""Files that an import omits, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from skillery.importing.entries import shown

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
