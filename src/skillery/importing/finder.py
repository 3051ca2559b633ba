"""Assignment of an archive's files to its skills. Each omitted file is listed with a reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

from skillery.errors import BundleTooLarge, InvalidPath
from skillery.formats.licences import is_licence_file
from skillery.formats.origins import ORIGINS
from skillery.formats.wording import quoted
from skillery.importing.entries import (
    CIRCLE,
    OUTSIDE,
    Entry,
    LeftOut,
    Links,
    Reason,
    Tree,
    gathered,
    hidden,
    is_below,
    is_outside,
    junk,
    parents,
    shown,
)
from skillery.importing.roots import SKILL_MD, SKILL_TOML, Nested, Root, Roots

MOST_LISTED = 50
"""The maximum number of listed files and folders that belong to no skill. Links are always listed."""
MOST_SEARCHED = 50
MOST_FILES = 10_000
"""The maximum number of files to which the links of one skill may lead. No server allows so many files."""


class LocatedSkill(NamedTuple):
    root: str
    """The skill's folder in the archive. "" is the root of the archive."""
    files: dict[str, Entry]
    """The files by path in the skill. Links are replaced by the files that they lead to."""
    renamed: str | None
    """The name of the file that is used as SKILL.md if it is written differently, for example `skill.md`, else None."""
    left_out: tuple[LeftOut, ...]
    problem: InvalidPath | BundleTooLarge | None
    nested: tuple[str, ...] = ()
    """The path of each nested SKILL.md that is imported as a file of this skill."""
    listed: int = 0
    """The number of nested skills that are imported separately, because SKILL.md lists them."""
    licence: Entry | None = None
    """The nearest licence file, in the folder of the skill or above it."""
    origin: Entry | None = None
    """The document with the statements of its origin, which is no file of the skill."""

    @property
    def folder(self) -> str:
        return self.root.rpartition("/")[2]


class Merged(NamedTuple):
    """A path that leads to a skill by a link. The skill is imported under the path `by` instead."""

    path: str
    by: str


class FoundSkills(NamedTuple):
    roots: list[str]
    """The paths of the skills. If several skills state the same name, the skill that keeps the name comes first."""
    left_out: tuple[LeftOut, ...]
    """Files that belong to no skill."""
    other_files: int
    """The number of further files that belong to no skill and are not listed."""
    merged: tuple[Merged, ...] = ()
    searched: tuple[str, ...] = ()
    """If there is no skill: the folders with files, at most MOST_SEARCHED. "" is the root of the archive."""


