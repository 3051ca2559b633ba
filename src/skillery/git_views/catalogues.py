"""Files at the root of a repository, from which clients read which skills it has.

- `.claude-plugin/marketplace.json`, for Claude Code and Codex: each skill and each namespace is a plugin. Copilot and
  Cursor look for the same file in folders of their own.
- `plugin.json` by Agent Plugins 1.0.0: the whole repository is one plugin.
- `thin/{namespace}/plugin.json` and `mcp.json`: a thin plugin by Agent Plugins 1.0.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from skillery.exports.marketplaces import Place, Plugins, describe_part, marketplace, marketplace_name
from skillery.exports.thin_plugins import NO_THIN_PLUGINS, ThinPlugins, describe_thin, thin_folder, thin_name
from skillery.git_views.states import ALL
from skillery.registry.repositories import RepositoryVersion

MARKETPLACES = tuple(f"{folder}/marketplace.json" for folder in (".claude-plugin", ".cursor-plugin", ".github/plugin"))
PLUGIN = "plugin.json"
MCP = "mcp.json"
SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"
MCP_SCHEMA = "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json"
_OF_SKILL = "n/"


class Catalogue(NamedTuple):
    """What the catalogue of a snapshot follows from."""

    owner: str
    """The name of the server: users have one marketplace of each name."""
    repository: str
    versions: Sequence[RepositoryVersion]
    descriptions: Mapping[int, str]
    """Descriptions by the id of the version."""
    thin: ThinPlugins = NO_THIN_PLUGINS

    @property
    def part(self) -> str:
        """The namespace, `n/{skill}`, or "" for all skills."""
        return "" if self.repository == ALL else self.repository


def catalogue_files(of: Catalogue) -> dict[str, bytes]:
    """Return the catalogue files by path."""
    files = {**dict.fromkeys(MARKETPLACES, _text(_marketplace(of))), PLUGIN: _text(_plugin(of))}
    for namespace in of.thin.members(of.versions):
        folder = thin_folder(namespace)
        about = {"$schema": SCHEMA, "name": thin_name(namespace), "description": describe_thin(namespace)}
        files[f"{folder}/{PLUGIN}"] = _text(about)
        files[f"{folder}/{MCP}"] = _text({"$schema": MCP_SCHEMA, "mcpServers": of.thin.servers})
    return files


def _marketplace(of: Catalogue) -> dict[str, Any]:
    is_skill = of.part.startswith(_OF_SKILL)
    plugins = Plugins(_skill_folder, None if is_skill else _namespace_folders, _thin_folder)
    return marketplace(of.owner, of.part, of.versions, of.descriptions, plugins, of.thin)


def _skill_folder(one: RepositoryVersion) -> Place:
    return Place(f"./skills/{one.index_name}", ["./"])


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
