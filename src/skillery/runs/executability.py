"""Errors for skills and files that a request names and that cannot be executed that way."""

from __future__ import annotations

from sqlalchemy import Connection

from skillery.errors import NotExecutable
from skillery.formats.manifest import Manifest, Runtime
from skillery.registry import VersionRow
from skillery.registry.tool_lookup import tool_run_by


def not_executable(version: VersionRow, manifest: Manifest) -> NotExecutable:
    if manifest.kind == "instruction":
        return NotExecutable(
            f"'{version.name}' is an instruction skill: there is nothing to execute",
            hint="Read its SKILL.md with read_skill_file and follow it. If that names a script of the skill, pass "
            "its path as 'script'.",
            name=version.name,
        )
    return NotExecutable(
        f"'{version.name}' has no entrypoint: it offers tools",
        hint="Call one with call_tool, or pass the path of one of its files as 'script'.",
        name=version.name,
    )


def has_entrypoint(version: VersionRow, runtime: Runtime) -> NotExecutable:
    return NotExecutable(
        f"'{version.name}' has an entrypoint, {runtime.entrypoint}: no other file of it can be run as a script",
        hint="Leave 'script' out.",
        name=version.name,
    )


def check_no_handler(connection: Connection, version: VersionRow, path: str) -> None:
    """Raise NotExecutable if the file is the handler of a tool.

    The declared arguments of a tool limit what it does with secrets and network. So its handler starts only with them.
    """
    tool = tool_run_by(connection, version, path)
    if tool is not None:
        raise NotExecutable(
            f"{path} is the handler of the tool '{tool}' of '{version.name}', which has permissions",
            hint=f"Call it with call_tool: '{version.name}/{tool}'.",
            name=version.name,
        )
