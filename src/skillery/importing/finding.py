"""Which folders of an archive are skills, and which of its files belong to each.

A folder with a SKILL.md (or a skill.toml) is a skill, and all below it is its own; wrapper folders around it make no
difference. A SKILL.md below a skill's folder is one of its files, unless it stands in a folder of `skills`
(`…/skills/NAME/SKILL.md`): that is a skill of its own, as in a repository that explains itself with a SKILL.md at its
root. What is left out is said.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from skillery.errors import BundleTooLarge, InvalidPath
from skillery.formats.wording import quoted
from skillery.importing.entries import Entry, shown
from skillery.importing.links import Tree, is_below, parents

SKILL_MD = "SKILL.md"
SKILL_TOML = "skill.toml"
CONTAINERS = ("skills", ".opencode/skills", ".claude/skills", ".agents/skills")
"""The recommended folders of Skill Tools §7: of one name in several, the later one counts."""
JUNK_FOLDERS = frozenset(
    {"__MACOSX", "__pycache__", "node_modules", ".git", ".hg", ".svn", ".Trashes", ".Spotlight-V100"}
)
JUNK_FILES = frozenset({".DS_Store", "Thumbs.db", "desktop.ini", "Icon\r"})
MOST_LISTED = 50
MOST_FILES = 10_000
"""That a skill may have with those that links stand for, or that are looked at for them; far above any server's own
limit."""

Why = Literal["junk", "hidden", "link", "special", "outside"]


class LeftOut(msgspec.Struct, frozen=True):
    """Something that is not imported: a file, or a folder with that many files. `path` is relative to the skill, for
    what belongs to none to the archive."""

    path: str
    why: Why
    message: str
    files: int = 1


class FoundSkill(NamedTuple):
    root: str
    """Its folder in the archive; "" is the archive itself."""
    files: dict[str, Entry]
    """By path in the skill, links followed."""
    renamed: str | None
    """How SKILL.md was written, where it was written otherwise."""
    left_out: tuple[LeftOut, ...]
    problem: InvalidPath | BundleTooLarge | None
    rank: int
    """The place of its container among CONTAINERS from 1, 0 elsewhere."""

    @property
    def folder(self) -> str:
        return self.root.rpartition("/")[2]


class Found(NamedTuple):
    roots: list[str]
    """Those that count first come first: the later of CONTAINERS, then by path."""
    left_out: tuple[LeftOut, ...]
    """What belongs to no skill."""
    other_files: int
    """How many of these are not listed."""


class Finder:
    """Looks through the entries of one archive."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._tree = Tree(entries)
        self._marked = dict(self._marks())
        self._roots = self._choose_roots()
        self._base = self._wrapper()
        self._owned: dict[str, list[str]] = {root: [] for root in self._roots}
        self._outside: list[str] = []
        for path in self._tree.by_path:
            root = next((folder for folder in parents(path) if folder in self._roots), None)
            (self._outside if root is None else self._owned[root]).append(path)

    def found(self) -> Found:
        listed = list(_gathered(self._why_outside(path) for path in self._outside))
        more = sum(one.files for one in listed[MOST_LISTED:])
        roots = sorted(self._roots, key=lambda root: (-self._rank(root), root.encode("utf-8", "surrogateescape")))
        return Found(roots, tuple(listed[:MOST_LISTED]), more)

    def skill(self, root: str) -> FoundSkill:
        files: dict[str, Entry] = {}
        left: list[tuple[str, Why, str]] = []
        problem: InvalidPath | BundleTooLarge | None = None
        looked_at = itertools.count(1)
        marked = self._marked.get(root, "")
        renamed = marked if marked not in {"", SKILL_MD} else None
        for path in self._owned[root]:
            inside = path[len(root) + 1 :] if root else path
            reason = _junk(inside) or _hidden(inside)
            if reason:
                left.append((reason[2], reason[0], reason[1]))
                continue
            if path in self._tree.twice:
                problem = _twice(path)
            name = SKILL_MD if inside == renamed else inside
            entry = self._tree.by_path[path]
            if not entry.target:
                files[name] = entry
                continue
            problem = self._follow(root, name, entry, files, left, looked_at) or problem
        return FoundSkill(root, files, renamed, tuple(_gathered(iter(left))), problem, self._rank(root))

    # -- roots -------------------------------------------------------------------------------------------------------

    def _marks(self) -> Iterator[tuple[str, str]]:
        """Each folder that is marked as a skill, with how its SKILL.md is written ("" where it has only skill.toml)."""
        found: dict[str, str] = {}
        for path, entry in self._tree.by_path.items():
            folder, _, name = path.rpartition("/")
            if _junk(path) or (name != SKILL_TOML and name.casefold() != "skill.md"):
                continue
            if entry.target and (self._tree.file(path) or entry).target:
                continue
            if name == SKILL_MD or (name != SKILL_TOML and found.get(folder, "") == ""):
                found[folder] = name
            else:
                found.setdefault(folder, "")
        yield from found.items()

    def _choose_roots(self) -> set[str]:
        roots: set[str] = set()
        for folder in sorted(self._marked, key=lambda folder: (folder.count("/") + bool(folder), folder)):
            inside_another = any(above in roots for above in parents(folder))
            is_own = bool(self._marked[folder]) and folder.split("/")[-2:-1] == ["skills"]
            if not inside_another or is_own:
                roots.add(folder)
        return roots

    def _wrapper(self) -> str:
        """The folder that all skills and all else lie in."""
        plain = [path for path in self._tree.by_path if not _junk(path)]
        if not plain:
            return ""
        base = ""
        # The folders that the first and the last have in common, all have.
        for segment, other in zip(min(plain).split("/")[:-1], max(plain).split("/")[:-1], strict=False):
            folder = f"{base}/{segment}" if base else segment
            if segment != other or base in self._roots or _is_container(folder, base):
                break
            base = folder
        return base

    def _rank(self, root: str) -> int:
        prefix = f"{self._base}/" if self._base else ""
        ranks = (rank for rank, name in enumerate(CONTAINERS, 1) if root.startswith(f"{prefix}{name}/"))
        return next(ranks, 0)

    # -- files -------------------------------------------------------------------------------------------------------

    def _follow(
        self,
        root: str,
        name: str,
        link: Entry,
        files: dict[str, Entry],
        left: list[tuple[str, Why, str]],
        looked_at: Iterator[int],
    ) -> BundleTooLarge | None:
        """A link to a file of the skill becomes that file, one to a folder of it the files there."""
        real = self._tree.real(link.path)
        if real is None or not is_below(real, root):
            left.append((name, "link", f"the link to {quoted(link.target)} leads to nothing in the skill"))
            return None
        entry = self._tree.by_path.get(real)
        if entry is not None:
            files[name] = entry
            return None
        if is_below(link.path, real):
            left.append((name, "link", f"the link to {quoted(link.target)} leads in a circle"))
            return None
        for one in self._tree.below(real):
            if next(looked_at) > MOST_FILES:
                return BundleTooLarge(
                    f"with the link {quoted(name)} its links stand for more than {MOST_FILES} files",
                    hint="Leave the link out.",
                    max_files=MOST_FILES,
                )
            inside = one.path[len(real) + 1 :]
            if not (one.target or _junk(inside) or _hidden(inside)):
                files[f"{name}/{inside}"] = one
        return None

    def _why_outside(self, path: str) -> tuple[str, Why, str]:
        junk = _junk(path)
        if junk:
            return junk[2], junk[0], junk[1]
        entry = self._tree.by_path[path]
        if entry.target:
            return path, "link", f"a link to {quoted(entry.target)}, in no skill"
        if path.lower().endswith((".zip", ".skill", ".tgz", ".tar.gz", ".tar")):
            return path, "outside", "an archive in the archive is not opened: import it by itself"
        return path, "outside", "it belongs to no skill"


