"""The identity of imported skills: a source, and the whole path in the tree of this source.

The first import of a path records an alias, and later imports find the skill by this alias. A skill at a new path may
have moved there. This is assumed if an alias of the same source has the same stated name, and the path of that alias is
no longer in the tree.

A skill at the root of an archive has no path, and archives without a source can come from anywhere. For these skills,
the stated name is part of the key, so that the skills of two such archives stay different skills.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from skillery.errors import SourceUnclear
from skillery.formats.wording import quoted
from skillery.importing.aliases import KnownPath
from skillery.importing.entries import shown
from skillery.importing.free_names import Alias
from skillery.importing.preparation import same_files

MAX_PATH = 200
"""The maximum number of characters of a path in an alias. A longer path is cut and ends with a hash."""
STATED = "/./"
"""Separator between path and stated name, if the key has both. No path in an archive has a segment `.`."""
UPLOADS = "/v1"
"""The source of skills that were uploaded to /v1/skills: single skills without a path."""


class Source(NamedTuple):
    """The source of a tree, for imports into one namespace."""

    namespace: str
    name: str
    is_default: bool
    """True if the caller did not state the source."""


def path_key(root: str) -> str:
    """Return the path of a skill in aliases: the whole path, or a cut path with the SHA-256 of the whole path."""
    try:
        root.encode()
    except UnicodeEncodeError:
        pass
    else:
        if len(root) <= MAX_PATH:
            return root
    digest = hashlib.sha256(root.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{shown(root)[: MAX_PATH - 65]}~{digest}"


def tree_path(path: str) -> str:
    """Return the path in the tree, from the path of an alias, without the stated name."""
    return path.partition(STATED)[0]


class Aliases:
    """The aliases that earlier imports of a source recorded, compared with the tree of one import."""

    def __init__(self, source: Source, roots: Iterable[str], known: Sequence[KnownPath]) -> None:
        self.source = source
        self.paths = frozenset(path_key(root) or "." for root in roots)
        self._by_path = {row.alias.path: row for row in known}
        self._by_stated: defaultdict[str, list[KnownPath]] = defaultdict(list)
        for row in known:
            self._by_stated[row.stated].append(row)
        self._adopted: Mapping[str, Alias] = {}
        self._used: set[Alias] = set()

    @property
    def is_new(self) -> bool:
        """True if no skill was imported from the source before."""
        return not self._by_path

    def known_first(self, roots: Iterable[str]) -> list[str]:
        """Return the paths of skills in their order, first those that were imported before: they keep their names, also
        if a new skill has the same files.
        """
        known = {tree_path(path) for path in self._by_path}
        return sorted(roots, key=lambda root: (path_key(root) or ".") not in known)

    def check_source(self, may: Callable[[str], bool]) -> None:
        """Raise SourceUnclear if the source is a default and fewer than half of its earlier paths are in the tree.

        Only skills with names that `may` accepts are counted, so that callers without a grant learn nothing about a
        source.
        """
        present = (row for row in self._by_path.values() if not row.is_absent and may(row.name))
        earlier = {tree_path(row.alias.path) for row in present if not row.alias.path.startswith("/")}
        shared = len(earlier & self.paths)
        if not (self.source.is_default and self.source.name) or 2 * shared >= len(earlier):
            return
        name = quoted(self.source.name)
        raise SourceUnclear(
            f"this tree has {shared} of the {len(earlier)} paths that were imported from the source {name} before; "
            "nothing was imported",
            hint=f"If it is the same source, give --source {self.source.name}; if not, give it another name with "
            "--source (over HTTP: the parameter source).",
            source=self.source.name,
            shared=shared,
            earlier=len(earlier),
        )

    def adopt(self, adopted: Mapping[str, Alias]) -> None:
        """Use these aliases from early releases, which had no sources. Keys are the folders of the skills in the
        archive.
        """
        self._adopted = adopted

    def alias_of(self, root: str, stated: str) -> Alias:
        path = path_key(root)
        if not (root and self.source.name):
            path = f"{path or '.'}{STATED}{stated}"
        return Alias(self.source.namespace, self.source.name, path)

    def recorded(self, root: str, stated: str, source_digest: str) -> Alias | None:
        """Return the alias that an earlier import recorded for a skill, under its present path or an earlier path,
        or None.
        """
        alias = self.alias_of(root, stated)
        if alias.path in self._by_path:
            return alias
        earlier = self._adopted.get(root) or self._moved(root, stated, source_digest)
        if earlier is not None:
            self._used.add(earlier)
        return earlier

    def _moved(self, root: str, stated: str, source_digest: str) -> Alias | None:
        key_with_path = key_before_sources(stated, root)
        candidates = [
            row
            for row in (*self._by_stated[key_with_path], *self._by_stated[stated])
            if tree_path(row.alias.path) not in self.paths and row.alias not in self._used
        ]

        def nearness(path: KnownPath) -> tuple[bool, bool, int]:
            return (
                path.stated == key_with_path,
                same_files(path.source_digest, source_digest),
                _common_end(tree_path(path.alias.path), root),
            )

        return max(candidates, key=nearness).alias if candidates else None


def key_before_sources(stated: str, root: str) -> str:
    """Return the key under which early releases recorded a further skill with the same stated name."""
    return f"{stated} ({shown(root)[:40]})"[:255]


class Fingerprint(NamedTuple):
    """The values that identify a skill if no source was recorded."""

    root: str
    stated: str
    source_digest: str


def adopted_aliases(prints: Iterable[Fingerprint], known: Sequence[KnownPath]) -> dict[str, Alias]:
    """Return the aliases without a source that a tree adopts, by folder in the archive.

    If at least half of the matching aliases have the same files as the tree, all matching aliases are adopted.
    Otherwise only those with the same files are adopted: the others may belong to another source.
    """
    by_stated = {row.stated: row for row in known}
    matches: dict[str, tuple[KnownPath, bool]] = {}
    seen: set[tuple[str, str]] = set()
    for fingerprint in prints:
        if (fingerprint.stated, fingerprint.source_digest) in seen:
            continue
        seen.add((fingerprint.stated, fingerprint.source_digest))
        for stated in (key_before_sources(fingerprint.stated, fingerprint.root), fingerprint.stated):
            if stated in by_stated:
                row = by_stated.pop(stated)
                matches[fingerprint.root] = row, same_files(row.source_digest, fingerprint.source_digest)
                break
    same = sum(is_same for _, is_same in matches.values())
    takes_all = 2 * same >= len(matches)
    return {root: row.alias for root, (row, is_same) in matches.items() if takes_all or is_same}


def _common_end(text: str, other: str) -> int:
    """Return the number of equal segments at the ends of two paths."""
    count = 0
    for left, right in zip(reversed(text.split("/")), reversed(other.split("/")), strict=False):
        if left != right:
            break
        count += 1
    return count
