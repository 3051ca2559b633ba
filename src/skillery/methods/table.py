"""METHODS, the table of all methods. An entry has the function, params, result, scope, audit and idempotency of a
method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from skillery.backends import Identity, Scope
from skillery.contents.blob_rows import BlobContent, DeletedBlob, NewBlob
from skillery.environments.queries import DescribedEnvironment, EnvironmentPage
from skillery.formats.json_pieces import JsonPieces
from skillery.formats.version_diffs import VersionsDiff
from skillery.identity.offboarding import RevokedIdentity
from skillery.identity.tokens import CreatedToken, Token, Tokens
from skillery.identity.usage import IdentityUse
from skillery.maintenance.garbage.collector import Garbage
from skillery.maintenance.purges import PurgedVersion
from skillery.methods import (
    development_params,
    environment_params,
    params,
    tool_params,
    trust_params,
    webhook_params,
    workspace_params,
)
from skillery.methods.calls import (
    administration,
    blobs,
    environments,
    labels_and_locks,
    lifecycle,
    runs,
    skills,
    tools,
    trust,
    webhooks,
    workspaces,
)
from skillery.methods.core import Core
from skillery.publishing import CheckedSkill, CreatedSkill, DefinedTool, DevelopedSkill, KeptSkills, RecheckedVersion
from skillery.registry import (
    DescribedSkill,
    FoundSkillPage,
    Labels,
    Lock,
    MovedLabel,
    NewVersion,
    SkillFileContent,
    SkillPage,
    SkillUsagePage,
    ToolPage,
    Verified,
    VersionPage,
    Waiver,
    WaiverPage,
)
from skillery.registry.audit_trail import AuditPage
from skillery.runs.results import Run, RunLog, RunPage, RunRecord, ToolResult
from skillery.trust.results import RemovedTrustRule, TrustRule, TrustRules
from skillery.webhooks.results import AddedWebhook, DeadLetterPage, RemovedWebhook, WebhookList, WebhookTest
from skillery.workspaces.results import (
    DeletedWorkspace,
    DescribedWorkspace,
    WorkspaceFileContent,
    WorkspaceInfo,
    WorkspacePage,
)


class Method(NamedTuple):
    call: Callable[[Core, Identity, Any], Awaitable[msgspec.Struct | msgspec.Raw | JsonPieces]]
    """The function that executes a call. The arguments are the core, the identity and the decoded params.

    The function returns the result as the struct `result`, or as JSON with the members of that struct.
    """
    params: type[params.Params]
    result: type[msgspec.Struct]
    """Struct of the result. OpenRPC, MCP tools, skillery.client and the docs are generated from this struct."""
    needs: Scope | None
    """The scope that a caller needs. None means that every authenticated caller may call the method."""
    is_tool: bool = False
    """Whether the method is one of the eight tools of the Skills Protocol."""
    audits: str | None = None
    """The param that names the subject in the audit trail. Each change and each refused change leaves an entry.

    "" if a call needs no such entry: the method changes nothing, or starts runs or creates blobs (their rows name the
    caller), or changes only memory, or records its own entry. None is not allowed in METHODS: a test fails, so that the
    author of a new method must decide.
    """
    once: bool = False
    """Whether the method honours an Idempotency-Key. Such a method has a second effect if a call is repeated without
    a key.
    """
    develops: bool = False
    """Whether the caller's development versions replace the published ones in this method."""


