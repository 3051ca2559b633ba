"""The parameters of the methods for tools that skills bring along (Skill Tools 1.0.0)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skillery.api.rpc.params import BACKGROUND, FILES, EnvironmentName, Params, RunFile, TimeoutMs, shown
from skillery.backends import Language

MOST_CODE = 256 * 1024
MOST_PARAMETERS = 64 * 1024
Address = Annotated[str, Meta(max_length=257)]
"""Of a tool: the names of a skill and of a tool have at most 128 characters. What is near is looked for only to what is
no longer."""
Session = Annotated[str, Meta(max_length=128)]
SESSION = shown("Which of your sessions this is about, by a name that you give it; omit for the one without a name")


class ListTools(Params, frozen=True, kw_only=True):
    """List the tools that skills offer."""

    skill: Annotated[str, shown("Only tools of this skill: 'name' or 'name@version spec'")] = ""
    session: Annotated[Session, SESSION] = ""
    limit: Annotated[int, Meta(ge=1, le=1000), shown("Maximum number of results", default=50)] = 50
    cursor: Annotated[str, shown("Pagination cursor from previous response")] = ""


class CallTool(Params, frozen=True, kw_only=True):
    """Call a tool of a skill."""

    name: Annotated[Address, shown("Name of the tool, or 'skill/tool' where several skills have one of that name")]
    args: Annotated[dict[str, Any], shown("Arguments for the tool")] = msgspec.field(default_factory=dict)
    skill: Annotated[str, shown("The skill that offers it; omit for the one that was published last")] = ""
    version: Annotated[str, shown("Version of that skill (omit for latest)")] = ""
    timeout_ms: Annotated[TimeoutMs | msgspec.UnsetType, shown("Execution timeout in milliseconds")] = msgspec.UNSET
    input_blobs: Annotated[list[str], shown("Blob IDs to mount in the sandbox")] = msgspec.field(default_factory=list)
    files: Annotated[list[RunFile], FILES] = msgspec.field(default_factory=list)
    session: Annotated[Session, SESSION] = ""
    environment: Annotated[
        EnvironmentName | msgspec.UnsetType,
        shown("Named environment, for a tool of a skill that declares no packages; '' for none"),
    ] = msgspec.UNSET
    background: Annotated[bool, BACKGROUND] = False


class DefineTool(Params, frozen=True, kw_only=True):
    """Define a tool of your own."""

    name: Annotated[Address, shown("Tool name (lowercase with underscores)")]
    description: Annotated[Annotated[str, Meta(min_length=1, max_length=1024)], shown("What the tool does")]
    parameters: Annotated[
        Annotated[str, Meta(max_length=MOST_PARAMETERS)], shown("JSON string of parameter definitions")
    ] = ""
    code: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MOST_CODE)],
        shown("Body of the function that gets 'args' and returns the result"),
    ]
    persistent: Annotated[str, shown('"true" to keep it as a skill that others can use')] = ""
    language: Annotated[
        Language | msgspec.UnsetType, shown("What the code is written in; JavaScript where that runs, else Python")
    ] = msgspec.UNSET
    namespace: Annotated[
        str | msgspec.UnsetType, shown("Where a persistent tool is kept; omit for none, or where you may publish")
    ] = msgspec.UNSET
    session: Annotated[Session, SESSION] = ""


class RemoveTool(Params, frozen=True, kw_only=True):
    """Remove a tool that was defined."""

    name: Annotated[Address, shown("Tool name to remove, or 'skill/tool'")]
    session: Annotated[Session, SESSION] = ""
