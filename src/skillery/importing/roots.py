"""The folders of an archive that are skills, and the links that lead to skills.

A folder with a SKILL.md or a skill.toml is a skill. A SKILL.md below a skill's folder is nested: it is a file of that
skill, unless its folder is `…/skills/NAME`, nested skills are split off, or the SKILL.md above lists its nested skills.
A link to a skill's folder is another path to that skill. If a link leads to a folder with a SKILL.md that is not a
skill (nested, junk, or outside of the imported folder), the first such link makes the folder a skill.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Literal, NamedTuple

from skillery.errors import SkilleryError
from skillery.formats.texts import normalized
from skillery.importing.entries import CIRCLE, Entry, Tree, is_below, is_outside, junk, parents

SKILL_MD = "SKILL.md"
SKILL_TOML = "skill.toml"
AGENTS = (".agents", ".claude", ".opencode")
"""Agent folders, in the order in which their skills get a name. Other agent folders follow, sorted by path."""
SECOND_CHOICE = frozenset({"docs", "i18n", "plugins", "preview", "archive", "examples"})
"""Folders with translations, copies and samples. Of skills with the same name, a skill outside of them keeps the
name."""
SAMPLES = frozenset({"assets", "examples", "fixtures", "templates"})
"""Folders in which a nested SKILL.md is always a file of the skill above, unless all nested skills are split off."""
Nested = Literal["auto", "keep", "split"]
"""What a nested SKILL.md is: a file of the skill above ("keep"), a separate skill ("split"), or a separate skill if the
SKILL.md above lists its nested skills ("auto")."""
FEWEST_LISTED = 3
SHARE_LISTED = 0.6
MAX_LIST_BYTES = 1024 * 1024
"""A larger SKILL.md is not searched for the names of nested skills."""
_WORD = re.compile(r"\w[\w.-]*")
MOST_STEPS = 100_000
"""The maximum number of skills and links that are visited while links are followed. Further links are not followed."""
TOO_MANY = f"is one of links that together lead to more than {MOST_STEPS} skills"


class Root(NamedTuple):
    """A skill. `real` is the folder with its files. If the path of the skill is a link, `real` is the target of the
    link.
    """

    real: str
    inner: frozenset[str] = frozenset()
    """Folders below `real` that are separate skills."""
    nested: tuple[str, ...] = ()
    """Folders of nested skills, relative to the skill."""


class Roots:
    """Determines the skills of one archive. `by_path` has the skills by path."""

    def __init__(self, tree: Tree, *, nested: Nested = "keep", read: Callable[[Entry], bytes] | None = None) -> None:
        self._tree = tree
        self._nested = nested
        self._read = read
        self.listed: dict[str, int] = {}
        """The number of nested skills that SKILL.md lists and that are separate skills, by the path of the skill."""
        self.marked = _marks(tree)
        self._folders = sorted(self.marked)
        self._links = sorted(path for path, entry in tree.by_path.items() if entry.target)
        self._stands_for = dict(self._single_links())
        self._steps = 0
        self._words_of: dict[str, set[str]] = {}
        """The result of `_words_in` by folder: many links can lead to one folder."""
        self.by_path = self._plain()
        self._by_real = {root: root for root in self.by_path}
        self.merged: dict[str, str] = {}
        """The path of a skill behind a link, mapped to the path under which the skill is imported."""
        self.followed: set[str] = set()
        self.lost: dict[str, str] = {}
        """The reason why a link is not followed, by the path of the link."""
        for link in sorted(self._links, key=lambda link: rank_of(f"{link}/x")):
            self._follow(link)

    def in_order(self, files: Callable[[str], int]) -> list[str]:
        """Return the paths of the skills. If several skills state the same name, the skill that keeps the name comes
        first: the one with the lowest rank, then the one with the most files. `files` returns the number of files of a
        skill.
        """
        ranks = {path: rank_of(path) for path in self.by_path}
        for path, root in self.merged.items():
            ranks[root] = min(ranks[root], rank_of(path))
        return sorted(self.by_path, key=lambda path: (ranks[path][0], -files(path), _bytes(path)))

    # -- folders -----------------------------------------------------------------------------------------------------

    def _plain(self) -> dict[str, Root]:
        """Return the skills that are found without links."""
        own = {
            folder: name
            for folder, name in self.marked.items()
            if folder not in self._stands_for and not is_outside(folder) and not junk(f"{folder}/{SKILL_MD}")
        }
        chosen, nested = self._choose(own)
        return {root: Root(root, nested=tuple(nested.get(root, ()))) for root in chosen}

    def _choose(
        self, marked: Mapping[str, str], reals: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[set[str], dict[str, list[str]]]:
        """Return the folders that are skills, and the nested folders by the skill that contains them as files. `reals`
        has the real folder of each path behind a link.
        """
        separate = {folder for folder in marked if self._nested == "split" or is_in_skills(folder)}
        roots, nested = _divide(marked, separate)
        judged: set[str] = set()
        while self._nested == "auto" and not judged.issuperset(nested):
            for above in nested.keys() - judged:
                # A skill in a nested skill is nested in that one, once both are split off.
                below = set(nested[above])
                direct = [folder for folder in nested[above] if below.isdisjoint(parents(folder))]
                folders = [folder for folder in direct if not _is_sample(folder)]
                if len(folders) >= FEWEST_LISTED and self._lists(reals.get(above, above), folders):
                    separate.update(f"{above}/{folder}" if above else folder for folder in folders)
                    self.listed[above] = len(folders)
                judged.add(above)
            roots, nested = _divide(marked, separate)
        return roots, nested

    def _lists(self, real: str, folders: Sequence[str]) -> bool:
        """Return whether the SKILL.md in the folder `real` contains the names of most nested skills."""
        if real not in self._words_of:
            self._words_of[real] = self._words_in(real)
        words = self._words_of[real]
        listed = sum(_words(folder.rpartition("/")[2]) <= words for folder in folders)
        return bool(words) and listed >= SHARE_LISTED * len(folders)

    def _words_in(self, real: str) -> set[str]:
        """Return the words of names of folders and links that the SKILL.md in the folder `real` contains."""
        entry = self._tree.file(f"{real}/{self.marked[real]}" if real else self.marked[real])
        if entry is None or self._read is None or entry.size > MAX_LIST_BYTES:
            return set()
        try:
            return _words(self._read(entry).decode("utf-8", "replace")) & self._words_of_names
        except (SkilleryError, OSError):
            return set()

    @cached_property
    def _words_of_names(self) -> set[str]:
        return set().union(*(_words(path.rpartition("/")[2]) for path in (*self.marked, *self._links)))

    # -- links -------------------------------------------------------------------------------------------------------

    def _single_links(self) -> Iterator[tuple[str, str]]:
        """Yield each folder that contains only a link to a SKILL.md, and the folder of that SKILL.md."""
        for folder, name in self.marked.items():
            path = f"{folder}/{name}" if folder else name
            if not name or not self._tree.by_path[path].target or len(list(islice(self._tree.below(folder), 2))) > 1:
                continue
            real = self._tree.real(path) or ""
            target, _, file = real.rpartition("/")
            if file.casefold() == "skill.md" and target != folder:
                yield folder, target

    def _follow(self, link: str) -> None:
        """Add the skills that a link leads to. Skills with another path count as merged."""
        if is_outside(link) or junk(link) or self._tree.is_folder(link) or self._is_of_a_skill(link):
            return
        if self._steps > MOST_STEPS:
            self.lost[link] = TOO_MANY
            return
        folder, _, name = link.rpartition("/")
        if folder in self._stands_for and name == self.marked[folder]:
            self._add(link, {folder: self._stands_for[folder]})
            return
        target = self._tree.real(link)
        if target is None or target in self._tree.by_path:
            return
        if is_below(link, target):
            self.lost[link] = CIRCLE
            return
        reached = dict(self._reached(link, target, (target,)))
        if reached:
            self._add(link, reached)

    def _is_of_a_skill(self, link: str) -> bool:
        """Return whether a link is a file of a skill. Such a link is handled when the skill is read."""
        folder, _, name = link.rpartition("/")
        place = folder if folder in self._stands_for else link
        is_place = is_in_skills(place) or (name == "skills" and agent_folder(f"{link}/x") is not None)
        return not is_place and any(parent in self.by_path for parent in parents(place))

    def _reached(self, path: str, folder: str, seen: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield each skill in `folder` and behind further links: its path, as if `folder` were at `path`, and its
        real folder.
        """
        for real in _in(self._folders, folder):
            if self._is_allowed() and real not in self._stands_for and not _is_junk_in(real, folder):
                yield _moved(real, folder, path), real
        for link in _in(self._links, folder):
            if not self._is_allowed() or _is_junk_in(link, folder) or self._is_file_in(link, folder):
                continue
            target = self._tree.real(link)
            if target is None or target in self._tree.by_path:
                continue
            if not any(is_below(visited, target) for visited in (*seen, link)):
                yield from self._reached(_moved(link, folder, path), target, (*seen, target))

    def _is_file_in(self, link: str, folder: str) -> bool:
        """Return whether a link is a file of a skill in `folder`."""
        above = (parent for parent in parents(link) if is_below(parent, folder))
        return not is_in_skills(link) and any(parent in self.marked for parent in above)

    def _is_allowed(self) -> bool:
        self._steps += 1
        return self._steps <= MOST_STEPS

    def _add(self, link: str, reached: Mapping[str, str]) -> None:
        self.followed.add(link)
        chosen, nested = self._choose({path: self.marked[real] for path, real in reached.items()}, reached)
        for path in sorted(chosen):
            real = reached[path]
            if real in self._by_real or path in self.by_path:
                self.merged[path] = self._by_real.get(real, path)
                continue
            inner = frozenset(reached[other] for other in chosen if other != path and is_below(other, path))
            self._by_real[real] = path
            self.by_path[path] = Root(real, inner, tuple(nested.get(path, ())))


