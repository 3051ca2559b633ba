"""The server object of the MCP SDK: the kinds of requests and their handlers."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CompleteRequestParams,
    GetPromptRequestParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    RequestParams,
    ResourceTemplateReference,
    ServerCapabilities,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillery.mcp.methods import answer_of, encoded
from skillery.mcp.requests import FRESHNESS, SERVER, visit_of
from skillery.mcp.tasks import TASKS_EXTENSION, TaskParams, UpdateParams, cancel_task, get_task, update_task
from skillery.mcp.tool_results import is_large
from skillery.mcp.tools import call_tool, list_tools

Context = ServerRequestContext[Any, Any]
SKILLS_EXTENSION = "io.modelcontextprotocol/skills"
INSTRUCTIONS = "Skillery keeps, finds and runs the skills of an organisation."
instructions: ContextVar[str] = ContextVar("instructions", default=INSTRUCTIONS)
"""The instructions for the model of the current caller."""
TEMPLATES = [
    {
        "uriTemplate": "skill://{+skill}/{+path}",
        "name": "skill-file",
        "title": "A file of a skill",
        "description": "The dots of a skill's name are slashes: skill://a/b/c/SKILL.md is the SKILL.md of a.b.c.",
    },
    {
        "uriTemplate": "skill://{+skill}@{version}/{+path}",
        "name": "skill-file-at-version",
        "title": "A file of a version of a skill",
        "description": "The version is exact (1.2.0), a label, a range, a digest or latest.",
    },
]
ARGUMENTS = ("skill", "version", "path")


class UriParams(RequestParams):
    uri: str


class DirectoryParams(PaginatedRequestParams):
    uri: str


class _Server(Server[Any]):
    """A server of the SDK whose capabilities depend on the version of the protocol."""

    def get_capabilities(self, *options: Any, protocol_version: str | None = None, **more: Any) -> ServerCapabilities:
        capabilities = super().get_capabilities(*options, protocol_version=protocol_version, **more)
        if protocol_version not in MODERN_PROTOCOL_VERSIONS and capabilities.extensions:
            # Older versions of the protocol have another form of tasks, which this server does not have.
            capabilities.extensions = {
                name: value for name, value in capabilities.extensions.items() if name != TASKS_EXTENSION
            }
        return capabilities

    # Read for each request: callers see different skills.
    instructions = property(lambda _: instructions.get(), lambda _, __: None)


def make_server() -> Server[Any]:
    """Return the server of the SDK, with the handlers of this package."""
    server = _Server(
        SERVER["name"],
        version=SERVER["version"],
        title=SERVER["title"],
        # No parameter is sent as a header. Without this, the SDK would call tools/list before each call.
        get_tool_input_schema=lambda _: None,
    )
    # The middleware of the SDK only traces, and Skillery has its own tracing.
    server.middleware = []
    server.extensions = {SKILLS_EXTENSION: {"directoryRead": True}, TASKS_EXTENSION: {}}
    handlers: list[tuple[str, type[RequestParams], Any]] = [
        ("tools/list", PaginatedRequestParams, list_tools),
        ("tools/call", CallToolRequestParams, call_tool),
        ("resources/list", PaginatedRequestParams, _list_resources),
        ("resources/templates/list", PaginatedRequestParams, _list_templates),
        ("resources/read", ReadResourceRequestParams, _read_resource),
        ("completion/complete", CompleteRequestParams, _complete),
        ("skills/list", PaginatedRequestParams, _list_skills),
        ("skills/get", UriParams, _get_skill),
        ("resources/directory/read", DirectoryParams, _read_directory),
        ("prompts/list", PaginatedRequestParams, _list_prompts),
        ("prompts/get", GetPromptRequestParams, _get_prompt),
        ("tasks/get", TaskParams, get_task),
        ("tasks/update", UpdateParams, update_task),
        ("tasks/cancel", TaskParams, cancel_task),
    ]
    for method, params, handler in handlers:
        server.add_request_handler(method, params, handler)
    return server


async def _list_resources(context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
    return await _answer(context, "resources/list", cursor=params.cursor)


async def _list_templates(_: Context, __: PaginatedRequestParams) -> dict[str, Any]:
    return {"resourceTemplates": TEMPLATES, **FRESHNESS}


async def _read_resource(context: Context, params: ReadResourceRequestParams) -> dict[str, Any]:
    return await _answer(context, "resources/read", uri=str(params.uri))


async def _complete(context: Context, params: CompleteRequestParams) -> dict[str, Any]:
    """Return the values for an argument of a template. Raise MCPError if the template or the argument is unknown."""
    templates = [template["uriTemplate"] for template in TEMPLATES]
    if not isinstance(params.ref, ResourceTemplateReference) or params.ref.uri not in templates:
        hint = f"Complete arguments of the templates {' and '.join(templates)}."
        raise MCPError(INVALID_PARAMS, "there is no such template", {"type": "invalid_params", "hint": hint})
    if params.argument.name not in ARGUMENTS:
        hint = f"The arguments are {', '.join(ARGUMENTS)}."
        message = f"the template has no argument {params.argument.name[:80]!r}"
        raise MCPError(INVALID_PARAMS, message, {"type": "invalid_params", "hint": hint})
    earlier = (params.context.arguments if params.context is not None else None) or {}
    return await _answer(
        context,
        "completion/complete",
        argument=params.argument.name,
        value=params.argument.value,
        skill=earlier.get("skill"),
        version=earlier.get("version"),
    )


async def _list_skills(context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
    return await _answer(context, "skills/list", cursor=params.cursor)


async def _get_skill(context: Context, params: UriParams) -> dict[str, Any]:
    return await _answer(context, "skills/get", uri=params.uri)


async def _read_directory(context: Context, params: DirectoryParams) -> dict[str, Any]:
    return await _answer(context, "resources/directory/read", uri=params.uri, cursor=params.cursor)


async def _list_prompts(context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
    return await _answer(context, "prompts/list", cursor=params.cursor)


async def _get_prompt(context: Context, params: GetPromptRequestParams) -> dict[str, Any]:
    arguments = (params.arguments or {}).get("arguments")
    return await _answer(context, "prompts/get", name=params.name, arguments=arguments)


async def _answer(context: Context, method: str, **params: str | None) -> dict[str, Any]:
    """Return the result of a method of MCP_METHODS in the form of the SDK."""
    visit = visit_of(context)
    answer = await answer_of(visit, method, **params)
    if method == "resources/read" and is_large(answer):
        # The parts between the first and the last are the text of the file.
        text = encoded(visit.splices.text(answer[1:-1]))
        answer = [answer[0], text, answer[-1]]
    result: dict[str, Any] = msgspec.json.decode(b"".join(answer))
    return result
