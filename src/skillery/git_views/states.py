"""The states of repositories: the commits that a caller sees, and the versions in each.

A state depends only on stored facts, so all servers make the same objects from it. It does not depend on the name of
the caller: callers who see the same versions share one pack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from skillery.exports.facts import MAKER
from skillery.exports.marketplaces import (
    NO_THIN_PLUGINS,
    Place,
    Plugins,
    ThinPlugins,
    describe_part,
    describe_thin,
    marketplace,
    marketplace_name,
    thin_folder,
    thin_name,
)
from skillery.formats.paths import portability_problem
from skillery.formats.wording import quoted
from skillery.registry.repositories import LATEST, RepositoryVersion, SkillHistory, is_ref

FORMAT = 3
"""The version number of the code that makes objects. Increase it if this package makes other objects of a state."""
ALL = "_all"
HEAD = f"refs/heads/{LATEST}"


class Snapshot(NamedTuple):
    """One commit: the folders of its versions, and the branches and tags that point to it."""

    refs: tuple[str, ...]
    versions: Sequence[RepositoryVersion]
    message: str
    time: int
    """Seconds since 1970."""
    parent: int | None
    """The index of the parent in the snapshots of the state, or None."""


class State(NamedTuple):
    """The content of a repository for callers who see the same versions."""

    repository: str
    """The address of the repository below `/git`, without `.git`."""
    snapshots: tuple[Snapshot, ...]
    owner: str
    """The name of the server in catalogues."""
    digest: str
    """The SHA-256 in hex of all values that determine the objects."""
    thin: ThinPlugins = NO_THIN_PLUGINS

    @property
    def head(self) -> str | None:
        """The branch that clients check out, or None if the repository has only tags."""
        return HEAD if any(HEAD in snapshot.refs for snapshot in self.snapshots) else None

    @property
    def is_shared(self) -> bool:
        """Whether the repository has several skills, so that a file of one skill can break the clone of the others."""
        return not self.repository.startswith(_OF_SKILL)

    def versions(self) -> list[RepositoryVersion]:
        """Return the versions of all snapshots without duplicates, in the order of the snapshots."""
        return list(
            {version.version_id: version for snapshot in self.snapshots for version in snapshot.versions}.values()
        )


def state_of_skills(
    owner: str, name: str, branches: dict[str, list[RepositoryVersion]], thin: ThinPlugins = NO_THIN_PLUGINS
) -> State:
    """Return the state of `/git/_all.git` or of the repository of a namespace.

    Each branch is one commit without parents.
    """
    owner_name = "all namespaces" if name == ALL else name
    snapshots = tuple(
        Snapshot(
            (_branch(branch),),
            versions,
            _message(versions, owner_name),
            max((_seconds(version) for version in versions), default=0),
            None,
        )
        for branch, versions in branches.items()
        if is_ref(_branch(branch))
    )
    return _state(owner, name, snapshots, thin)


def _message(versions: Sequence[RepositoryVersion], owner_name: str) -> str:
    required = sum(version.is_required for version in versions)
    own = len(versions) - required
    more = f", and {required} that they require" if required else ""
    return f"{own} {'skill' if own == 1 else 'skills'} of {owner_name}{more}\n"


def state_of_skill(owner: str, name: str, history: SkillHistory) -> State:
    """Return the state of `/git/n/{skill}.git`: one commit with a tag for each version, each the parent of the next."""
    branches: dict[int, list[str]] = {}
    for branch, place in history.branches.items():
        branches.setdefault(place, []).append(_branch(branch))
    snapshots = tuple(
        Snapshot(
            tuple(ref for ref in (*branches.get(place, ()), f"refs/tags/v{version.version}") if is_ref(ref)),
            (version,),
            f"{version.name} {version.version}\n\nDigest: {version.digest}\n",
            _seconds(version),
            place - 1 if place else None,
        )
        for place, version in enumerate(history.versions)
    )
    return _state(owner, f"n/{name}", snapshots)


def _state(owner: str, repository: str, snapshots: tuple[Snapshot, ...], thin: ThinPlugins = NO_THIN_PLUGINS) -> State:
    """Return a state with its digest."""
    hasher = hashlib.sha256(msgspec.json.encode([FORMAT, MAKER, owner, repository]))
    for snapshot in snapshots:
        # Later members are added only if they are set, so that the digests of other states stay.
        rows = [
            (
                row.index_name,
                row.name,
                row.version,
                row.digest,
                _seconds(row),
                *filter(None, (row.revocation, row.is_required)),
            )
            for row in snapshot.versions
        ]
        hasher.update(msgspec.json.encode([snapshot.refs, snapshot.message, snapshot.time, snapshot.parent, rows]))
    if any(thin.members(snapshot.versions) for snapshot in snapshots):
        hasher.update(msgspec.json.encode(thin))
    return State(repository, snapshots, owner, hasher.hexdigest(), thin)


def _branch(label: str) -> str:
    return f"refs/heads/{label}"


def _seconds(version: RepositoryVersion) -> int:
    return int(version.published_at.timestamp())


# -- Files at the root of a repository, from which clients read which skills it has ------------------------------------
# - `.claude-plugin/marketplace.json`, for Claude Code and Codex: each skill and each namespace is a plugin. Copilot and
#   Cursor look for the same file in folders of their own.
# - `plugin.json` by Agent Plugins 1.0.0: the whole repository is one plugin.
# - `ADVISORIES.json`: the version of the commit was yanked for security.
# - `thin/{namespace}/plugin.json` and `mcp.json`: a thin plugin by Agent Plugins 1.0.0.


MARKETPLACES = tuple(f"{folder}/marketplace.json" for folder in (".claude-plugin", ".cursor-plugin", ".github/plugin"))
PLUGIN = "plugin.json"
LEFT_OUT = "LEFT_OUT.md"
ADVISORIES = "ADVISORIES.json"
MCP = "mcp.json"
SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
MCP_SCHEMA = "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json"
_OF_SKILL = "n/"


class Catalogue(NamedTuple):
    """The values that determine the catalogue files of a snapshot."""

    owner: str
    """The name of the server. Marketplaces of a user need different names."""
    repository: str
    versions: Sequence[RepositoryVersion]
    descriptions: Mapping[int, str]
    """The descriptions by version id."""
    thin: ThinPlugins = NO_THIN_PLUGINS

    @property
    def part(self) -> str:
        """The namespace, `n/{skill}`, or "" for all skills."""
        return "" if self.repository == ALL else self.repository


def catalogue_files(of: Catalogue) -> dict[str, bytes]:
    """Return the contents of the catalogue files, by path."""
    files = {**dict.fromkeys(MARKETPLACES, _text(_marketplace(of))), PLUGIN: _text(_plugin(of))}
    for namespace in of.thin.members(of.versions):
        folder = thin_folder(namespace)
        about = {"$schema": SCHEMA, "name": thin_name(namespace), "description": describe_thin(namespace)}
        files[f"{folder}/{PLUGIN}"] = _text(about)
        files[f"{folder}/{MCP}"] = _text({"$schema": MCP_SCHEMA, "mcpServers": of.thin.servers})
    advisories = [
        {"name": version.name, "version": version.version, "digest": version.digest}
        | msgspec.json.decode(version.revocation)
        for version in of.versions
        if version.revocation
    ]
    if advisories:
        files[ADVISORIES] = _text({"advisories": advisories})
    return files


def left_out_files(versions: Sequence[tuple[RepositoryVersion, str]]) -> dict[str, bytes]:
    """Return the file that names the versions that a shared repository leaves out, each with a path that Windows
    cannot store.
    """
    if not versions:
        return {}
    lines = [
        f"- {version.name} {version.version}: the path {quoted(path)} {portability_problem(path)}.\n"
        f"  Its own repository has the skill: /git/n/{version.name}.git\n"
        for version, path in versions
    ]
    return {LEFT_OUT: ("# Skills that this repository leaves out\n\n" + "".join(lines)).encode()}


def _marketplace(of: Catalogue) -> dict[str, Any]:
    is_skill = of.part.startswith(_OF_SKILL)
    plugins = Plugins(_skill_folder, None if is_skill else _namespace_folders, _thin_folder)
    return marketplace(of.owner, of.part, of.versions, of.descriptions, plugins, of.thin)


def _skill_folder(version: RepositoryVersion) -> Place:
    return Place(f"./skills/{version.index_name}", ["./"])


def _namespace_folders(_namespace: str, members: Sequence[RepositoryVersion]) -> Place:
    return Place("./skills", [f"./{member.index_name}" for member in members])


def _thin_folder(namespace: str) -> str:
    return f"./{thin_folder(namespace)}"


def _plugin(of: Catalogue) -> dict[str, Any]:
    plugin = {"$schema": SCHEMA, "name": marketplace_name(of.owner, of.part), "description": describe_part(of.part)}
    if of.part.startswith(_OF_SKILL):
        plugin |= {"version": of.versions[0].version, "description": of.descriptions[of.versions[0].version_id]}
    return plugin


def _text(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