METHODS: dict[str, Method] = {
    "list_skills": Method(
        skills.list_skills, params.ListSkills, SkillPage, "read", is_tool=True, audits="", develops=True
    ),
    "describe_skill": Method(
        skills.describe_skill, params.DescribeSkill, DescribedSkill, "read", is_tool=True, audits="", develops=True
    ),
    "read_skill_file": Method(
        skills.read_skill_file, params.ReadSkillFile, SkillFileContent, "read", is_tool=True, audits="", develops=True
    ),
    "execute_skill": Method(
        runs.execute_skill, params.ExecuteSkill, Run, "run", is_tool=True, audits="", once=True, develops=True
    ),
    "run_code": Method(runs.run_code, params.RunCode, Run, "run", is_tool=True, audits="", once=True, develops=True),
    "create_blob": Method(blobs.create_blob, params.CreateBlob, NewBlob, "run", is_tool=True, audits="", once=True),
    "read_blob": Method(blobs.read_blob, params.ReadBlob, BlobContent, "read", is_tool=True, audits=""),
    "load_skills_protocol_guide": Method(
        skills.load_guide, params.LoadSkillsProtocolGuide, skills.Guide, "read", is_tool=True, audits=""
    ),
    "create_skill": Method(
        skills.create_skill, params.CreateSkill, CreatedSkill, "publish", audits="manifest", once=True
    ),
    "submit_version": Method(lifecycle.submit_version, params.SubmitVersion, NewVersion, "publish", audits="name"),
    "approve_version": Method(lifecycle.approve_version, params.ApproveVersion, NewVersion, "review", audits="name"),
    "reject_version": Method(lifecycle.reject_version, params.RejectVersion, NewVersion, "review", audits="name"),
    "yank_version": Method(lifecycle.yank_version, params.YankVersion, NewVersion, "publish", audits="name"),
    "purge_version": Method(lifecycle.purge_version, params.PurgeVersion, PurgedVersion, "admin", audits="name"),
    "unyank_version": Method(lifecycle.unyank_version, params.UnyankVersion, NewVersion, "publish", audits="name"),
    "deprecate_skill": Method(lifecycle.deprecate_skill, params.DeprecateSkill, NewVersion, "publish", audits="name"),
    "undeprecate_skill": Method(
        lifecycle.undeprecate_skill, params.UndeprecateSkill, NewVersion, "publish", audits="name"
    ),
    "set_visibility": Method(lifecycle.set_visibility, params.SetVisibility, NewVersion, "publish", audits="name"),
    "list_versions": Method(lifecycle.list_versions, params.ListVersions, VersionPage, "read", audits=""),
    "diff_versions": Method(skills.diff_versions, params.DiffVersions, VersionsDiff, "read", audits="", develops=True),
    "get_run": Method(runs.get_run, params.GetRun, RunRecord, "read", audits=""),
    "read_run_log": Method(runs.read_run_log, params.ReadRunLog, RunLog, "read", audits=""),
    "list_runs": Method(runs.list_runs, params.ListRuns, RunPage, "read", audits=""),
    "cancel_run": Method(runs.cancel_run, params.CancelRun, RunRecord, "run", audits="run_id"),
    "set_label": Method(labels_and_locks.set_label, params.SetLabel, MovedLabel, "publish", audits="name"),
    "rollback_label": Method(
        labels_and_locks.rollback_label, params.RollbackLabel, MovedLabel, "publish", audits="name"
    ),
    "remove_label": Method(labels_and_locks.remove_label, params.RemoveLabel, MovedLabel, "publish", audits="name"),
    "list_labels": Method(labels_and_locks.list_labels, params.ListLabels, Labels, "read", audits=""),
    "resolve_skills": Method(labels_and_locks.resolve_skills, params.ResolveSkills, Lock, "read", audits=""),
    "verify_lock": Method(labels_and_locks.verify_lock, params.VerifyLock, Verified, "read", audits=""),
    "search_skills": Method(skills.search_skills, params.SearchSkills, FoundSkillPage, "read", audits=""),
    "check_skill": Method(skills.check_skill, params.CheckSkill, CheckedSkill, "publish", audits=""),
    "develop_skill": Method(
        skills.develop_skill, development_params.DevelopSkill, DevelopedSkill, "publish", audits=""
    ),
    "keep_development": Method(
        skills.keep_development, development_params.KeepDevelopment, KeptSkills, "publish", audits=""
    ),
    "end_development": Method(
        skills.end_development, development_params.EndDevelopment, KeptSkills, "publish", audits=""
    ),
    "waive_finding": Method(lifecycle.waive_finding, params.WaiveFinding, Waiver, "review", audits="name"),
    "recheck_version": Method(
        lifecycle.recheck_version, params.RecheckVersion, RecheckedVersion, "review", audits="name"
    ),
    "list_waivers": Method(lifecycle.list_waivers, params.ListWaivers, WaiverPage, "review", audits=""),
    "revoke_waiver": Method(lifecycle.revoke_waiver, params.RevokeWaiver, Waiver, "review", audits="id"),
    "list_tools": Method(tools.list_tools, tool_params.ListTools, ToolPage, "read", audits="", develops=True),
    "call_tool": Method(tools.call_tool, tool_params.CallTool, ToolResult, "run", audits="", once=True, develops=True),
    "define_tool": Method(tools.define_tool, tool_params.DefineTool, DefinedTool, "run", audits="name", once=True),
    "remove_tool": Method(tools.remove_tool, tool_params.RemoveTool, DefinedTool, "run", audits="name"),
    "create_workspace": Method(
        workspaces.create_workspace, workspace_params.CreateWorkspace, WorkspaceInfo, "run", audits="origin", once=True
    ),
    "list_workspaces": Method(
        workspaces.list_workspaces, workspace_params.ListWorkspaces, WorkspacePage, "read", audits=""
    ),
    "describe_workspace": Method(
        workspaces.describe_workspace, workspace_params.DescribeWorkspace, DescribedWorkspace, "read", audits=""
    ),
    "read_workspace_file": Method(
        workspaces.read_workspace_file, workspace_params.ReadWorkspaceFile, WorkspaceFileContent, "read", audits=""
    ),
    "reset_workspace": Method(
        workspaces.reset_workspace, workspace_params.ResetWorkspace, WorkspaceInfo, "run", audits="workspace"
    ),
    "delete_workspace": Method(
        workspaces.delete_workspace, workspace_params.DeleteWorkspace, DeletedWorkspace, "run", audits="workspace"
    ),
    "list_environments": Method(
        environments.list_environments, environment_params.ListEnvironments, EnvironmentPage, "run", audits=""
    ),
    "describe_environment": Method(
        environments.describe_environment,
        environment_params.DescribeEnvironment,
        DescribedEnvironment,
        "run",
        audits="",
    ),
    "rebuild_environment": Method(
        environments.rebuild_environment,
        environment_params.RebuildEnvironment,
        DescribedEnvironment,
        "admin",
        audits="name",
    ),
    "delete_blob": Method(blobs.delete_blob, params.DeleteBlob, DeletedBlob, "run", audits="blob_id"),
    "list_skill_usage": Method(skills.list_skill_usage, params.ListSkillUsage, SkillUsagePage, "read", audits=""),
    "get_usage": Method(blobs.get_usage, params.GetUsage, IdentityUse, "read", audits=""),
    "collect_garbage": Method(administration.collect_garbage, params.CollectGarbage, Garbage, "admin", audits=""),
    "create_token": Method(administration.create_token, params.CreateToken, CreatedToken, "admin", audits="name"),
    "list_tokens": Method(administration.list_tokens, params.ListTokens, Tokens, "admin", audits=""),
    "revoke_token": Method(administration.revoke_token, params.RevokeToken, Token, "admin", audits="id"),
    "revoke_identity": Method(
        administration.revoke_identity, params.RevokeIdentity, RevokedIdentity, "admin", audits="name"
    ),
    "add_webhook": Method(webhooks.add_webhook, webhook_params.AddWebhook, AddedWebhook, "admin", audits="url"),
    "list_webhooks": Method(webhooks.list_webhooks, webhook_params.ListWebhooks, WebhookList, "admin", audits=""),
    "test_webhook": Method(webhooks.test_webhook, webhook_params.TestWebhook, WebhookTest, "admin", audits=""),
    "remove_webhook": Method(
        webhooks.remove_webhook, webhook_params.RemoveWebhook, RemovedWebhook, "admin", audits="id"
    ),
    "list_dead_letters": Method(
        webhooks.list_dead_letters, webhook_params.ListDeadLetters, DeadLetterPage, "admin", audits=""
    ),
    "add_trust_rule": Method(trust.add_trust_rule, trust_params.AddTrustRule, TrustRule, "publish", audits="target"),
    "list_trust_rules": Method(trust.list_trust_rules, trust_params.ListTrustRules, TrustRules, "publish", audits=""),
    "remove_trust_rule": Method(
        trust.remove_trust_rule, trust_params.RemoveTrustRule, RemovedTrustRule, "publish", audits="id"
    ),
    "list_audit": Method(administration.list_audit, params.ListAudit, AuditPage, "admin", audits=""),
}