class Finder:
    """Finds the skills among the entries of one archive."""

    def __init__(
        self,
        entries: Iterable[Entry],
        links: Links = Links(),  # noqa: B008 - it is frozen
        *,
        nested: Nested = "keep",
        read: Callable[[Entry], bytes] | None = None,
    ) -> None:
        """`nested` decides what a nested SKILL.md is. "auto" needs `read`, which returns the content of a file, and may
        raise SkilleryError or OSError.
        """
        self._tree = Tree(entries, links)
        self._roots = Roots(self._tree, nested=nested, read=read)
        self._owned: dict[str, list[str]] = {}
        self._outside: list[str] = []
        self._licences: dict[str, str] = {}
        plain = {path for path, root in self._roots.by_path.items() if root.real == path}
        for path in self._tree.by_path:
            if path in self._roots.followed or is_outside(path) or path.startswith(f"{ORIGINS}/"):
                continue
            if is_licence_file(path):
                folder = path.rpartition("/")[0]
                self._licences[folder] = min(path, self._licences.get(folder, path))
            owner = next((folder for folder in parents(path) if folder in plain), None)
            (self._outside if owner is None else self._owned.setdefault(owner, [])).append(path)

    def skills(self) -> FoundSkills:
        listed, more, others = [], 0, 0
        for reason in gathered(self._why_outside(path) for path in self._outside):
            others += reason.why != "link"
            if reason.why == "link" or others <= MOST_LISTED:
                listed.append(reason)
            else:
                more += reason.files
        roots = self._roots.in_order(self._count_files)
        merged = tuple(itertools.starmap(Merged, sorted(self._roots.merged.items())))
        return FoundSkills(roots, tuple(listed), more, merged, () if roots else self._searched())

    def skill(self, path: str) -> LocatedSkill:
        """Return the skill in the folder `path` of the archive, with its files."""
        root = self._roots.by_path[path]
        marked = self._roots.marked.get(root.real, "")
        renamed = marked if marked not in {"", SKILL_MD} else None
        reading = _Reading(self._tree, root.real, marked)
        for file in self._files_of(path, root):
            reading.add(file)
        nested = (f"{folder}/{self._roots.marked.get(_at(root.real, folder), SKILL_MD)}" for folder in root.nested)
        left_out = tuple(gathered(iter(reading.left)))
        files = reading.files
        nested_files = tuple(file for file in nested if file in files)
        listed = self._roots.listed.get(path, 0)
        licence, origin = self._licence_above(root.real), self._tree.file(f"{ORIGINS}/{path}.json")
        problem = reading.problem
        return LocatedSkill(path, files, renamed, left_out, problem, nested_files, listed, licence, origin)

    def _licence_above(self, folder: str) -> Entry | None:
        nearest = (self._licences[above] for above in parents(f"{folder}/x") if above in self._licences)
        return self._tree.file(next(nearest, OUTSIDE))

    def _files_of(self, path: str, root: Root) -> Iterable[str]:
        if root.real == path:
            return self._owned.get(path, ())
        ends = {root.real, *root.inner}
        below = (entry.path for entry in self._tree.below(root.real))
        return (file for file in below if next(folder for folder in parents(file) if folder in ends) == root.real)

    def _count_files(self, path: str) -> int:
        return sum(1 for _ in self._files_of(path, self._roots.by_path[path]))

    def _why_outside(self, path: str) -> Reason:
        left_behind = junk(path)
        if left_behind:
            return left_behind
        entry = self._tree.by_path[path]
        if entry.target:
            why = self._roots.lost.get(path) or self._tree.why_lost(path) or "leads to no skill"
            return Reason(path, "link", f"the link to {quoted(entry.target)} {why}")
        if path.lower().endswith((".zip", ".skill", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar")):
            return Reason(path, "outside", "an archive inside the archive is not opened: import it separately")
        return Reason(path, "outside", "it belongs to no skill")

    def _searched(self) -> tuple[str, ...]:
        folders = {path.rpartition("/")[0] for path in self._outside if not junk(path)}
        return tuple(shown(folder) for folder in sorted(folders | {""})[:MOST_SEARCHED])


class _Reading:
    """Collects the files of one skill."""

    def __init__(self, tree: Tree, root: str, marked: str) -> None:
        """`marked` is the name of the skill's SKILL.md as written in the archive, or "" if the skill has none."""
        self._tree = tree
        self._root = root
        self._marked = marked
        self._looked_at = itertools.count(1)
        self.files: dict[str, Entry] = {}
        self.left: list[Reason] = []
        self.problem: InvalidPath | BundleTooLarge | None = None

    def add(self, path: str) -> None:
        inside = path[len(self._root) + 1 :] if self._root else path
        reason = junk(inside) or hidden(inside)
        if reason:
            self.left.append(reason)
            return
        if path in self._tree.twice:
            self.problem = _twice(path)
        is_skill_md = inside == self._marked
        name = SKILL_MD if is_skill_md else inside
        entry = self._tree.by_path[path]
        if entry.target:
            self._follow(name, entry, anywhere=is_skill_md)
        else:
            self.files[name] = entry

    def _follow(self, name: str, link: Entry, *, anywhere: bool) -> None:
        """Add the file that a link leads to, or all files of the folder that the link leads to.

        If the link may not be followed, add the link to `left`.
        """
        real = self._tree.real(link.path)
        entry = self._tree.by_path.get(real or "")
        if real is None or not (is_below(real, self._root) or (anywhere and entry is not None)):
            why = "leads to nothing in the skill" if real else self._tree.why_lost(link.path)
            self._leave_out(name, link, why)
        elif entry is not None:
            self.files[name] = entry
        elif is_below(link.path, real):
            self._leave_out(name, link, CIRCLE)
        else:
            self._add_folder(name, real)

    def _add_folder(self, name: str, real: str) -> None:
        for entry in self._tree.below(real):
            if next(self._looked_at) > MOST_FILES:
                self.problem = _too_many(name)
                return
            inside = entry.path[len(real) + 1 :]
            if not (entry.target or junk(inside) or hidden(inside)):
                self.files[f"{name}/{inside}"] = entry

    def _leave_out(self, name: str, link: Entry, why: str) -> None:
        self.left.append(Reason(name, "link", f"the link to {quoted(link.target)} {why}"))


def _at(root: str, folder: str) -> str:
    return f"{root}/{folder}" if root else folder


def _too_many(name: str) -> BundleTooLarge:
    return BundleTooLarge(
        f"the links of the folder, up to {quoted(name)}, lead to more than {MOST_FILES} files",
        hint="Leave the link out.",
        max_files=MOST_FILES,
    )


def _twice(path: str) -> InvalidPath:
    return InvalidPath(
        f"{quoted(path)} is in the archive twice", hint="Pack the folder again.", file=shown(path), entry=shown(path)
    )


__all__ = ["SKILL_MD", "SKILL_TOML", "Finder", "FoundSkills", "LeftOut", "LocatedSkill", "Merged", "Nested"]
