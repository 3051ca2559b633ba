"""Made by `make client`: do not edit."""

from __future__ import annotations

from typing import Any

ONCE = frozenset(
    ["execute_skill", "run_code", "create_blob", "call_tool", "create_skill", "define_tool", "create_workspace"]
)
"""Methods that the server executes once for each Idempotency-Key."""
REPEATABLE = frozenset(
    [
        "list_skills",
        "describe_skill",
        "read_skill_file",
        "read_blob",
        "load_skills_protocol_guide",
        "check_skill",
        "develop_skill",
        "keep_development",
        "end_development",
        "search_skills",
        "diff_versions",
        "list_versions",
        "list_waivers",
        "list_labels",
        "resolve_skills",
        "verify_lock",
        "get_run",
        "read_run_log",
        "list_runs",
        "list_tools",
        "list_workspaces",
        "describe_workspace",
        "read_workspace_file",
        "list_environments",
        "describe_environment",
        "list_skill_usage",
        "get_usage",
        "collect_garbage",
        "list_tokens",
        "list_webhooks",
        "test_webhook",
        "list_dead_letters",
        "list_trust_rules",
        "list_audit",
    ]
)
"""Further methods that a client may call twice without harm: most of them change nothing."""
TOOLS = (
    "list_skills",
    "describe_skill",
    "read_skill_file",
    "execute_skill",
    "run_code",
    "create_blob",
    "read_blob",
    "load_skills_protocol_guide",
)
"""The tools of the protocol."""
FOR_MODELS: dict[str, dict[str, Any]] = {"search_skills": {"limit": 5, "detail": "brief"}}
"""The defaults of params in tool calls of models, if they differ from those of the method."""
