"""The params of the methods for tools of skills and of sessions (Skill Tools 1.0.0)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skillery.backends import Language
from skillery.method import Cursor, PageLimit, Params, about
from skillery.methods.params import (
    BACKGROUND,
    FILES,
    OUTPUTS,
    WORKSPACE,
    WORKSPACE_MODE,
    EnvironmentName,
    RunFile,
    TimeoutMs,
    WorkspaceMode,
)

MOST_CODE = 256 * 1024
MOST_PARAMETERS = 64 * 1024
Address = Annotated[str, Meta(max_length=257)]
"""`tool` or `skill/tool`. The length is limited, so that the search for similar names is cheap."""
Session = Annotated[str, Meta(max_length=128)]
SESSION = about("Session of the caller, by a name that the caller chooses; omit for the unnamed session")


class ListTools(Params, frozen=True, kw_only=True):
    """List the tools that skills offer, and the tools of a session."""

    skill: Annotated[str, about("Only tools of this skill: 'name' or 'name@version spec'")] = ""
    session: Annotated[Session, SESSION] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


class CallTool(Params, frozen=True, kw_only=True):
    """Call a tool of a skill or of a session."""

    name: Annotated[Address, about("Name of the tool, or 'skill/tool' if several skills have a tool of that name")]
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
    session: Annotated[Session, SESSION] = ""
    environment: Annotated[
        EnvironmentName | msgspec.UnsetType,
        about("Named environment, for a tool of a skill that declares no packages; '' for none"),
    ] = msgspec.UNSET
    background: Annotated[bool, BACKGROUND] = False


class DefineTool(Params, frozen=True, kw_only=True):
    """Define a tool, for a session or as a published skill."""

    name: Annotated[Address, about("Tool name (lowercase with underscores)")]
    description: Annotated[Annotated[str, Meta(min_length=1, max_length=1024)], about("What the tool does")]
    parameters: Annotated[
        Annotated[str, Meta(max_length=MOST_PARAMETERS)], about("JSON string of parameter definitions")
    ] = ""
    code: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MOST_CODE)],
        about("Body of the function that gets 'args' and returns the result"),
    ]
    persistent: Annotated[str, about('"true" to keep it as a skill that others can use')] = ""
    language: Annotated[
        Language | msgspec.UnsetType,
        about("Language of the code. If omitted: JavaScript if the server can run it, else Python"),
    ] = msgspec.UNSET
    namespace: Annotated[
        str | msgspec.UnsetType,
        about(
            "Namespace of a persistent tool. If omitted: none if the caller may publish names without a namespace, "
            "else the first granted namespace"
        ),
    ] = msgspec.UNSET
    session: Annotated[Session, SESSION] = ""


class RemoveTool(Params, frozen=True, kw_only=True):
    """Remove a tool that was made with define_tool."""

    name: Annotated[Address, about("Tool name to remove, or 'skill/tool'")]
    session: Annotated[Session, SESSION] = ""
