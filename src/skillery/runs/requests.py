"""The params of the methods that start runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from skillery.attestations.policies import Policies
from skillery.backends import Failure, FailureType, Identity, Language
from skillery.database import Database
from skillery.errors import NotExecutable, RunRevoked, WorkspaceNotAccepted
from skillery.formats.manifest import Manifest, Permissions, Runtime
from skillery.identity import access
from skillery.method import HIDDEN, Params, about
from skillery.registry.development import EvaluatingIdentity
from skillery.registry.requires import sees_skills
from skillery.registry.revocations import require_runnable
from skillery.registry.tool_rows import SessionName
from skillery.registry.version_rows import VersionRow
from skillery.registry.visibility import WAS_PUBLISHED
from skillery.tools.tool_lookup import ToolAddress, tool_run_by
from skillery.workspaces.manifests import RunFile
from skillery.workspaces.usage import RunWorkspaces, Target

WorkspaceMode = Literal["write", "read"]
Method = Literal["execute_skill", "run_code", "call_tool"]
TimeoutMs = Annotated[int, Meta(ge=1)]
"""Timeout of a run, in milliseconds. The maximum is a setting of the server."""
BACKGROUND = about("Answer at once with the run_id; get_run and read_run_log follow the run", default=False)
EnvironmentName = Annotated[str, Meta(max_length=100)]
OUTPUTS = about("Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf')")
WORKSPACE = about("Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files")
WORKSPACE_MODE = about("'read': save nothing, so that other runs may use the workspace", default="write")
FILES = about("Blobs to copy into the workspace: writable files at their paths")


class ExecuteSkill(Params, frozen=True, kw_only=True):
    """Execute a skill's entrypoint in an ephemeral sandbox."""

    name: Annotated[str, about("Skill name")]
    version: Annotated[str, about("Skill version (omit for latest)")] = ""
    args: Annotated[dict[str, Any], about("JSON-serializable arguments to pass to the skill")] = {}
    input_blobs: Annotated[list[str], about("Blob IDs to mount in the sandbox")] = []
    timeout_ms: Annotated[TimeoutMs | msgspec.UnsetType, about("Execution timeout in milliseconds")] = msgspec.UNSET
    script: Annotated[str, HIDDEN, about("Path of a file to run as a program, in a skill without an entrypoint")] = ""
    environment: Annotated[
        EnvironmentName | msgspec.UnsetType,
        HIDDEN,
        about("Named environment, for a skill that declares no packages; '' for none, omit for the default"),
    ] = msgspec.UNSET
    module: Annotated[str, HIDDEN, about("Module to run as 'python -m' does, instead of 'script'")] = ""
    cwd: Annotated[
        Literal["workspace", "skill"], HIDDEN, about("Where a script or module starts", default="workspace")
    ] = "workspace"
    files: Annotated[list[RunFile], HIDDEN, FILES] = []
    outputs: Annotated[list[str], HIDDEN, OUTPUTS] = []
    workspace: Annotated[str, HIDDEN, WORKSPACE] = ""
    workspace_mode: Annotated[WorkspaceMode, HIDDEN, WORKSPACE_MODE] = "write"
    background: Annotated[bool, HIDDEN, BACKGROUND] = False


class RunCode(Params, frozen=True, kw_only=True):
    """Execute LLM-written code in a sandbox with specified skills and blobs mounted."""

    language: Annotated[Language, about("Programming language (MVP: python only)", enum=["python"])]
    code: Annotated[str, about("Source code to execute")]
    entrypoint: Annotated[str, about("Function name to call", default="main")] = "main"
    args: Annotated[dict[str, Any], about("Arguments to pass to entrypoint function")] = {}
    mount_skills: Annotated[list[str], about("Skill names to mount in sandbox")] = []
    input_blobs: Annotated[list[str], about("Blob IDs to mount in sandbox")] = []
    files: Annotated[list[RunFile], HIDDEN, FILES] = []
    outputs: Annotated[list[str], HIDDEN, OUTPUTS] = []
    workspace: Annotated[str, HIDDEN, WORKSPACE] = ""
    workspace_mode: Annotated[WorkspaceMode, HIDDEN, WORKSPACE_MODE] = "write"
    limits: Annotated[
        dict[str, Any],
        about("Execution limits", type="object", properties={"timeout_ms": {"type": "integer"}}),
    ] = {}
    environment: Annotated[
        EnvironmentName | msgspec.UnsetType,
        HIDDEN,
        about("Named environment whose Python packages the code may import; '' for none, omit for the default"),
    ] = msgspec.UNSET
    background: Annotated[bool, HIDDEN, BACKGROUND] = False


class CallTool(Params, frozen=True, kw_only=True):
    """Call a tool of a skill or of a session."""

    name: Annotated[ToolAddress, about("Name of the tool, or 'skill/tool' if several skills have a tool of that name")]
    args: Annotated[dict[str, Any], about("Arguments for the tool")] = msgspec.field(default_factory=dict)
    skill: Annotated[
        str, about("Skill that offers the tool (omit for a tool of the session, else the most recently published one)")
    ] = ""
    version: Annotated[str, about("Version of that skill (omit for latest)")] = ""
    timeout_ms: Annotated[TimeoutMs | msgspec.UnsetType, about("Execution timeout in milliseconds")] = msgspec.UNSET
    input_blobs: Annotated[list[str], about("Blob IDs to mount in the sandbox")] = msgspec.field(default_factory=list)
    files: Annotated[list[RunFile], FILES] = msgspec.field(default_factory=list)
    outputs: Annotated[list[str], OUTPUTS] = msgspec.field(default_factory=list)
    workspace: Annotated[str, WORKSPACE] = ""
    workspace_mode: Annotated[WorkspaceMode, WORKSPACE_MODE] = "write"
    session: SessionName = ""
    environment: Annotated[
        EnvironmentName | msgspec.UnsetType,
        about("Named environment, for a tool of a skill that declares no packages; '' for none"),
    ] = msgspec.UNSET
    background: Annotated[bool, BACKGROUND] = False


