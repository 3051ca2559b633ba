"""METHODS, the table of all methods. The annotations of a function are its params and its result: skillery.method."""

from __future__ import annotations

from skillery.contents import blobs
from skillery.identity import offboarding, tokens, usage
from skillery.maintenance.garbage import collector
from skillery.method import Method, rows
from skillery.methods.calls import (
    environments,
    labels_and_locks,
    lifecycle,
    runs,
    skills,
    tools,
    workspaces,
)
from skillery.registry import audit_trail
from skillery.trust import rules
from skillery.webhooks import dead_letters, targets

METHODS = rows(
    Method(skills.list_skills, "read", is_tool=True, audits="", develops=True),
    Method(skills.describe_skill, "read", is_tool=True, audits="", develops=True),
    Method(skills.read_skill_file, "read", is_tool=True, audits="", develops=True),
    Method(runs.execute_skill, "run", is_tool=True, audits="", once=True, develops=True),
    Method(runs.run_code, "run", is_tool=True, audits="", once=True, develops=True),
    Method(skills.load_skills_protocol_guide, "read", is_tool=True, audits=""),
    Method(skills.create_skill, "publish", audits="manifest", once=True),
    Method(lifecycle.submit_version, "publish", audits="name"),
    Method(lifecycle.approve_version, "review", audits="name"),
    Method(lifecycle.reject_version, "review", audits="name"),
    Method(lifecycle.yank_version, "publish", audits="name"),
    Method(lifecycle.purge_version, "admin", audits="name"),
    Method(lifecycle.unyank_version, "publish", audits="name"),
    Method(lifecycle.deprecate_skill, "publish", audits="name"),
    Method(lifecycle.undeprecate_skill, "publish", audits="name"),
    Method(lifecycle.set_visibility, "publish", audits="name"),
    Method(lifecycle.list_versions, "read", audits=""),
    Method(skills.diff_versions, "read", audits="", develops=True),
    Method(runs.get_run, "read", audits=""),
    Method(runs.read_run_log, "read", audits=""),
    Method(runs.list_runs, "read", audits=""),
    Method(runs.cancel_run, "run", audits="run_id"),
    Method(labels_and_locks.set_label, "publish", audits="name"),
    Method(labels_and_locks.rollback_label, "publish", audits="name"),
    Method(labels_and_locks.remove_label, "publish", audits="name"),
    Method(labels_and_locks.list_labels, "read", audits=""),
    Method(labels_and_locks.resolve_skills, "read", audits=""),
    Method(labels_and_locks.verify_lock, "read", audits=""),
    Method(skills.search_skills, "read", audits=""),
    Method(skills.check_skill, "publish", audits=""),
    Method(skills.develop_skill, "publish", audits=""),
    Method(skills.keep_development, "publish", audits=""),
    Method(skills.end_development, "publish", audits=""),
    Method(lifecycle.waive_finding, "review", audits="name"),
    Method(lifecycle.recheck_version, "review", audits="name"),
    Method(lifecycle.list_waivers, "review", audits=""),
    Method(lifecycle.revoke_waiver, "review", audits="id"),
    Method(tools.list_tools, "read", audits="", develops=True),
    Method(tools.call_tool, "run", audits="", once=True, develops=True),
    Method(tools.define_tool, "run", audits="name", once=True),
    Method(tools.remove_tool, "run", audits="name"),
    Method(workspaces.create_workspace, "run", audits="origin", once=True),
    Method(workspaces.list_workspaces, "read", audits=""),
    Method(workspaces.describe_workspace, "read", audits=""),
    Method(workspaces.read_workspace_file, "read", audits=""),
    Method(workspaces.reset_workspace, "run", audits="workspace"),
    Method(workspaces.delete_workspace, "run", audits="workspace"),
    Method(environments.list_environments, "run", audits=""),
    Method(environments.describe_environment, "run", audits=""),
    Method(environments.rebuild_environment, "admin", audits="name"),
    Method(skills.list_skill_usage, "read", audits=""),
    *targets.METHODS,
    *dead_letters.METHODS,
    *rules.METHODS,
    *tokens.METHODS,
    *offboarding.METHODS,
    *audit_trail.METHODS,
    *collector.METHODS,
    *usage.METHODS,
    *blobs.METHODS,
)
