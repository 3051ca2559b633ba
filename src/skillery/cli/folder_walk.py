"""Scan a folder: find its files, and the files of skills outside the folder that links lead to.

`os.path.realpath` resolves each link. If the target is in the folder, the link is recorded with the path of the target.
If the target is outside, is a skill or contains one, and the policy allows it, the files of the target are added as
entries. Their paths begin with a word that no file of the folder can have.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from skillery.errors import StartupError
from skillery.importing.entries import (
    CIRCLE,
    JUNK_FOLDERS,
    MAX_DEPTH,
    NOTHING,
    OUT,
    OUTSIDE,
    Entry,
    LeftOut,
    Links,
    is_below,
    junk,
    shown,
)
from skillery.importing.roots import agent_folder

MAX_FILES = 1_000_000
"""Limit of the files in a folder. A folder with more files is not a folder of skills."""
MAX_SCANNED_FILES = 10_000
"""Limit of the files and folders that are searched for a skill behind one link."""
ELSEWHERE = f"{OUT} and its repository: import that folder too, or give --follow-links"
NO_SKILL = f"{OUT}, and to no skill"


class Policy(NamedTuple):
    """Decides which links to skills outside the scanned folder are followed."""

    areas: tuple[str, ...]
    """The imported folders, as real paths."""
    anywhere: bool

    @classmethod
    def of(cls, paths: Sequence[Path], *, anywhere: bool) -> Policy:
        return cls(tuple(os.path.realpath(path) for path in paths if path.is_dir()), anywhere)

    def allows(self, link: str, target: str) -> bool:
        """Return whether a link in the folder `link` may be followed to `target`. Both are real paths.

        A target in an imported folder or in the repository of the link is allowed. A target in an agent folder next to
        the agent folder of the link is allowed too: `npx skills` links `.claude/skills/NAME` to `.agents/skills/NAME`.
        """
        if self.anywhere or any(_is_in(target, area) for area in self.areas):
            return True
        repository, base_folder = _repository(link), _above_agent_folder(link)
        if repository is not None and _is_in(target, repository):
            return True
        return (
            base_folder is not None
            and _is_in(target, base_folder)
            and agent_folder(f"{os.path.relpath(target, base_folder)}/x") is not None
        )


class Walked(NamedTuple):
    """The result of a scan."""

    entries: list[Entry]
    links: Links
    special: list[LeftOut]
    """Pipes, devices, folders of tools (such as node_modules), and unreadable files."""


def walk(path: Path, policy: Policy) -> Walked:
    """Scan a folder. Raise StartupError if the folder cannot be read or is too large."""
    try:
        return _Walk(policy).all(path)
    except OSError as error:
        raise StartupError(f"cannot read '{error.filename}': {error.strerror}") from None


class _Walk:
    """One scan of a folder: its entries, links and targets outside."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: list[Entry] = []
        self._special: list[LeftOut] = []
        self._targets: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._at: dict[str, str] = {}
        """Path among the entries, by the real path of the folder or of an outside target."""
        self._queue: list[str] = []

    def all(self, path: Path) -> Walked:
        root = os.path.realpath(path)
        self._at[root] = ""
        self._walk(root)
        for folder in self._queue:  # the list grows during the iteration
            try:
                self._walk(folder)
            except (OSError, StartupError):
                self._mark_broken(self._at[folder])
        return Walked(self._entries, Links(self._targets, self._broken), self._special)

    def _walk(self, folder: str) -> None:
        links = list(self._files(folder, self._at[folder]))
        for link in links:
            self._resolve(folder, link)

    def _files(self, root: str, at: str) -> Iterator[Entry]:
        """Add the entries of the folder `root`, with their paths below `at`, and yield the links among them."""
        for entry in _entries(root, [] if at else self._special):
            moved_entry = entry._replace(path=_joined(at, entry.path))
            self._entries.append(moved_entry)
            if len(self._entries) > MAX_FILES:
                raise StartupError(f"'{root}' has too many files to be a folder of skills")
            if moved_entry.target:
                yield moved_entry

    def _mark_broken(self, at: str) -> None:
        """Record that the target folder at the path `at` cannot be read, and that links to it are broken."""
        for link in [link for link, lead in self._targets.items() if is_below(lead, at)]:
            del self._targets[link]
            self._broken[link] = "leads to a folder that cannot be read"

    def _resolve(self, root: str, link: Entry) -> None:
        """Record the target of a link: broken, among the entries, or outside the folder."""
        try:
            real_path = os.path.realpath(link.place, strict=True)
        except OSError as error:
            self._broken[link.path] = CIRCLE if error.errno == errno.ELOOP else NOTHING
            return
        target_path = self._path_of_target(real_path)
        if target_path is None:
            self._resolve_outside(root, link, real_path)
        else:
            self._targets[link.path] = target_path

    def _path_of_target(self, real: str) -> str | None:
        """Return the path under which the real path `real` is among the entries, or None."""
        for ancestor in (real, *map(str, Path(real).parents)):
            if ancestor in self._at:
                inside = os.path.relpath(real, ancestor) if real != ancestor else ""
                return None if junk(inside) else _joined(self._at[ancestor], inside)
        return None

    def _resolve_outside(self, root: str, link: Entry, real: str) -> None:
        """Record the link `link` in the folder `root`. The target `real` is not among the entries yet."""
        if _is_in(root, real):
            self._broken[link.path] = CIRCLE
        elif not self._policy.allows(os.path.realpath(link.place.parent), real):
            self._broken[link.path] = ELSEWHERE
        elif Path(real).is_dir():
            self._follow_to_folder(link, real)
        elif link.place.name.casefold() == "skill.md" and Path(real).is_file():
            self._follow_to_file(link, Path(real))
        else:
            self._broken[link.path] = NO_SKILL

    def _follow_to_folder(self, link: Entry, real: str) -> None:
        if not _holds_skill(real):
            self._broken[link.path] = NO_SKILL
            return
        self._targets[link.path] = self._at[real] = f"{OUTSIDE}{len(self._at)}"
        self._queue.append(real)

    def _follow_to_file(self, link: Entry, real: Path) -> None:
        """Record a link with the name SKILL.md to a file outside the folder.

        If the folder of the link contains only this link, and the target is a SKILL.md too, the folder of the target is
        followed: it is the whole skill.
        """
        if real.name.casefold() == "skill.md" and len(list(link.place.parent.iterdir())) == 1:
            self._follow_to_folder(link, str(real.parent))
            if str(real.parent) in self._at:  # else the folder has too many files to be searched
                self._targets[link.path] = _joined(self._at[str(real.parent)], real.name)
            return
        entry_path = self._at[str(real)] = f"{OUTSIDE}{len(self._at)}/{real.name}"
        self._entries.append(Entry(entry_path, real.stat().st_size, False, "", real))
        self._targets[link.path] = entry_path


