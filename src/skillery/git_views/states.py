"""States of repositories: the commits that a caller sees, and the versions in each.

A state follows from stored facts only, so that every server makes the same objects of it. The name of the caller is no
fact: callers who see the same versions share one pack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skillery.exports.facts import MAKER
from skillery.exports.thin_plugins import NO_THIN_PLUGINS, ThinPlugins
from skillery.registry.repositories import LATEST, RepositoryVersion, SkillHistory, is_ref

FORMAT = 2
"""The version number of the code that makes objects. Increase it if this package makes other objects of a state."""
ALL = "_all"
HEAD = f"refs/heads/{LATEST}"


class Snapshot(NamedTuple):
    """One commit: the folders of some versions."""

    refs: tuple[str, ...]
    versions: Sequence[RepositoryVersion]
    message: str
    time: int
    """Seconds since 1970."""
    parent: int | None
    """The place of the parent among the snapshots of the state."""


class State(NamedTuple):
    repository: str
    """The address of the repository below `/git`, without `.git`."""
    snapshots: tuple[Snapshot, ...]
    owner: str
    """The name of the server in catalogues."""
    digest: str
    """SHA-256 in hex of everything that the objects follow from."""
    thin: ThinPlugins = NO_THIN_PLUGINS

    @property
    def head(self) -> str | None:
        """The branch that clients check out, or None if the repository has only tags."""
        return HEAD if any(HEAD in snapshot.refs for snapshot in self.snapshots) else None

    def versions(self) -> list[RepositoryVersion]:
        """Return each version once, in the order of the snapshots."""
        return list(
            {version.version_id: version for snapshot in self.snapshots for version in snapshot.versions}.values()
        )


def state_of_skills(
    owner: str, name: str, branches: dict[str, list[RepositoryVersion]], thin: ThinPlugins = NO_THIN_PLUGINS
) -> State:
    """Return the state of `/git/_all.git` or of the repository of a namespace: one commit without parents for each
    branch.
    """
    whose = "all namespaces" if name == ALL else name
    snapshots = tuple(
        Snapshot(
            (_branch(branch),),
            versions,
            f"{len(versions)} {'skill' if len(versions) == 1 else 'skills'} of {whose}\n",
            max((_seconds(version) for version in versions), default=0),
            None,
        )
        for branch, versions in branches.items()
        if is_ref(_branch(branch))
    )
    return _state(owner, name, snapshots, thin)


def state_of_skill(owner: str, name: str, history: SkillHistory) -> State:
    """Return the state of `/git/n/{skill}.git`: one commit with a tag for each version."""
    branches: dict[int, list[str]] = {}
    for branch, place in history.branches.items():
        branches.setdefault(place, []).append(_branch(branch))
    snapshots = tuple(
        Snapshot(
            tuple(ref for ref in (*branches.get(place, ()), f"refs/tags/v{one.version}") if is_ref(ref)),
            (one,),
            f"{one.name} {one.version}\n\nDigest: {one.digest}\n",
            _seconds(one),
            place - 1 if place else None,
        )
        for place, one in enumerate(history.versions)
    )
    return _state(owner, f"n/{name}", snapshots)


def _state(owner: str, repository: str, snapshots: tuple[Snapshot, ...], thin: ThinPlugins = NO_THIN_PLUGINS) -> State:
    found = hashlib.sha256(msgspec.json.encode([FORMAT, MAKER, owner, repository]))
    for one in snapshots:
        rows = [(row.index_name, row.name, row.version, row.digest, _seconds(row)) for row in one.versions]
        found.update(msgspec.json.encode([one.refs, one.message, one.time, one.parent, rows]))
    if any(thin.members(snapshot.versions) for snapshot in snapshots):
        found.update(msgspec.json.encode(thin))
    return State(repository, snapshots, owner, found.hexdigest(), thin)


def _branch(label: str) -> str:
    return f"refs/heads/{label}"


def _seconds(version: RepositoryVersion) -> int:
    return int(version.published_at.timestamp())
