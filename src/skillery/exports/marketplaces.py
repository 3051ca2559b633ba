"""Marketplaces: lists of plugins in the format of Claude Code, which Codex and Copilot read too. Each skill is a
plugin.

A repository has its marketplace as a file (skillery.git_views.states). `/marketplace.json` says where the server
has each plugin: as an archive, or in a git repository.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from skillery.backends import Identity
from skillery.errors import RepositoryNotFound
from skillery.exports.skill_exports import Exports
from skillery.exports.thin_plugins import ThinPlugins, describe_thin, thin_folder, thin_name
from skillery.formats.agent_skill import index_name
from skillery.registry.repositories import RepositoryVersion, is_ref, list_branch

SourceKind = Literal["archive", "git"]
SOURCE_KINDS: tuple[SourceKind, ...] = ("archive", "git")


class Place(NamedTuple):
    """Where a plugin is, and the folders of its skills below that place."""

    source: str | dict[str, str]
    skills: list[str]


class Plugins(NamedTuple):
    """Where the plugins of a marketplace are."""

    of_skill: Callable[[RepositoryVersion], Place]
    of_namespace: Callable[[str, Sequence[RepositoryVersion]], Place] | None
    """None: the marketplace has no plugins for namespaces."""
    of_thin: Callable[[str], str | dict[str, str]] | None
    """The source of the thin plugin of a namespace. None: the marketplace has no thin plugins."""


class Asked(NamedTuple):
    """What a request for `/marketplace.json` asks for."""

    namespace: str
    """"" for all namespaces."""
    label: str
    sources: SourceKind
    address: str
    """The address of the server, without a slash at the end."""


class Marketplaces:
    """Makes the marketplaces of `/marketplace.json`."""

    def __init__(self, exports: Exports, owner: str, most_skills: int, thin: ThinPlugins) -> None:
        """`owner` is the name of the server in marketplaces."""
        self._exports = exports
        self._owner = owner
        self._most_skills = most_skills
        self._thin = thin

    async def find(self, identity: Identity, request: Asked) -> dict[str, Any]:
        """Return the marketplace of the skills that the identity sees.

        Raise RepositoryNotFound if the identity sees no skill of the namespace, and RepositoryTooLarge if there are too
        many.
        """
        look = partial(
            list_branch, identity=identity, namespace=request.namespace, branch=request.label, most=self._most_skills
        )
        versions, facts = await self._exports.facts_of(look)
        if request.namespace and not versions:
            raise RepositoryNotFound(
                f"you see no skill of the namespace '{request.namespace}' with the label '{request.label}'",
                hint="`skillery list` shows the skills that you see.",
            )
        known = [version for version in versions if version.version_id in facts]
        descriptions = {version_id: entry.description for version_id, entry in facts.items()}
        if request.sources == "git":
            has_branch = is_ref(request.label)
            plugins = Plugins(
                partial(_git_skill, request.address),
                partial(_git_namespace, request) if has_branch else None,
                partial(_git_thin, request) if has_branch else None,
            )
        else:
            zips = {version_id: entry.archives["zip"] for version_id, entry in facts.items()}
            plugins = Plugins(partial(_archive, request.address, zips), None, None)
        return marketplace(self._owner, request.namespace, known, descriptions, plugins, self._thin)


def marketplace(
    owner: str,
    part: str,
    versions: Sequence[RepositoryVersion],
    descriptions: Mapping[int, str],
    plugins: Plugins,
    thin: ThinPlugins,
) -> dict[str, Any]:
    """Return the marketplace of some versions. `part` is a namespace, `n/{skill}` for one skill, or "" for all skills.
    Descriptions are by the id of the version.
    """
    skills = [_skill(version, descriptions[version.version_id], plugins.of_skill(version)) for version in versions]
    names = {version.index_name for version in versions}
    namespaces = [] if plugins.of_namespace is None else _namespaces(versions, plugins.of_namespace)
    if plugins.of_thin is not None:
        namespaces += [
            _thin(namespace, members, plugins.of_thin(namespace), thin)
            for namespace, members in thin.members(versions).items()
        ]
    return {
        "name": marketplace_name(owner, part),
        "owner": {"name": owner},
        "metadata": {"description": describe_part(part)},
        "plugins": [*skills, *(namespace for namespace in namespaces if namespace["name"] not in names)],
    }


def marketplace_name(owner: str, part: str) -> str:
    """Return the name of a marketplace: that of the server, and for a part of its skills also that of the part."""
    if not part:
        return owner
    skill = part.removeprefix("n/")
    return index_name(f"{owner}-{part}" if skill == part else f"{owner}-skill-{skill}")


def describe_part(part: str) -> str:
    if not part:
        return "Skills of all namespaces."
    skill = part.removeprefix("n/")
    return f"Skills of the namespace {part}." if skill == part else f"The skill {skill}."


def _skill(version: RepositoryVersion, description: str, place: Place) -> dict[str, Any]:
    return {
        "name": version.index_name,
        "source": place.source,
        "description": description,
        # Clients update a plugin only if its version differs.
        "version": version.version,
        "strict": False,
        "skills": place.skills,
    }


def _namespaces(
    versions: Sequence[RepositoryVersion], place_of: Callable[[str, Sequence[RepositoryVersion]], Place]
) -> list[dict[str, Any]]:
    """Return a plugin for each namespace with several skills. Without a version, clients take the commit as version."""
    members: dict[str, list[RepositoryVersion]] = {}
    for version in versions:
        namespace = version.name.rpartition(".")[0]
        if namespace:
            members.setdefault(namespace, []).append(version)
    plugins: dict[str, dict[str, Any]] = {}
    for namespace, skills in sorted(members.items()):
        name = f"{index_name(namespace)}-all"
        if len(skills) > 1 and name not in plugins:
            place = place_of(namespace, skills)
            plugins[name] = {
                "name": name,
                "source": place.source,
                "description": f"All skills of the namespace {namespace}.",
                "strict": False,
                "skills": place.skills,
            }
    return list(plugins.values())


def _thin(
    namespace: str, members: Sequence[RepositoryVersion], source: str | dict[str, str], thin: ThinPlugins
) -> dict[str, Any]:
    return {
        "name": thin_name(namespace),
        "source": source,
        "description": describe_thin(namespace),
        "strict": False,
        "skills": [f"./skills/{member.index_name}" for member in members],
        "mcpServers": thin.servers_for_claude,
    }


# -- places on a server ---------------------------------------------------------------------------------------------


def _archive(address: str, zips: Mapping[int, str], version: RepositoryVersion) -> Place:
    url = f"{address}/skills/{version.name}/{quote(version.version, safe='')}.zip"
    return Place({"source": "archive", "url": url, "sha256": zips[version.version_id]}, ["./"])


def _git_skill(address: str, version: RepositoryVersion) -> Place:
    tag = f"v{version.version}"
    ref = {"ref": tag} if is_ref(tag) else {}
    return Place(
        {"source": "url", "url": f"{address}/git/n/{version.name}.git", **ref}, [f"./skills/{version.index_name}"]
    )


def _git_namespace(request: Asked, namespace: str, members: Sequence[RepositoryVersion]) -> Place:
    source = {"source": "url", "url": f"{request.address}/git/{namespace}.git", "ref": request.label}
    return Place(source, [f"./skills/{member.index_name}" for member in members])


def _git_thin(request: Asked, namespace: str) -> dict[str, str]:
    url = f"{request.address}/git/{namespace}.git"
    return {"source": "git-subdir", "url": url, "path": thin_folder(namespace), "ref": request.label}
