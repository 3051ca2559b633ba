"""Changes to the settings files of agent clients and git: a change adds its own entries and keeps all others."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from skillery.errors import StartupError
from skillery.formats.agent_clients import Client, Server, Settings, json_text

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


def changes_for(client: Client, server: Server) -> list[Change]:
    """Return the changes that connect a client to a server. Raise StartupError if a file cannot be changed."""
    of_git = [change_git(server.url, server.helper)] if client.skills_as else []
    return [*of_git, *map(_change_settings, client.plan(server).settings)]


def _change_settings(settings: Settings) -> Change:
    """Return the change that adds the entries of a client to its settings file."""
    path = Path(settings.path).expanduser()
    if folder := os.environ.get(settings.folder_variable):
        path = Path(folder) / path.name
    if path.suffix == ".json":
        return change_json(path, settings.entries)
    [(table, entries)] = settings.entries.items()
    [(name, values)] = entries.items()
    return change_toml(path, table, name, values)
