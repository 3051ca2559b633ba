"""The methods tools/list and tools/call of MCP: the eight tools of the Skills Protocol, and the tools that a
connection asks for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, PaginatedRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillery.api.code_contract import explained
from skillery.api.errors import encode, error_object
from skillery.api.mcp.images import with_pictures
from skillery.api.mcp.large_messages import MOST_OF_SDK
from skillery.api.mcp.methods import COMPLETE, FRESHNESS
from skillery.api.mcp.output_schemas import output_schema
from skillery.api.mcp.requests import ON_REQUEST, CallKey, Visit, visit_of
from skillery.api.mcp.skill_tools import arguments_of, result_of, skill_tools
from skillery.api.rpc.dispatch import Parts, perform
from skillery.api.rpc.environment_params import shown_properties
from skillery.api.rpc.methods import METHODS
from skillery.api.rpc.schemas import tool
from skillery.api.rpc.workspace_params import with_workspaces
from skillery.errors import SkilleryError
from skillery.formats.json_pieces import string_pieces
from skillery.runs.active_run import begun_runs

Context = ServerRequestContext[Any, Any]
KEY_IN_META = "skillery/idempotency-key"
FILES_IN_META = "skillery/files"
"""Key in `_meta` of the files for the run of a skill's tool. Files are in `_meta` because the arguments belong to
the tool.
"""
FIRST_PROGRESS_SECONDS = 1.0
PROGRESS_SECONDS = 5.0


async def list_tools(context: Context, _: PaginatedRequestParams) -> dict[str, Any]:
    visit = visit_of(context)
    more = with_workspaces(shown_properties(visit.core.environments.named.defined), visit.methods)
    explain = explained if visit.explains_code else None
    shown = [
        tool(name, METHODS[name].params, "mcp", more, explain) | {"outputSchema": output_schema(METHODS[name].result)}
        for name in _names(visit)
    ]
    offered = await skill_tools(visit)
    return {"tools": [*shown, *(one.shown() for one in offered.values())], **FRESHNESS}


async def call_tool(context: Context, asked: CallToolRequestParams) -> dict[str, Any]:
    """Return the result of a tool call as text and as structured content.

    Errors of a method are returned as results, so that models see them. Raise MCPError if the tool does not exist.
    """
    visit = visit_of(context)
    if asked.name in _names(visit):
        answer, error = await _call(context, asked, asked.name, _arguments(visit, asked))
        if answer is None:
            return _error(error) | COMPLETE
        if is_large(answer):
            return _large_result(visit, answer) | COMPLETE
        return await with_pictures(visit, _result(b"".join(answer))) | COMPLETE
    offered = await skill_tools(visit)
    if asked.name not in offered:
        raise _unknown(asked.name, [*_names(visit), *offered])
    one = offered[asked.name]
    given = (asked.meta or {}).get(FILES_IN_META)
    params = msgspec.Raw(encode(arguments_of(one, _arguments(visit, asked), given)))
    answer, error = await _call(context, asked, "call_tool", params)
    if answer is None:
        return _error(error) | COMPLETE
    return await with_pictures(visit, result_of(msgspec.json.decode(b"".join(answer)))) | COMPLETE


def _arguments(visit: Visit, asked: CallToolRequestParams) -> msgspec.Raw:
    return visit.arguments if visit.arguments is not None else msgspec.Raw(encoded(asked.arguments or {}))


def encoded(value: Any) -> bytes:
    """Return the value as JSON. Raise MCPError if JSON does not allow the value, although the SDK has accepted it."""
    try:
        return encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        message = "a text in this call holds a lone surrogate, or a number has too many digits"
        raise MCPError(INVALID_PARAMS, message, {"type": "invalid_params", "hint": "Send valid Unicode."}) from None


async def _call(
    context: Context, asked: CallToolRequestParams, method: str, params: msgspec.Raw
) -> tuple[Parts | None, dict[str, Any]]:
    visit = visit_of(context)
    given = (asked.meta or {}).get(KEY_IN_META)
    key = given if isinstance(given, str) else visit.key
    visit.arguments = None
    async with _taken_back(context, visit), _progress(context, asked):
        done = await perform(visit.core, visit.identity, method, params, key)
    visit.body.give_back()
    return done


def _result(answer: bytes) -> dict[str, Any]:
    structured = msgspec.json.decode(answer)
    return {
        "content": [{"type": "text", "text": answer.decode()}],
        "structuredContent": structured,
        # The failure of a run is part of its result.
        "isError": structured.get("status") == "failed",
    }


def is_large(answer: Parts) -> bool:
    return sum(map(len, answer)) > MOST_OF_SDK


def _large_result(visit: Visit, answer: Parts) -> dict[str, Any]:
    """Return the result of a tool call like `_result`, but with placeholders for the large values.

    `isError` is always false: only results of failed runs have `isError` true, and results of runs are never so large.
    """
    try:
        text = string_pieces((bytes(part).decode() for part in answer), visit.held.expect)
        visit.held.keep(text.size)
    except SkilleryError as error:
        return _error(error_object(error))
    return {
        "content": [{"type": "text", "text": visit.splices.text(text)}],
        "structuredContent": visit.splices.object(answer),
        "isError": False,
    }


def _error(error: dict[str, Any]) -> dict[str, Any]:
    told = {"error": error}
    return {
        "content": [{"type": "text", "text": encode(told).decode()}],
        "structuredContent": told,
        "isError": True,
    }


def _names(visit: Visit) -> list[str]:
    return [name for name, method in METHODS.items() if method.is_tool or name in visit.methods]


def _unknown(name: str, there: list[str]) -> MCPError:
    way_out = (
        f"Ask for it: /mcp?tools={name}, or skillery mcp --tools {name}"
        if name in ON_REQUEST
        else "Skills are run with execute_skill."
    )
    hint = f"There are {', '.join(there)}. {way_out}"
    return MCPError(INVALID_PARAMS, f"there is no tool {name[:80]!r}", {"type": "tool_not_found", "hint": hint})


@asynccontextmanager
async def _taken_back(context: Context, visit: Visit) -> AsyncIterator[None]:
    """Context manager: if the client cancels the call, cancel the runs that were started in the `with` block.

    Clients of protocol versions since 2026-07-28 cancel by closing the response. Older clients send a notification. If
    an older client disconnects, nothing is cancelled.
    """
    runs: list[str] = []
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


@asynccontextmanager
async def _progress(context: Context, asked: CallToolRequestParams) -> AsyncIterator[None]:
    """Context manager: send progress notifications during the `with` block if the client has asked for them."""
    if "progress_token" not in (asked.meta or {}):
        yield
        return
    telling = asyncio.create_task(_tell(context, asked.name))
    try:
        yield
    finally:
        telling.cancel()


async def _tell(context: Context, name: str) -> None:
    begun = time.monotonic()
    await asyncio.sleep(FIRST_PROGRESS_SECONDS)
    while True:
        seconds = time.monotonic() - begun
        await context.session.report_progress(round(seconds, 3), message=f"{name} has been at work for {seconds:.0f} s")
        await asyncio.sleep(PROGRESS_SECONDS)
