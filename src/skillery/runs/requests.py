"""The params of the methods that start runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skillery.backends import Language
from skillery.method import HIDDEN, Params, about
from skillery.registry.tool_rows import SessionName
from skillery.tools.tool_lookup import ToolAddress
from skillery.workspaces.run_files import RunFile

WorkspaceMode = Literal["write", "read"]
Method = Literal["execute_skill", "run_code", "call_tool"]
TimeoutMs = Annotated[int, Meta(ge=1)]
"""The maximum is a setting of the server."""
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