def _divide(marked: Mapping[str, str], separate: Set[str]) -> tuple[set[str], dict[str, list[str]]]:
    """Return the folders that are skills, among them all of `separate` with a SKILL.md, and the nested folders."""
    roots: set[str] = set()
    nested: dict[str, list[str]] = {}
    for folder in sorted(marked, key=lambda folder: (folder.count("/") + bool(folder), folder)):
        above = next((parent for parent in parents(folder) if parent in roots), None)
        if above is None or (marked[folder] and folder in separate):
            roots.add(folder)
        elif marked[folder]:
            nested.setdefault(above, []).append(folder[len(above) + 1 :] if above else folder)
    return roots, nested


def _is_sample(folder: str) -> bool:
    return not SAMPLES.isdisjoint(folder.casefold().split("/"))


def _words(text: str) -> set[str]:
    words = (word.rstrip(".-_") for word in _WORD.findall(normalized("NFC", text).casefold()))
    return set(filter(None, words))


def rank_of(path: str) -> tuple[int, bytes]:
    """Return a sort key. Of two skills with the same name, the skill with the lower key keeps the name.

    The order is: `skills/…`, other folders, folders of SECOND_CHOICE, agent folders.
    """
    segments = path.split("/")
    agent = agent_folder(path)
    if agent is None:
        if not SECOND_CHOICE.isdisjoint(segments[:-1]):
            return 2, _bytes(path)
        return (0 if "skills" in segments[:2] else 1), _bytes(path)
    return (AGENTS.index(agent) + 3 if agent in AGENTS else len(AGENTS) + 3), _bytes(path)


