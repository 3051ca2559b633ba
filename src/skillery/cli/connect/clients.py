"""What each client needs to use a server: entries in its settings files, and commands of its own.

No file gets a token. Clients that clone with git ask `skillery credential` for the login. MCP clients start
`skillery mcp`, which uses the login too.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skillery.cli.connect.settings import Change, change_git, change_json, change_toml, json_text


class Server(NamedTuple):
    """The server to connect to."""

    url: str
    """Address without a slash at the end."""
    name: str
    """Name of its marketplace, which is also the name of the MCP server in the client."""
    namespace: str
    """The namespace whose skills the client gets; "" for all."""
    program: str
    """Absolute path of `skillery`: clients do not have the PATH of a shell."""

    @property
    def repository(self) -> str:
        return f"{self.url}/git/{self.namespace or '_all'}.git"

    @property
    def helper(self) -> str:
        """The credential helper as git runs it."""
        return f"!{shlex.join((self.program, 'credential', '--url', self.url))}"

    @property
    def mcp(self) -> dict[str, Any]:
        """The MCP server as a command."""
        return {"command": self.program, "args": ["mcp", "--tools", "search_skills", "--url", self.url]}


class Plan(NamedTuple):
    """What connects one client."""

    changes: Sequence[Change]
    commands: Sequence[str] = ()
    """Commands for the user to run next."""
    text: str = ""
    """Settings to copy, for files that the command does not write."""
    place: str = "the settings of the client"
    """Where `text` belongs."""


def _home(variable: str, folder: str) -> Path:
    """Return the settings folder of a client. `variable` is the client's own variable for another folder."""
    return Path(os.environ.get(variable) or Path.home() / folder)


def claude(server: Server) -> Plan:
    place = _home("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"
    marketplace = {"source": {"source": "git", "url": server.repository}}
    settings = {"extraKnownMarketplaces": {server.name: marketplace}}
    mcp = shlex.join((server.mcp["command"], *server.mcp["args"]))
    return Plan(
        [change_git(server.url, server.helper), change_json(place, settings)],
        [
            f"claude plugin marketplace add {server.repository}",
            f"claude plugin install PLUGIN@{server.name}",
            f"claude mcp add --scope user {server.name} -- {mcp}",
        ],
    )


def codex(server: Server) -> Plan:
    place = _home("CODEX_HOME", ".codex") / "config.toml"
    return Plan(
        [change_git(server.url, server.helper), change_toml(place, "mcp_servers", server.name, server.mcp)],
        [f"codex plugin marketplace add {server.repository}", f"codex plugin add PLUGIN@{server.name}"],
    )


def cursor(server: Server) -> Plan:
    return Plan([change_json(Path.home() / ".cursor" / "mcp.json", {"mcpServers": {server.name: server.mcp}})])


def copilot(server: Server) -> Plan:
    place = _home("COPILOT_HOME", ".copilot") / "mcp-config.json"
    mcp = {"type": "local", **server.mcp, "tools": ["*"]}
    return Plan(
        [change_git(server.url, server.helper), change_json(place, {"mcpServers": {server.name: mcp}})],
        [f"copilot plugin marketplace add {server.repository}", f"copilot plugin install PLUGIN@{server.name}"],
    )


def vscode(server: Server) -> Plan:
    mcp = {"type": "stdio", **server.mcp}
    return Plan([change_json(Path(".vscode") / "mcp.json", {"servers": {server.name: mcp}})])


def npx(server: Server) -> Plan:
    return Plan([change_git(server.url, server.helper)], [f"npx skills add {server.repository}"])


def apm(server: Server) -> Plan:
    # `apm install ADDRESS` refuses `git` as a part of a path, and installs a whole repository for Copilot only.
    entry = f"dependencies:\n  apm:\n    - git: {server.repository}\n      path: skills/NAME"
    return Plan([change_git(server.url, server.helper)], ["apm install"], entry, "apm.yml")


def mcp(server: Server) -> Plan:
    return Plan([], text=json_text({"mcpServers": {server.name: server.mcp}}))


CLIENTS: dict[str, Callable[[Server], Plan]] = {
    one.__name__: one for one in (claude, codex, cursor, copilot, vscode, npx, apm, mcp)
}