def _is_container(folder: str, base: str) -> bool:
    prefix = f"{base}/" if base else ""
    return any(
        f"{prefix}{name}".startswith(folder) and f"{prefix}{name}/".startswith(f"{folder}/") for name in CONTAINERS
    )


def _junk(path: str) -> tuple[Why, str, str] | None:
    """What systems and interpreters leave behind: why, in words, and the path of the topmost that is such."""
    segments = path.split("/")
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if segment in (JUNK_FILES if is_last else JUNK_FOLDERS) or segment.startswith("._"):
            return "junk", "left behind by a system or an interpreter", "/".join(segments[: number + 1])
    if path.endswith(".pyc"):
        return "junk", "left behind by a system or an interpreter", path
    return None


def _hidden(path: str) -> tuple[Why, str, str] | None:
    segments = path.split("/")
    for number, segment in enumerate(segments):
        if segment.startswith("."):
            return (
                "hidden",
                "begins with a dot: what is published cannot be taken back",
                "/".join(segments[: number + 1]),
            )
    return None


def _twice(path: str) -> InvalidPath:
    return InvalidPath(
        f"{quoted(path)} stands in the archive twice", hint="Pack the folder anew.", file=shown(path), entry=shown(path)
    )


def _gathered(left: Iterator[tuple[str, Why, str]]) -> Iterator[LeftOut]:
    """Each folder once, with how many files are left out with it."""
    counted: Counter[tuple[str, Why, str]] = Counter(left)
    for (path, why, message), files in counted.items():
        yield LeftOut(shown(path), why, message, files)