def agent_folder(path: str) -> str | None:
    """Return the agent folder of a skill, for example `.claude` for `a/.claude/skills/pdf`, or None if it has none."""
    segments = path.split("/")[:-1]
    for number, segment in enumerate(segments):
        if segment.startswith(".") and "skills" in segments[number + 1 :]:
            return segment
    return None


def is_in_skills(folder: str) -> bool:
    """Return whether a folder is `…/skills/NAME`."""
    return folder.split("/")[-2:-1] == ["skills"]


def _marks(tree: Tree) -> dict[str, str]:
    """Return the folders that are marked as skills. The value is the name of SKILL.md as written, or "" for only
    skill.toml.
    """
    marks: dict[str, str] = {}
    for path, entry in tree.by_path.items():
        folder, _, name = path.rpartition("/")
        if name != SKILL_TOML and name.casefold() != "skill.md":
            continue
        if entry.target and not _is_text(tree, path):
            continue
        if name == SKILL_MD or (name != SKILL_TOML and marks.get(folder, "") == ""):
            marks[folder] = name
        else:
            marks.setdefault(folder, "")
    return marks


def _is_text(tree: Tree, link: str) -> bool:
    """Return whether a link leads to a file that may be a SKILL.md. Outside of the link's folder, hidden files are
    excluded, because they may be secrets.
    """
    file = tree.file(link)
    if file is None or file.target:
        return False
    name = file.path.rpartition("/")[2]
    is_own = is_below(file.path, link.rpartition("/")[0])
    return is_own or (not name.startswith(".") and name.lower().endswith((".md", ".toml")))


def _in(paths: list[str], folder: str) -> Iterator[str]:
    """Yield the paths that are the folder or below the folder. `paths` is sorted."""
    prefix = f"{folder}/" if folder else ""
    at = bisect_left(paths, folder)
    if at < len(paths) and paths[at] == folder:
        yield folder
    for path in islice(paths, bisect_left(paths, prefix), None):
        if not path.startswith(prefix):
            return
        if path != folder:
            yield path


def _moved(path: str, folder: str, to: str) -> str:
    """Return the path of an entry in `folder`, as if `folder` were at the path `to`."""
    inside = path[len(folder) + 1 :] if folder else path
    return f"{to}/{inside}" if inside else to


def _is_junk_in(path: str, folder: str) -> bool:
    inside = path[len(folder) + 1 :] if folder else path
    return junk(f"{inside}/{SKILL_MD}" if inside else SKILL_MD) is not None


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
