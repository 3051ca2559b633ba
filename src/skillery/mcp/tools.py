"""The methods tools/list and tools/call of MCP: the eight tools of the Skills Protocol, and the tools that a
connection asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, PaginatedRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillery.client_source.model_tools import explained
from skillery.client_source.openrpc import tool
from skillery.context.budget import body_room
from skillery.environments.definitions import Defined, shown_properties
from skillery.mcp.methods import COMPLETE, FRESHNESS, encoded
from skillery.mcp.progress import progress_sent
from skillery.mcp.requests import ON_REQUEST, CallKey, Visit, visit_of
from skillery.mcp.tasks import STARTS_RUNS, answered_within, created_task
from skillery.mcp.tool_results import (
    arguments_of,
    error_result,
    is_large,
    large_result,
    output_schema,
    result_of,
    skill_tools,
    tool_result,
    with_pictures,
)
from skillery.methods.errors import encode
from skillery.methods.execution import Parts, perform
from skillery.methods.table import FOR_MODELS, METHODS, TOOLS
from skillery.runs.active_run import begun_runs
from skillery.workspaces.methods import with_workspaces

Context = ServerRequestContext[Any, Any]
KEY_IN_META = "skillery/idempotency-key"
IN_META = {"files": "skillery/files", "workspace": "skillery/workspace"}
"""The keys in `_meta` for params of the run of a skill's tool, because the arguments belong to the tool."""


async def list_tools(context: Context, _: PaginatedRequestParams) -> dict[str, Any]:
    return {"tools": await listed_tools(visit_of(context)), **FRESHNESS}


async def listed_tools(visit: Visit) -> list[dict[str, Any]]:
    """Return the tools of the connection as tools/list shows them."""
    defined = visit.core.environments.named.defined
    methods = _method_tools(defined, tuple(_names(visit)), visit.explains_code, visit.shows_outputs)
    return [*methods, *(skill_tool.shown() for skill_tool in (await skill_tools(visit)).values())]


# Making the schemas takes ten times as long as the rest of a request, and few combinations are asked for.
@lru_cache(64)
def _method_tools(
    defined: Defined, names: tuple[str, ...], explains_code: bool, shows_outputs: bool
) -> tuple[dict[str, Any], ...]:
    """Return the methods `names` as tools. The result is cached."""
    more_properties = with_workspaces(shown_properties(defined), names)
    explain = explained if explains_code else None
    tools = (tool(name, METHODS[name].params, "mcp", more_properties, explain) for name in names)
    if shows_outputs:
        tools = (
            tool_schema | {"outputSchema": output_schema(METHODS[tool_schema["name"]].result)} for tool_schema in tools
        )
    return tuple(tools)


async def call_tool(context: Context, request: CallToolRequestParams) -> dict[str, Any]:
    """Return the result of a tool call as text and as structured content, or a task if its run takes long.

    Errors of a method are returned as results, so that models see them. Raise MCPError if the tool does not exist.
    """
    visit = visit_of(context)
    if request.name in _names(visit):
        answer, error = await _call(context, request, request.name, _arguments(visit, request))
        if answer is None:
            return error_result(visit, error) | COMPLETE
        if is_large(answer):
            return large_result(visit, answer) | COMPLETE
        if (task := await created_task(context, request.name, answer)) is not None:
            return task
        return await with_pictures(visit, tool_result(b"".join(answer))) | COMPLETE
    offered = await skill_tools(visit)
    if request.name not in offered:
        raise _unknown(request.name, [*_names(visit), *offered])
    tool = offered[request.name]
    meta: Mapping[str, Any] = request.meta or {}
    values = {param: meta[key] for param, key in IN_META.items() if meta.get(key) is not None}
    params = msgspec.Raw(encode(arguments_of(tool, _arguments(visit, request), values)))
    answer, error = await _call(context, request, "call_tool", params)
    if answer is None:
        return error_result(visit, error) | COMPLETE
    if (task := await created_task(context, "call_tool", answer)) is not None:
        return task
    return await with_pictures(visit, result_of(msgspec.json.decode(b"".join(answer)))) | COMPLETE


def _arguments(visit: Visit, params: CallToolRequestParams) -> msgspec.Raw:
    """Return the arguments of the call as JSON, with the defaults for models."""
    if visit.arguments is not None:
        return visit.arguments
    return msgspec.Raw(encoded(FOR_MODELS.get(params.name, {}) | (params.arguments or {})))


async def _call(
    context: Context, request: CallToolRequestParams, method: str, params: msgspec.Raw
) -> tuple[Parts | None, dict[str, Any]]:
    """Call a method while the client can cancel it and gets progress. Return the results of `perform`."""
    visit = visit_of(context)
    key_in_meta = (request.meta or {}).get(KEY_IN_META)
    key = key_in_meta if isinstance(key_in_meta, str) else visit.key
    visit.arguments = None
    runs: list[str] = []
    # Other methods have runs too: those of the examples of a new version, for instance.
    followed = runs if method in STARTS_RUNS else []
    async with _taken_back(context, visit, runs), progress_sent(context, request, followed):
        with answered_within(context, visit.terms.after_seconds):
            done = await perform(visit.core, visit.identity, method, params, key)
    body_room.get().release()
    return done


def _names(visit: Visit) -> list[str]:
    """Return the methods that the connection has as tools."""
    return [name for name in METHODS if name in TOOLS or name in visit.methods]


def _unknown(name: str, there: list[str]) -> MCPError:
    remedy = (
        f"Ask for it: /mcp?tools={name}, or skillery mcp --tools {name}"
        if name in ON_REQUEST
        else "Skills are run with execute_skill."
    )
    hint = f"There are {', '.join(there)}. {remedy}"
    return MCPError(INVALID_PARAMS, f"there is no tool {name[:80]!r}", {"type": "tool_not_found", "hint": hint})


@asynccontextmanager
async def _taken_back(context: Context, visit: Visit, runs: list[str]) -> AsyncIterator[None]:
    """Cancel the runs that were started in the `with` block if the client cancels the call.

    The block appends the ids of its runs to `runs`. Clients of protocol versions since 2026-07-28 cancel by closing the
    response. Older clients send a notification. If an older client disconnects, nothing is cancelled.
    """
    token = begun_runs.set(runs)
    call: CallKey | None = None
    if visit.session is not None and context.request_id is not None:
        call = (visit.identity.name, visit.session, context.request_id)
        visit.calls.begin(call, runs)
    try:
        yield
    except asyncio.CancelledError:
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            visit.calls.take_back(visit.core, visit.identity, runs)
        raise
    finally:
        begun_runs.reset(token)
        if call is not None:
            visit.calls.end(call)
