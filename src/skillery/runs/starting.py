"""The methods that start runs: execute_skill, run_code and call_tool."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skillery.backends import Identity, Language
from skillery.errors import InvalidParams
from skillery.formats.names import parse_skill_name
from skillery.formats.paths import parse_path
from skillery.formats.version_spec import parse_version_spec
from skillery.formats.wording import quoted
from skillery.method import HIDDEN, Method, Params, about, or_none
from skillery.registry.tool_rows import SessionName, parse_session
from skillery.runs import Runner
from skillery.runs.input_files import parse_outputs
from skillery.runs.requests import CodeRequest, SkillRequest, ToolRequest, WorkspaceMode
from skillery.runs.results import Run, ToolResult
from skillery.tools.tool_lookup import ToolAddress, parse_address
from skillery.workspaces.run_files import RunFile, parse_files

DEFAULT_TIMEOUT_MS = 300_000
TimeoutMs = Annotated[int, Meta(ge=1)]
"""The maximum is a setting of the server."""
BACKGROUND = about("Answer at once with the run_id; get_run and read_run_log follow the run", default=False)
EnvironmentName = Annotated[str, Meta(max_length=100)]
OUTPUTS = about("Globs of files below /workspace to keep, in addition to /workspace/out (e.g., 'report/*.pdf')")
WORKSPACE = about("Workspace (ws_…): the run gets and saves its files. Snapshot (sha256:…): the run gets its files")
WORKSPACE_MODE = about("'read': save nothing, so that other runs may use the workspace", default="write")
FILES = about("Blobs to copy into the workspace: writable files at their paths")


# -- execute_skill -----------------------------------------------------------------------------------------------------


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


async def execute_skill(runner: Runner, identity: Identity, params: ExecuteSkill) -> Run:
    parse_skill_name(params.name)
    # Instructions and tools.json often write the path with a leading ./.
    script = parse_path(params.script) if params.script else ""
    _check_what_starts(params)
    request = SkillRequest(
        params.name,
        params.version,
        params.args,
        params.input_blobs,
        or_none(params.timeout_ms),
        script,
        or_none(params.environment),
        files=parse_files(params.files),
        outputs=parse_outputs(params.outputs),
        workspace=params.workspace,
        workspace_mode=params.workspace_mode,
        module=params.module,
        in_skill=params.cwd == "skill",
        background=params.background,
    )
    return await runner.execute_skill(identity, request)


def _check_what_starts(params: ExecuteSkill) -> None:
    if params.module and params.script:
        raise InvalidParams("'script' and 'module' are both given", hint="Name one of them.", param="module")
    if params.module and not (len(params.module) <= 255 and all(map(str.isidentifier, params.module.split(".")))):
        raise InvalidParams(
            f"'module' is {quoted(params.module)}, which is not a name of a Python module",
            hint="Write scripts.package_skill for the file scripts/package_skill.py.",
            param="module",
        )
    if params.cwd == "skill" and not (params.module or params.script):
        raise InvalidParams(
            "'cwd' is 'skill', but an entrypoint starts in /workspace",
            hint="Leave 'cwd' out, or name a 'script' or 'module' to run.",
            param="cwd",
        )


# -- run_code ----------------------------------------------------------------------------------------------------------


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


async def run_code(runner: Runner, identity: Identity, params: RunCode) -> Run:
    _check_entrypoint(params.entrypoint, params.language)
    request = CodeRequest(
        params.code,
        params.entrypoint,
        params.args,
        params.mount_skills,
        params.input_blobs,
        params.limits,
        params.language,
        or_none(params.environment),
        files=parse_files(params.files),
        outputs=parse_outputs(params.outputs),
        workspace=params.workspace,
        workspace_mode=params.workspace_mode,
        background=params.background,
    )
    return await runner.run_code(identity, request)


def _check_entrypoint(name: str, language: Language) -> None:
    """Raise InvalidParams if no function of the language can have this name. In Bash, only the default `main` is
    valid.
    """
    if language == "bash" and name != "main":
        raise InvalidParams(
            f"'entrypoint' is {name[:80]!r}, and bash code has none: it runs from its first line",
            hint="Leave 'entrypoint' out; the args are JSON on stdin, and what is printed is the output.",
            param="entrypoint",
        )
    if not (name.replace("$", "_") if language == "javascript" else name).isidentifier():
        called = {"javascript": "JavaScript", "python": "Python"}[language]
        raise InvalidParams(
            f"'entrypoint' is {name[:80]!r}, which is not a {called} identifier",
            hint="Name a function of the code, for example main.",
            param="entrypoint",
        )


# -- call_tool ---------------------------------------------------------------------------------------------------------


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


async def call_tool(runner: Runner, identity: Identity, params: CallTool) -> ToolResult:
    of_skill, _, in_reference = params.skill.partition("@")
    skill, name = parse_address(params.name, of_skill)
    version = params.version or in_reference
    if params.version and in_reference and params.version != in_reference:
        raise InvalidParams(
            f"'skill' asks for the version '{in_reference[:80]}', and 'version' is '{params.version[:80]}'",
            hint="Name one version.",
            param="version",
        )
    if skill is None and params.version:
        raise InvalidParams(
            f"'version' is {params.version[:80]!r}, and no skill is named",
            hint="Name the skill of this version: in 'skill', or with 'skill/tool' in 'name'.",
            param="version",
        )
    request = ToolRequest(
        name=name,
        args=params.args,
        skill=(skill, parse_version_spec(version)) if skill else None,
        session=parse_session(params.session),
        input_blobs=params.input_blobs,
        timeout_ms=or_none(params.timeout_ms),
        environment=or_none(params.environment),
        files=parse_files(params.files),
        outputs=parse_outputs(params.outputs),
        workspace=params.workspace,
        workspace_mode=params.workspace_mode,
        background=params.background,
    )
    return await runner.call_tool(identity, request)


METHODS = (
    Method(execute_skill, "run", audits="", once=True, develops=True),
    Method(run_code, "run", audits="", once=True, develops=True),
    Method(call_tool, "run", audits="", once=True, develops=True),
)
