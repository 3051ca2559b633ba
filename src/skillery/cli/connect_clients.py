"""The settings and commands that connect each client to a server.

No file gets a token. Clients that clone with git ask `skillery credential` for the login. MCP clients start `skillery
mcp`, which uses the login too.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from skillery.errors import StartupError

# -- Changes to the settings files of clients: a change adds its own entries and keeps all others ----------------------


GIT_SECONDS = 10


class Change(NamedTuple):
    """The text of one settings file, before and after. `before` is "" if there is no file."""

    path: Path
    before: str
    after: str
    addition: str
    """What the change adds, for a person who edits the file."""

    def diff(self) -> str:
        """Return the change as a unified diff, or "" if the file already has the settings."""
        import difflib

        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), str(self.path), str(self.path)
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def write(self) -> None:
        """Write the file, complete or not at all. Its mode stays. Raise StartupError if that is not possible."""
        if self.before == self.after:
            return
        real_path = Path(os.path.realpath(self.path))  # the file may be a link into a folder with settings
        partial = real_path.with_name(f".{real_path.name}.{secrets.token_hex(4)}")
        try:
            real_path.parent.mkdir(parents=True, exist_ok=True)
            if real_path.exists() and real_path.read_text("utf-8") != self.before:
                raise StartupError(f"'{self.path}' changed during the command: run the command again")
            partial.write_text(self.after, "utf-8")
            if real_path.exists():
                shutil.copymode(real_path, partial)
            partial.replace(real_path)
        except OSError as error:
            raise StartupError(f"cannot write '{self.path}': {error.strerror}") from None
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def change_json(path: Path, addition: Mapping[str, Any]) -> Change:
    """Return the change that merges objects into a JSON file. Raise StartupError if the file is not a JSON object."""
    old_text = _text(path)
    try:
        content = json.loads(old_text) if old_text.strip() else {}
    except ValueError as error:
        raise _unreadable(path, addition, f"is not JSON: {error}") from None
    new_text = json.dumps(_merged(path, content, addition), indent=2, ensure_ascii=False) + "\n"
    is_same = old_text.strip() and json.loads(new_text) == content
    return Change(path, old_text, old_text if is_same else new_text, json_text(addition))


def _merged(path: Path, content: Any, addition: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise _unreadable(path, addition, "has another value where an object belongs")
    merged = dict(content)
    for name, value in addition.items():
        # An entry of this server is replaced whole: a former entry may have other keys.
        is_group = isinstance(value, Mapping) and all(isinstance(entry, Mapping) for entry in value.values())
        merged[name] = _merged(path, merged.get(name, {}), value) if is_group else value
    return merged


def _unreadable(path: Path, addition: Mapping[str, Any], subject: str) -> StartupError:
    return StartupError(f"'{path}' {subject}; add this by hand:\n{json_text(addition)}")


def json_text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def change_toml(path: Path, table: str, name: str, values: Mapping[str, Any]) -> Change:
    """Return the change that sets `[table.name]` in a TOML file. Comments and order stay.

    Raise StartupError if the file is not TOML.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    old_text = _text(path)
    document = tomlkit.document()
    document[table] = {name: dict(values)}
    addition = tomlkit.dumps(document).strip().removeprefix(f"[{table}]").strip()
    try:
        toml = tomlkit.parse(old_text)
        group = toml.setdefault(table, tomlkit.table(is_super_table=True))
        if not isinstance(group, dict):
            raise StartupError(f"'{path}' has another value at '{table}'; add this by hand:\n{addition}")
        if group.get(name) != values:
            group[name] = dict(values)
    except TOMLKitError as error:
        raise StartupError(f"'{path}' is not TOML: {error}; add this by hand:\n{addition}") from None
    new_text = tomlkit.dumps(toml)
    return Change(path, old_text, new_text if new_text == old_text else f"{new_text.rstrip()}\n", addition)


def change_git(server: str, helper: str) -> Change:
    """Return the change that makes `helper` the only credential helper for a server in the user's settings of git.

    An empty helper comes first. It removes the other helpers, which would write the token to their own files.
    """
    path = _git_settings()
    old_text = _text(path)
    key = f"credential.{server}.helper"
    addition = f'[credential "{server}"]\n\thelper =\n\thelper = "{_escaped(helper)}"'
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "config"
        copy.write_text(old_text, "utf-8")
        if _git(copy, "--get-all", key, may_fail=True) != f"\n{helper}\n":
            _git(copy, "--replace-all", key, "")
            _git(copy, "--add", key, helper)
        return Change(path, old_text, copy.read_text("utf-8"), addition)


def _escaped(helper: str) -> str:
    return helper.replace("\\", "\\\\").replace('"', '\\"')


def _git_settings() -> Path:
    """Return the file that `git config --global` writes."""
    if configured := os.environ.get("GIT_CONFIG_GLOBAL"):
        return Path(configured)
    usual = Path.home() / ".gitconfig"
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    other = folder / "git" / "config"
    return other if other.exists() and not usual.exists() else usual


def _git(file: Path, *words: str, may_fail: bool = False) -> str:
    command = ["git", "config", "--file", str(file), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except OSError:
        raise StartupError("this computer has no git: install it, and run the command again") from None
    if done.returncode != 0 and not may_fail:
        raise StartupError(f"git cannot change its settings: {done.stderr.strip()}")
    return done.stdout


def _text(path: Path) -> str:
    """Return the text of a file, "" without a file."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read '{path}': {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None


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
    """The changes and commands that connect one client."""

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
    """Return the plan for Claude Code."""
    settings_path = _home("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"
    marketplace = {"source": {"source": "git", "url": server.repository}}
    settings = {"extraKnownMarketplaces": {server.name: marketplace}}
    mcp = shlex.join((server.mcp["command"], *server.mcp["args"]))
    return Plan(
        [change_git(server.url, server.helper), change_json(settings_path, settings)],
        [
            f"claude plugin marketplace add {server.repository}",
            f"claude plugin install PLUGIN@{server.name}",
            f"claude mcp add --scope user {server.name} -- {mcp}",
        ],
    )


def codex(server: Server) -> Plan:
    settings_path = _home("CODEX_HOME", ".codex") / "config.toml"
    return Plan(
        [change_git(server.url, server.helper), change_toml(settings_path, "mcp_servers", server.name, server.mcp)],
        [f"codex plugin marketplace add {server.repository}", f"codex plugin add PLUGIN@{server.name}"],
    )


def cursor(server: Server) -> Plan:
    return Plan([change_json(Path.home() / ".cursor" / "mcp.json", {"mcpServers": {server.name: server.mcp}})])


def copilot(server: Server) -> Plan:
    settings_path = _home("COPILOT_HOME", ".copilot") / "mcp-config.json"
    mcp = {"type": "local", **server.mcp, "tools": ["*"]}
    return Plan(
        [change_git(server.url, server.helper), change_json(settings_path, {"mcpServers": {server.name: mcp}})],
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
    client.__name__: client for client in (claude, codex, cursor, copilot, vscode, npx, apm, mcp)
}
