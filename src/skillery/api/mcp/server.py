"""The server object of the MCP SDK: the kinds of requests and their handlers."""

from __future__ import annotations

from typing import Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    RequestParams,
)

from skillery import __version__
from skillery.api.errors import NOT_FOUND
from skillery.api.mcp.methods import FRESHNESS, MCP_METHODS
from skillery.api.mcp.requests import visit_of
from skillery.api.mcp.tools import call_tool, encoded, is_large, list_tools
from skillery.api.rpc.dispatch import perform

Context = ServerRequestContext[Any, Any]
SKILLS_EXTENSION = "io.modelcontextprotocol/skills"
INSTRUCTIONS = (
    "Skillery keeps, finds and runs the skills of an organisation. Call load_skills_protocol_guide first: it says how "
    "the tools work together. list_skills and describe_skill find a skill, execute_skill runs one, run_code runs code "
    "of yours over several: it defines def main(args), returns JSON, and imports the skills of mount_skills. If you "
    "have the tool search_skills, find skills with it: it reads a few words about the task. Large data goes through "
    "blobs. The SKILL.md of every skill is a resource too, its other files are children of its folder: "
    "skill://skills/protocol/guide/SKILL.md is the guide."
)
TEMPLATES = [
    {
        "uriTemplate": "skill://{+skill}/{+path}",
        "name": "skill-file",
        "title": "A file of a skill",
        "description": "The dots of a skill's name are slashes: skill://a/b/c/SKILL.md is the SKILL.md of a.b.c.",
    }
]


class UriParams(RequestParams):
    uri: str


class DirectoryParams(PaginatedRequestParams):
    uri: str


def make_server() -> Server[Any]:
    server: Server[Any] = Server(
        "skillery",
        version=__version__,
        title="Skillery",
        instructions=INSTRUCTIONS,
        # No parameter is sent as a header. Without this, the SDK would call tools/list before each call.
        get_tool_input_schema=lambda _: None,
    )
    # The middleware of the SDK only traces, and Skillery has its own tracing.
    server.middleware = []
    server.extensions = {SKILLS_EXTENSION: {"directoryRead": True}}
    handlers: list[tuple[str, type[RequestParams], Any]] = [
        ("tools/list", PaginatedRequestParams, list_tools),
        ("tools/call", CallToolRequestParams, call_tool),
        ("resources/list", PaginatedRequestParams, _list_resources),
        ("resources/templates/list", PaginatedRequestParams, _list_templates),
        ("resources/read", ReadResourceRequestParams, _read_resource),
        ("skills/list", PaginatedRequestParams, _list_skills),
        ("skills/get", UriParams, _get_skill),
        ("resources/directory/read", DirectoryParams, _read_directory),
    ]
    for method, params, handler in handlers:
        server.add_request_handler(method, params, handler)
    return server


async def _list_resources(context: Context, asked: PaginatedRequestParams) -> dict[str, Any]:
    return await _answer(context, "resources/list", cursor=asked.cursor)


async def _list_templates(_: Context, __: PaginatedRequestParams) -> dict[str, Any]:
    return {"resourceTemplates": TEMPLATES, **FRESHNESS}


async def _read_resource(context: Context, asked: ReadResourceRequestParams) -> dict[str, Any]:
    return await _answer(context, "resources/read", uri=str(asked.uri))


async def _list_skills(context: Context, asked: PaginatedRequestParams) -> dict[str, Any]:
    return await _answer(context, "skills/list", cursor=asked.cursor)


async def _get_skill(context: Context, asked: UriParams) -> dict[str, Any]:
    return await _answer(context, "skills/get", uri=asked.uri)


async def _read_directory(context: Context, asked: DirectoryParams) -> dict[str, Any]:
    return await _answer(context, "resources/directory/read", uri=asked.uri, cursor=asked.cursor)


async def _answer(context: Context, method: str, **params: str | None) -> dict[str, Any]:
    """Return the result of a method of MCP_METHODS. Omit params that are None.

    Raise MCPError if the method fails. If a thing does not exist, the error code is that of invalid params.
    """
    visit = visit_of(context)
    raw = msgspec.Raw(encoded({name: value for name, value in params.items() if value is not None}))
    answer, error = await perform(visit.core, visit.identity, method, raw, None, MCP_METHODS)
    if answer is None:
        code = INVALID_PARAMS if error["code"] == NOT_FOUND else error["code"]
        raise MCPError(code, error["message"], error["data"])
    if method == "resources/read" and is_large(answer):
        # The parts between the first and the last are the text of the file.
        text = encoded(visit.splices.text(answer[1:-1]))
        answer = [answer[0], text, answer[-1]]
    found: dict[str, Any] = msgspec.json.decode(b"".join(answer))
    return found
