"""Files at the root of a repository, from which clients read which skills it has.

- `.claude-plugin/marketplace.json`, for Claude Code, Codex and Copilot: each skill and each namespace is a plugin.
- `plugin.json` by Agent Plugins 1.0.0: the whole repository is one plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from skillery.formats.agent_skill import index_name
from skillery.git_views.states import ALL
from skillery.registry.repositories import RepositoryVersion

MARKETPLACE = ".claude-plugin/marketplace.json"
PLUGIN = "plugin.json"
SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
_OF_SKILL = "n/"


class Catalogue(NamedTuple):
    """What the catalogue of a snapshot follows from."""

    owner: str
    """The name of the server: users have one marketplace of each name."""
    repository: str
    versions: Sequence[RepositoryVersion]
    descriptions: Mapping[int, str]
    """Descriptions by the id of the version."""


def catalogue_files(of: Catalogue) -> dict[str, bytes]:
    """Return the catalogue files by path."""
    return {MARKETPLACE: _text(_marketplace(of)), PLUGIN: _text(_plugin(of))}


def _marketplace(of: Catalogue) -> dict[str, Any]:
    skills = [_skill(one, of.descriptions[one.version_id]) for one in of.versions]
    names = {one.index_name for one in of.versions}
    namespaces = [] if of.repository.startswith(_OF_SKILL) else _namespaces(of.versions)
    return {
        "name": _name(of),
        "owner": {"name": of.owner},
        "metadata": {"description": _description(of)},
        "plugins": [*skills, *(one for one in namespaces if one["name"] not in names)],
    }


def _skill(one: RepositoryVersion, description: str) -> dict[str, Any]:
    return {
        "name": one.index_name,
        "source": f"./skills/{one.index_name}",
        "description": description,
        # Clients update a plugin only if its version differs.
        "version": one.version,
        "strict": False,
        "skills": ["./"],
    }


def _namespaces(versions: Sequence[RepositoryVersion]) -> list[dict[str, Any]]:
    """Return a plugin for each namespace with several skills. Without a version, clients take the commit as version."""
    folders: dict[str, list[str]] = {}
    for one in versions:
        namespace = one.name.rpartition(".")[0]
        if namespace:
            folders.setdefault(namespace, []).append(f"./{one.index_name}")
    found: dict[str, dict[str, Any]] = {}
    for namespace, skills in sorted(folders.items()):
        name = f"{index_name(namespace)}-all"
        if len(skills) > 1 and name not in found:
            found[name] = {
                "name": name,
                "source": "./skills",
                "description": f"All skills of the namespace {namespace}.",
                "strict": False,
                "skills": skills,
            }
    return list(found.values())


def _plugin(of: Catalogue) -> dict[str, Any]:
    plugin = {"$schema": SCHEMA, "name": _name(of), "description": _description(of)}
    if of.repository.startswith(_OF_SKILL):
        plugin |= {"version": of.versions[0].version, "description": of.descriptions[of.versions[0].version_id]}
    return plugin


def _name(of: Catalogue) -> str:
    """Return the name of the marketplace and of the plugin: that of the server, and for a part of its skills also that
    of the part.
    """
    if of.repository == ALL:
        return of.owner
    part = of.repository.removeprefix(_OF_SKILL)
    kind = "skill-" if of.repository.startswith(_OF_SKILL) else ""
    return index_name(f"{of.owner}-{kind}{part}")


def _description(of: Catalogue) -> str:
    if of.repository == ALL:
        return "Skills of all namespaces."
    if of.repository.startswith(_OF_SKILL):
        return f"The skill {of.versions[0].name}."
    return f"Skills of the namespace {of.repository}."


def _text(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