RunParams = ExecuteSkill | RunCode | CallTool


# -- The permissions of a run. A run of an unpublished version gets them only if its caller could approve the version --


class Granted(NamedTuple):
    """The permissions of a run. If they are fewer than in the manifest, `why_less` is the reason, else it is ""."""

    permissions: Permissions = Permissions()
    why_less: str = ""
    failure: Failure | None = None
    """Set if the skill declares secrets and the run gets none. The run then fails before its code starts."""

    @property
    def network(self) -> tuple[str, ...]:
        """The hosts that the run may reach, in the form of `Job.network`."""
        return network_of(self.permissions)


def network_of(permissions: Permissions) -> tuple[str, ...]:
    return tuple(pattern.text for pattern in permissions.network)


def has_permissions(manifest: Manifest) -> bool:
    """Return whether the manifest declares network hosts or secrets."""
    return bool(manifest.permissions.network or manifest.permissions.secrets)


def granted(identity: Identity, version: VersionRow, manifest: Manifest, policies: Policies) -> Granted:
    """Return the permissions of a run of `version` that `identity` starts.

    A version that was never published gets network and secrets only if the caller could approve the version. Else
    authors could use both without a review. The agent of an evaluation gets none. Raise RunRevoked if the identity may
    not run a revoked version.
    """
    require_runnable(identity, version)
    could_approve = access.approves(identity, version.name, version.publisher, policies.of(version.name).approval)
    is_evaluated = isinstance(identity, EvaluatingIdentity)
    is_permitted = not is_evaluated and (version.status in WAS_PUBLISHED or could_approve)
    permissions = manifest.permissions if is_permitted else Permissions()
    if permissions == manifest.permissions:
        return Granted(permissions)
    why_less = _why_less(version, manifest.permissions, is_evaluated=is_evaluated)
    failure = Failure(FailureType.SECRET_NOT_GRANTED, why_less) if manifest.permissions.secrets else None
    return Granted(permissions, why_less, failure)


async def granted_to_call(
    database: Database, identity: Identity, version: VersionRow, manifest: Manifest, policies: Policies
) -> Granted:
    """Return what `granted` returns for a required skill that code calls. The error does not name a skill that the
    identity may not see.
    """
    try:
        return granted(identity, version, manifest, policies)
    except RunRevoked:
        if await database.read(lambda connection: sees_skills(connection, identity)(version)):
            raise
        raise RunRevoked("a required skill that you may not see is not run: it was yanked") from None


def _why_less(version: VersionRow, listed: Permissions, *, is_evaluated: bool) -> str:
    """Return the reason why a run has fewer permissions than the manifest lists."""
    rights = " and ".join(word for word, some in (("network", listed.network), ("secrets", listed.secrets)) if some)
    if is_evaluated:
        return f"'{version.name}' {version.version} gets no {rights} in an evaluation"
    return (
        f"'{version.name}' {version.version} is {version.status}: it gets its {rights} once a reviewer has approved "
        "it, or in a run of a reviewer's own"
    )


# -- Errors for skills and files that a request names and that cannot be executed that way -----------------------------


def not_executable(version: VersionRow, manifest: Manifest) -> NotExecutable:
    """Return the error for a version without an entrypoint, with what to call instead."""
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
    """Return the error for a script of a skill with an entrypoint."""
    return NotExecutable(
        f"'{version.name}' has an entrypoint, {runtime.entrypoint}: no other file of it can be run as a script",
        hint="Leave 'script' out.",
        name=version.name,
    )


def check_no_handler(connection: Connection, version: VersionRow, path: str) -> None:
    """Raise NotExecutable if the file `path` is the handler of a tool.

    The declared parameters of a tool limit what the handler does with secrets and network. So the handler starts only
    through call_tool, which checks the args.
    """
    tool = tool_run_by(connection, version, path)
    if tool is not None:
        raise NotExecutable(
            f"{path} is the handler of the tool '{tool}' of '{version.name}', which has permissions",
            hint=f"Call it with call_tool: '{version.name}/{tool}'.",
            name=version.name,
        )


# -- The workspace that a request names, and whether the skill may run in it -------------------------------------------


class WorkspaceTargets:
    """Finds the workspaces of requests."""

    def __init__(self, workspaces: RunWorkspaces) -> None:
        self._workspaces = workspaces

    async def find(self, identity: Identity, request: RunParams, manifest: Manifest | None = None) -> Target | None:
        """Return the workspace or snapshot that the request names, or None if it names none.

        `manifest` is the one of the skill that runs. Raise WorkspaceNotFound or SnapshotNotFound if there is no such
        workspace or snapshot. Raise WorkspaceNotAccepted if the skill has permissions and its manifest does not accept
        a workspace.
        """
        if not request.workspace:
            return None
        if manifest is not None and has_permissions(manifest) and not manifest.permissions.workspace:
            raise _no_workspace(manifest.name)
        return await self._workspaces.find(identity, request.workspace, request.workspace_mode)


def _no_workspace(name: str) -> WorkspaceNotAccepted:
    # The files of a workspace come from other code: they could steer what the skill does with its permissions.
    return WorkspaceNotAccepted(
        f"'{name}' has permissions, and its manifest does not accept a workspace",
        hint="Leave 'workspace' out, and pass single files in 'files'. The author can accept workspaces with "
        "'workspace = true' in [runtime].",
        name=name,
    )
