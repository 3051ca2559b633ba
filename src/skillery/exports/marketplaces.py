"""Marketplaces: lists of plugins in the format of Claude Code, which Codex and Copilot read too. Each skill is a
plugin.

A repository contains its marketplace as a file (skillery.git_views.states). `/marketplace.json` names an archive or a
Git repository of the server for each plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from skillery.backends import Identity
from skillery.errors import RepositoryNotFound
from skillery.exports.skill_exports import Exports
from skillery.formats.bundle import SKILL_MD
from skillery.formats.media_types import is_source
from skillery.formats.names import index_name
from skillery.formats.paths import unportable_path
from skillery.registry.repositories import RepositoryVersion, is_ref, list_branch

# -- Thin plugins: the skills of a namespace without their scripts. The scripts run on the server, over MCP ------------
# A client reads the instructions from its own disk, and the server enforces the permissions of each run.


FOLDER = "thin"
"""The folder of a repository that has the thin plugins."""
MOST_NAMED = 20
"""The maximum number of scripts that the instructions name."""


class ThinPlugins(NamedTuple):
    """The thin plugins of a server. Their files contain the public address of the server."""

    namespaces: tuple[str, ...] = ()
    """The setting `thin_plugins`."""
    server: str = ""
    """The name of the MCP server in clients."""
    address: str = ""
    """The setting `public_url`, without a slash at the end."""
    can_log_in: bool = False
    """Whether clients can get a token themselves.

    If not, they start `skillery mcp`, which uses the token of `skillery login`.
    """

    @property
    def servers(self) -> dict[str, Any]:
        """The MCP servers of a thin plugin in the form of `mcp.json`. They contain no token."""
        if self.can_log_in:
            return {self.server: {"type": "streamable-http", "url": f"{self.address}/mcp?tools=search_skills"}}
        return {
            self.server: {
                "type": "stdio",
                "command": "skillery",
                "args": ["mcp", "--tools", "search_skills", "--url", self.address],
            }
        }

    def namespace_of(self, name: str) -> str | None:
        """Return the longest namespace with a thin plugin that has the skill `name`, or None."""
        namespaces = [namespace for namespace in self.namespaces if name.startswith(f"{namespace}.")]
        return max(namespaces, key=len, default=None)

    def members(self, versions: Sequence[RepositoryVersion]) -> dict[str, list[RepositoryVersion]]:
        """Return the versions in each thin plugin, by namespace."""
        members: dict[str, list[RepositoryVersion]] = {}
        for version in versions:
            namespace = self.namespace_of(version.name)
            if namespace is not None and not version.is_required:
                members.setdefault(namespace, []).append(version)
        return dict(sorted(members.items()))

    @property
    def servers_for_claude(self) -> dict[str, Any]:
        """The value of `servers` with the type `http`, as Claude Code calls streamable HTTP."""
        words = {"streamable-http": "http"}
        return {
            name: server | {"type": words.get(server["type"], server["type"])} for name, server in self.servers.items()
        }


NO_THIN_PLUGINS = ThinPlugins()


def thin_name(namespace: str) -> str:
    return f"{index_name(namespace)}-thin"


def describe_thin(namespace: str) -> str:
    return f"Skills of the namespace {namespace}. Their scripts run on the server."


def thin_folder(namespace: str) -> str:
    """Return the folder of a thin plugin in a repository."""
    return f"{FOLDER}/{index_name(namespace)}"


def is_script(path: str, *, executable: bool) -> bool:
    """Return whether a thin plugin does not contain the file: all files below `code/`, and scripts in any folder."""
    if path == SKILL_MD:
        return False
    return executable or path.startswith("code/") or is_source(path)


def remote_instructions(version: RepositoryVersion, server: str, scripts: Sequence[str]) -> bytes:
    """Return the text at the end of SKILL.md that tells the model how to run the missing `scripts` on the server."""
    listed = "".join(f"- `{path}`\n" for path in scripts[:MOST_NAMED])
    more_line = f"- and {len(scripts) - MOST_NAMED} more\n" if len(scripts) > MOST_NAMED else ""
    call = f'{{"name": "{version.name}", "version": "{version.version}"}}'
    return f"""

## Run scripts on the server

These files of the skill are not in this folder. They run on the server, with the permissions of the skill:

{listed}{more_line}
Call the tool `execute_skill` of the MCP server `{server}` with `{call}` and `args`. `describe_skill` shows which `args`
the skill takes. If the skill has no entrypoint, add `"script": "PATH"` with the path of a file above, and give the
arguments of the command line as `"args": {{"argv": [...]}}`. Do not write these files yourself.
""".encode()


SourceKind = Literal["archive", "git"]
SOURCE_KINDS: tuple[SourceKind, ...] = ("archive", "git")


class Place(NamedTuple):
    """The source of a plugin, and the folders of its skills in it."""

    source: str | dict[str, str]
    skills: list[str]


class Plugins(NamedTuple):
    """Functions that return the places of the plugins in a marketplace."""

    of_skill: Callable[[RepositoryVersion], Place]
    of_namespace: Callable[[str, Sequence[RepositoryVersion]], Place] | None
    """The place of the plugin of a namespace. None if the marketplace has no such plugins."""
    of_thin: Callable[[str], str | dict[str, str]] | None
    """The source of the thin plugin of a namespace. None if the marketplace has no thin plugins."""


class Asked(NamedTuple):
    """The parameters of a request for `/marketplace.json`."""

    namespace: str
    """The namespace, or "" for all namespaces."""
    label: str
    sources: SourceKind
    address: str
    """The address of the server, without a slash at the end."""


class Marketplaces:
    """Makes the marketplaces of `/marketplace.json`."""

    def __init__(self, exports: Exports, owner: str, most_skills: int, thin: ThinPlugins) -> None:
        """`owner` is the name of the server in marketplaces."""
        self._exports = exports
        self.owner = owner
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
        portable = {version_id for version_id, entry in facts.items() if unportable_path(entry.files) is None}
        known = [version for version in versions if version.version_id in portable]
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
        return marketplace(self.owner, request.namespace, known, descriptions, plugins, self._thin)


def marketplace(
    owner: str,
    part: str,
    versions: Sequence[RepositoryVersion],
    descriptions: Mapping[int, str],
    plugins: Plugins,
    thin: ThinPlugins,
) -> dict[str, Any]:
    """Return the marketplace of `versions`.

    `part` is a namespace, `n/{skill}` for one skill, or "" for all skills. `descriptions` are by version id.
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
    """Return the name of a marketplace: the name of the server, followed by the name of the part if there is one."""
    if not part:
        return owner
    skill = part.removeprefix("n/")
    return index_name(f"{owner}-{part}" if skill == part else f"{owner}-skill-{skill}")


def describe_part(part: str) -> str:
    """Return the description of a marketplace. `part` is the one of `marketplace`."""
    if not part:
        return "Skills of all namespaces."
    skill = part.removeprefix("n/")
    return f"Skills of the namespace {part}." if skill == part else f"The skill {skill}."


def _skill(version: RepositoryVersion, description: str, place: Place) -> dict[str, Any]:
    """Return the plugin of a skill."""
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
    """Return a plugin for each namespace with several skills.

    The plugins have no version, so clients use the id of the commit as their version.
    """
    members: dict[str, list[RepositoryVersion]] = {}
    for version in versions:
        namespace = version.name.rpartition(".")[0]
        if namespace and not version.is_required:
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
    """Return the thin plugin of a namespace."""
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