def _entries(root: str, special: list[LeftOut]) -> Iterator[Entry]:
    """Yield the files and links below a folder. Files of special kinds are added to `special`."""
    pending = [""]
    while pending:
        folder = pending.pop()
        for child in sorted(os.scandir(Path(root, folder)), key=lambda child: child.name):
            path = _joined(folder, child.name)
            if path.count("/") > MAX_DEPTH:
                raise StartupError(f"'{root}' has too deeply nested folders to be a folder of skills")
            if not child.is_dir(follow_symlinks=False):
                entry = _entry(Path(root, path), path, child.stat(follow_symlinks=False))
                if isinstance(entry, Entry):
                    yield entry
                else:
                    special.append(entry)
            elif child.name in JUNK_FOLDERS:
                # The folder is not scanned; one entry stands for all its files.
                special.append(LeftOut(shown(path), "junk", "created by a system or an interpreter"))
            else:
                pending.append(path)


def _entry(full: Path, path: str, status: os.stat_result) -> Entry | LeftOut:
    if stat.S_ISLNK(status.st_mode):
        return Entry(path, 0, False, str(full.readlink()), full)
    if not stat.S_ISREG(status.st_mode):
        return LeftOut(shown(path), "special", "not a file, folder or link")
    if not os.access(full, os.R_OK):
        return LeftOut(shown(path), "special", "not readable")
    return Entry(path, status.st_size, bool(status.st_mode & 0o111), "", full)


def _holds_skill(folder: str) -> bool:
    """Return whether a folder, its subfolders or linked subfolders contain a SKILL.md or skill.toml.

    Return False if the search takes more than MAX_SCANNED_FILES.
    """
    files_left = MAX_SCANNED_FILES
    for path, folders, files in os.walk(folder):
        files_left -= len(folders) + len(files) + 1
        if files_left < 0:
            return False
        if any(name.casefold() == "skill.md" or name == "skill.toml" for name in files):
            return True
        if any(Path(path, name, "SKILL.md").is_file() for name in folders):
            return True
        folders[:] = [name for name in folders if name not in JUNK_FOLDERS]
    return False


def _repository(folder: str) -> str | None:
    """Return the nearest folder that contains `.git`: `folder` or a folder above. Return None if no folder does."""
    start = Path(folder)
    return next((str(ancestor) for ancestor in (start, *start.parents) if (ancestor / ".git").exists()), None)


def _above_agent_folder(folder: str) -> str | None:
    """Return the parent of the nearest hidden folder: `/home/ann` for `/home/ann/.claude/skills`. Return None if
    no folder above is hidden.
    """
    start = Path(folder)
    hidden = (ancestor for ancestor in (start, *start.parents) if ancestor.name.startswith("."))
    return next((str(ancestor.parent) for ancestor in hidden), None)


def _is_in(path: str, folder: str) -> bool:
    return is_below(path, folder.rstrip("/"))


def _joined(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder and path else folder or path
