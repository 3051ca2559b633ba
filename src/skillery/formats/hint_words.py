"""The words of hints. Errors name methods, in the words of JSON-RPC. The shell and MCP replace them by their own."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

COMMANDS = {
    "add_trust_rule": "skillery trust add",
    "add_webhook": "skillery webhook add",
    "approve_version": "skillery approve",
    "call_tool": "skillery tool call",
    "cancel_run": "skillery runs cancel",
    "check_skill": "skillery publish --dry-run",
    "collect_garbage": "skillery gc",
    "create_blob or POST /blobs": "skillery blob put",
    "create_blob": "skillery blob put",
    "create_skill": "skillery publish",
    "create_token": "skillery token create",
    "create_workspace with 'from'": "skillery workspace fork",
    "create_workspace": "skillery workspace create",
    "define_tool": "skillery tool define",
    "delete_blob": "skillery blob rm",
    "delete_workspace": "skillery workspace delete",
    "deprecate_skill": "skillery deprecate",
    "describe_environment": "skillery env show",
    "describe_skill with detail 'full'": "skillery describe --detail full",
    "describe_skill": "skillery describe",
    "describe_workspace": "skillery workspace files",
    "diff_versions": "skillery diff",
    "execute_skill": "skillery run",
    "get_run": "skillery runs show",
    "get_usage": "skillery quota",
    "list_audit": "skillery audit list",
    "list_dead_letters": "skillery webhook dead",
    "list_environments": "skillery env list",
    "list_labels": "skillery label list --history",
    "list_runs": "skillery runs list",
    "list_skill_usage": "skillery usage",
    "list_skills": "skillery list",
    "list_tokens": "skillery token list",
    "list_tools": "skillery tool list",
    "list_trust_rules": "skillery trust list",
    "list_versions": "skillery versions",
    "list_waivers": "skillery waiver list",
    "list_webhooks": "skillery webhook list",
    "list_workspaces": "skillery workspace list",
    "POST /blobs": "skillery blob put",
    "purge_version": "skillery purge",
    "read_blob": "skillery blob get",
    "read_run_log": "skillery runs logs",
    "read_skill_file": "skillery read",
    "read_workspace_file": "skillery workspace get",
    "rebuild_environment": "skillery env rebuild",
    "reject_version": "skillery reject",
    "remove_label": "skillery label rm",
    "remove_tool": "skillery tool remove",
    "remove_trust_rule": "skillery trust rm",
    "remove_webhook": "skillery webhook rm",
    "reset_workspace": "skillery workspace reset",
    "resolve_skills": "skillery lock",
    "revoke_identity": "skillery offboard",
    "revoke_token": "skillery token revoke",
    "revoke_waiver": "skillery waiver rm",
    "rollback_label": "skillery label rollback",
    "run_code": "skillery code",
    "search_skills": "skillery search",
    "set_label": "skillery label set",
    "set_visibility": "skillery visibility",
    "submit_version": "skillery submit",
    "test_webhook": "skillery webhook test",
    "undeprecate_skill": "skillery undeprecate",
    "unyank_version": "skillery unyank",
    "verify_lock": "skillery lock --check",
    "waive_finding": "skillery waiver add",
    "yank_version": "skillery yank",
}
"""The command for a method, or for a phrase with a method."""
_PHRASES = re.compile(
    "|".join(rf"(?<![\w./']){re.escape(phrase)}(?!\w)" for phrase in sorted(COMMANDS, key=len, reverse=True))
)
MOUNT = re.compile(r"mount_skills=\['([^']+)'\]")
"""The param of run_code in a message, and the name of its skill: `--mount NAME` in the shell."""
_SENTENCE = re.compile(r"(?<=[.!?]) +")
_TOOLS_OF = {"create_blob or POST /blobs": "create_blob", "POST /blobs": "create_blob"}


def words_of_shell(text: str) -> str:
    """Return a hint with commands in the place of methods: list_skills becomes `skillery list`."""
    return _PHRASES.sub(lambda match: f"`{COMMANDS[match[0]]}`", MOUNT.sub(r"--mount \1", text))


def words_of_tools(text: str, tools: Collection[str]) -> str:
    """Return a hint for a model with these tools. Sentences about methods that are no tools of the model are left out.

    Return "" if no sentence is left.
    """
    replaced = re.sub("|".join(_TOOLS_OF), lambda match: _TOOLS_OF[match[0]], text)
    return " ".join(part for part in _SENTENCE.split(replaced) if _methods_in(part) <= set(tools))


def error_for_tools(error: dict[str, Any], tools: Collection[str]) -> dict[str, Any]:
    """Return an error object with its hint in the words of a model with these tools, or without a hint."""
    data = error.get("data")
    if not isinstance(data, dict) or "hint" not in data:
        return error
    others = {name: value for name, value in data.items() if name != "hint"}
    hint = words_of_tools(str(data["hint"]), tools)
    return {**error, "data": {**others, "hint": hint} if hint else others}


def _methods_in(text: str) -> set[str]:
    return {match[0].split(" ")[0] for match in _PHRASES.finditer(text)}
