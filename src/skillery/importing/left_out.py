"""Files that an import leaves out, with the reasons."""

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
    """A file or link that is not imported, or a folder with `files` of them.

    `path` is relative to the skill. For files of no skill it is relative to the archive.
    """

    path: str
    why: Why
    message: str
    files: int = 1


class Reason(NamedTuple):
    """One file that is left out. `path` is the topmost folder that is left out with it."""

    path: str
    why: Why
    message: str


def junk(path: str) -> Reason | None:
    """Return why a path is junk, or None: systems and interpreters leave such files behind."""
    segments = path.split("/")
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if segment in (JUNK_FILES if is_last else JUNK_FOLDERS) or segment.startswith("._"):
            return Reason("/".join(segments[: number + 1]), "junk", _JUNK)
    return Reason(path, "junk", _JUNK) if path.endswith(".pyc") else None


def hidden(path: str) -> Reason | None:
    """Return why a path of a skill is hidden, or None: one of its segments begins with a dot."""
    segments = path.split("/")
    for number, segment in enumerate(segments):
        if segment.startswith("."):
            message = "begins with a dot: a published secret cannot be withdrawn"
            return Reason("/".join(segments[: number + 1]), "hidden", message)
    return None


def gathered(reasons: Iterator[Reason]) -> Iterator[LeftOut]:
    """Yield each folder once, with the number of its files that are left out."""
    for (path, why, message), files in Counter(reasons).items():
        yield LeftOut(shown(path), why, message, files)
