"""Where the links in an archive lead to, without a file system: every step is looked up among the entries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice

from skillery.importing.entries import Entry

MAX_STEPS = 40
"""Links that one path may lead through, as on Linux."""


class Tree:
    """All entries of an archive by path, and the folders that they lie in."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.by_path: dict[str, Entry] = {}
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
        """The file at a path, through all links."""
        real = self.real(path)
        return self.by_path.get(real) if real is not None else None

    def below(self, folder: str) -> Iterator[Entry]:
        """Every entry in a folder and in those below it."""
        if not self._sorted:
            self._sorted = sorted(self.by_path)
        prefix = f"{folder}/" if folder else ""
        for path in islice(self._sorted, bisect_left(self._sorted, prefix), None):
            if not path.startswith(prefix):
                return
            yield self.by_path[path]

    def real(self, path: str) -> str | None:
        """The path of the file or folder that one leads to; None where it leads to nothing, or in a circle."""
        todo, done, steps = path.split("/")[::-1], "", 0
        while todo:
            segment = todo.pop()
            if segment in {"", "."}:
                continue
            if segment == "..":
                if not done:
                    return None
                done = done.rpartition("/")[0]
                continue
            here = f"{done}/{segment}" if done else segment
            entry = self.by_path.get(here)
            if entry is None or not entry.target:
                done = here
                continue
            steps += 1
            if steps > MAX_STEPS:
                return None
            todo.extend(entry.target.split("/")[::-1])
        return done if done in self.by_path or self.is_folder(done) else None


def parents(path: str) -> Iterator[str]:
    """`a/b`, `a`, "" of `a/b/c`."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")
