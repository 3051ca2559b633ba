"""Thin plugins: the skills of a namespace without their scripts. The scripts run on the server, over MCP.

A client reads the instructions from its own disk, and the server enforces the permissions of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from skillery.formats.agent_skill import index_name
from skillery.formats.bundle import SKILL_MD
from skillery.formats.languages import is_source
from skillery.registry.repositories import RepositoryVersion

FOLDER = "thin"
"""The folder of a repository that has the thin plugins."""
MOST_NAMED = 20
"""The maximum number of scripts that the instructions name."""


class ThinPlugins(NamedTuple):
    """The thin plugins of a server. They need its public address, which is part of their files."""

    namespaces: tuple[str, ...] = ()
    """The setting `thin_plugins`."""
    server: str = ""
    """The name of the MCP server in clients."""
    address: str = ""
    """The setting `public_url`, without a slash at the end."""
    can_log_in: bool = False
    """Whether clients can get a token by themselves. If not, they start `skillery mcp`, which uses the login of
    `skillery login`.
    """

    @property
    def servers(self) -> dict[str, Any]:
        """The MCP servers of a thin plugin, as in `mcp.json`. They contain no token."""
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
        """Return the namespace whose thin plugin has the skill `name`, or None. The longest namespace counts."""
        namespaces = [namespace for namespace in self.namespaces if name.startswith(f"{namespace}.")]
        return max(namespaces, key=len, default=None)

    def members(self, versions: Sequence[RepositoryVersion]) -> dict[str, list[RepositoryVersion]]:
        """Return the versions of each thin plugin, by namespace."""
        members: dict[str, list[RepositoryVersion]] = {}
        for version in versions:
            namespace = self.namespace_of(version.name)
            if namespace is not None:
                members.setdefault(namespace, []).append(version)
        return dict(sorted(members.items()))

    @property
    def servers_for_claude(self) -> dict[str, Any]:
        """The same, with the word that Claude Code has for streamable HTTP."""
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
    return f"{FOLDER}/{index_name(namespace)}"


def is_script(path: str, *, executable: bool) -> bool:
    """Return whether a thin plugin leaves out a file: everything below `code/`, and scripts anywhere."""
    if path == SKILL_MD:
        return False
    return executable or path.startswith("code/") or is_source(path)


def remote_instructions(version: RepositoryVersion, server: str, scripts: Sequence[str]) -> bytes:
    """Return the text at the end of SKILL.md that tells the model how to run the scripts that are left out."""
    listed = "".join(f"- `{path}`\n" for path in scripts[:MOST_NAMED])
    more = f"- and {len(scripts) - MOST_NAMED} more\n" if len(scripts) > MOST_NAMED else ""
    call = f'{{"name": "{version.name}", "version": "{version.version}"}}'
    return f"""

## Run scripts on the server

These files of the skill are not in this folder. They run on the server, with the permissions of the skill:

{listed}{more}
Call the tool `execute_skill` of the MCP server `{server}` with `{call}` and `args`. `describe_skill` shows which `args`
the skill takes. If the skill has no entrypoint, add `"script": "PATH"` with the path of a file above, and give the
arguments of the command line as `"args": {{"argv": [...]}}`. Do not write these files yourself.
""".encode()
