"""Resolution of the links in an archive: each step is looked up among the entries, not in a file system."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from skillery.importing.entries import Entry

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
