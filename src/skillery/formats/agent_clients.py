"""The settings and commands that connect each agent client to a server. `skillery connect` and the page of a skill show
the same.

No file gets a token. Clients that clone with git ask `skillery credential` for the login. MCP clients start `skillery
mcp`, which uses the login too.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlsplit

from skillery.formats.names import index_name


class Server(NamedTuple):
    """The server to connect to, and the skills that the client gets."""

    url: str
    """Address without a slash at the end."""
    name: str
    """Name of its marketplace, which is also the name of the MCP server in the client."""
    namespace: str = ""
    """The namespace whose skills the client gets; "" for all."""
    program: str = "skillery"
    """Absolute path of `skillery`: clients do not have the PATH of a shell."""
    tools: Sequence[str] = ()
    """The skills whose Skill Tools MCP clients get as tools."""
    skill: str = ""
    """The skill that the commands name. With "", they have placeholders, or name all skills."""
    needs_login: bool = True

    @property
    def marketplace(self) -> str:
        """The address of the git repository with all skills of the namespace."""
        return f"{self.url}/git/{self.namespace or '_all'}.git"

    @property
    def repository(self) -> str:
        """The address of the git repository of the skill, else of the marketplace."""
        return f"{self.url}/git/n/{self.skill}.git" if self.skill else self.marketplace

    @property
    def helper(self) -> str:
        """The credential helper as git runs it."""
        return f"!{shlex.join((self.program, 'credential', '--url', self.url))}"

    @property
    def mcp(self) -> dict[str, Any]:
        """The MCP server as a command."""
        tools = [word for name in ("search_skills", *self.tools) for word in ("--tools", name)]
        return {"command": self.program, "args": ["mcp", *tools, "--url", self.url]}

    def plugin(self, placeholder: str = "PLUGIN") -> str:
        """Return the name of the skill as a plugin and as a folder, else the placeholder."""
        return index_name(self.skill) if self.skill else placeholder


class Settings(NamedTuple):
    """Entries for one settings file of a client, in JSON or TOML."""

    path: str
    """The path of the file. `~` is the folder of the user."""
    entries: Mapping[str, Mapping[str, Any]]
    """The values by table and name."""
    folder_variable: str = ""
    """The client's own variable for another folder of this file."""


class Plan(NamedTuple):
    """The settings and commands that connect one client."""

    settings: Sequence[Settings] = ()
    commands: Sequence[str] = ()
    """Commands for the user to run next."""
    text: str = ""
    """Settings to copy, for files that `skillery connect` does not write."""
    place: str = "the settings of the client"
    """Where `text` belongs."""
    link: str = ""
    """A link with which a browser opens the client, and the client adds the MCP server. Else ""."""


def claude(server: Server) -> Plan:
    """Return the plan for Claude Code."""
    marketplace = {"source": {"source": "git", "url": server.marketplace}}
    entries = {"extraKnownMarketplaces": {server.name: marketplace}}
    mcp = shlex.join((server.mcp["command"], *server.mcp["args"]))
    return Plan(
        [Settings("~/.claude/settings.json", entries, "CLAUDE_CONFIG_DIR")],
        [
            f"claude plugin marketplace add {server.marketplace}",
            f"claude plugin install {server.plugin()}@{server.name}",
            f"claude mcp add --scope user {server.name} -- {mcp}",
        ],
    )


def codex(server: Server) -> Plan:
    return Plan(
        [Settings("~/.codex/config.toml", {"mcp_servers": {server.name: server.mcp}}, "CODEX_HOME")],
        [
            f"codex plugin marketplace add {server.marketplace}",
            f"codex plugin add {server.plugin()}@{server.name}",
        ],
    )


def cursor(server: Server) -> Plan:
    config = base64.b64encode(json.dumps(server.mcp).encode()).decode()
    link = f"cursor://anysphere.cursor-deeplink/mcp/install?name={quote(server.name)}&config={quote(config, safe='')}"
    return Plan([Settings("~/.cursor/mcp.json", {"mcpServers": {server.name: server.mcp}})], link=link)


def copilot(server: Server) -> Plan:
    mcp = {"type": "local", **server.mcp, "tools": ["*"]}
    return Plan(
        [Settings("~/.copilot/mcp-config.json", {"mcpServers": {server.name: mcp}}, "COPILOT_HOME")],
        [
            f"copilot plugin marketplace add {server.marketplace}",
            f"copilot plugin install {server.plugin()}@{server.name}",
        ],
    )


def vscode(server: Server) -> Plan:
    mcp = {"type": "stdio", **server.mcp}
    link = f"vscode:mcp/install?{quote(json.dumps({'name': server.name, **mcp}), safe='')}"
    return Plan([Settings(".vscode/mcp.json", {"servers": {server.name: mcp}})], link=link)


def npx(server: Server) -> Plan:
    return Plan(commands=[f"npx skills add {server.repository}"])


def apm(server: Server) -> Plan:
    # `apm install ADDRESS` refuses `git` as a part of a path, and installs a whole repository for Copilot only.
    path = f"skills/{server.plugin('NAME')}"
    entry = f"dependencies:\n  apm:\n    - git: {server.repository}\n      path: {path}"
    return Plan(commands=["apm install"], text=entry, place="apm.yml")


def mcp(server: Server) -> Plan:
    """Return the plan for any other MCP client."""
    return Plan(text=json_text({"mcpServers": {server.name: server.mcp}}))


def json_text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _apm_reaches(server: Server) -> bool:
    """Return whether APM can clone from a server: its hosts are full names or addresses, with a login over TLS only."""
    address = urlsplit(server.url)
    is_full = address.hostname is not None and not set(".:").isdisjoint(address.hostname)
    return is_full and (address.scheme == "https" or not server.needs_login)


class Client(NamedTuple):
    """An agent client."""

    title: str
    plan: Callable[[Server], Plan]
    skills_as: Literal["plugins", "folders", ""]
    """How the client gets skills with git. "" if it has MCP only."""
    reaches: Callable[[Server], bool] = lambda _server: True
    """Whether the client can use a server."""


CLIENTS: dict[str, Client] = {
    "claude": Client("Claude Code", claude, "plugins"),
    "codex": Client("Codex", codex, "plugins"),
    "cursor": Client("Cursor", cursor, ""),
    "copilot": Client("Copilot", copilot, "plugins"),
    "vscode": Client("VS Code", vscode, ""),
    "npx": Client("npx skills", npx, "folders"),
    "apm": Client("APM", apm, "folders", _apm_reaches),
    "mcp": Client("MCP", mcp, ""),
}
