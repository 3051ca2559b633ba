"""The methods tools/list and tools/call of MCP: the eight tools of the Skills Protocol, and the tools that a
connection asks for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, PaginatedRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillery.backends import Progress
from skillery.client_source.model_tools import explained
from skillery.client_source.openrpc import tool
from skillery.context.budget import body_room
from skillery.environments.definitions import Defined, shown_properties
from skillery.errors import SkilleryError
from skillery.mcp.methods import encoded
from skillery.mcp.requests import COMPLETE, FRESHNESS, ON_REQUEST, CallKey, Visit, visit_of
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
from skillery.runs.followed_runs import Followed, last_line, progress_message
from skillery.workspaces.methods import with_workspaces

# -- Progress notifications of a tool call: the progress that the code reports, and the last line of the run's log ----


Context = ServerRequestContext[Any, Any]
FIRST_SECONDS = 1.0
"""Seconds from the call to the first notification."""
IDLE_SECONDS = 5.0
"""Seconds between notifications if nothing changes."""
LINE_SECONDS = 1.0
"""The minimum number of seconds from a notification to one for a new log line."""
PAUSE_SECONDS = 0.1
"""Seconds after each notification without another one. So a client gets at most ten a second."""
STEP = 1e-6
"""The minimum difference between the progress numbers of two notifications. MCP requires increasing numbers."""


@asynccontextmanager
async def progress_sent(context: Context, params: CallToolRequestParams, run_ids: list[str]) -> AsyncIterator[None]:
    """Send progress notifications during the `with` block, if the client has asked for them.

    The call appends the ids of its runs to `run_ids`.
    """
    if "progress_token" not in (params.meta or {}):
        yield
        return
    notifier = _Notifier(context, params.name, run_ids)
    task = asyncio.create_task(notifier.tell())
    try:
        yield
        await _stop(task)
        await notifier.tell_last()
    finally:
        task.cancel()
        notifier.close()


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel the task that sends notifications. Raise its error, if it has failed."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


class _Notifier:
    """Sends the progress notifications of one tool call."""

    def __init__(self, context: Context, tool: str, run_ids: list[str]) -> None:
        self._context = context
        self._visit: Visit = visit_of(context)
        self._tool = tool
        self._run_ids = run_ids
        self._followed: Followed | None = None
        self._begun = time.monotonic()
        self._due = self._begun + FIRST_SECONDS
        """The monotonic time of the next notification if nothing changes."""
        self._told: Progress | None = None
        self._end = 0
        """The offset of the end of the log at the last notification."""
        self._number: float | None = None
        """The progress number of the last notification."""

    async def tell(self) -> None:
        """Send notifications until the task of this call is cancelled."""
        while True:
            await self._follow()
            if self._is_due():
                await self._send()
            await self._changed()
            await asyncio.sleep(PAUSE_SECONDS)

    async def tell_last(self) -> None:
        """Send the last progress that the code has reported, unless the last notification had it."""
        await self._follow()
        if self._followed is not None and self._followed.source.progress != self._told:
            await self._send()

    def close(self) -> None:
        if self._followed is not None:
            self._followed.close()

    async def _follow(self) -> None:
        """Start to follow the first run, when the call has started one."""
        if self._followed is None and self._run_ids:
            try:
                self._followed = await self._visit.core.following.open(self._visit.identity, self._run_ids[0])
            except SkilleryError:  # the run was refused, or its record has been deleted
                self._run_ids = []

    def _is_due(self) -> bool:
        """Return whether to send a notification now."""
        now = time.monotonic()
        if self._followed is None:
            return now >= self._due
        source = self._followed.source
        is_progress = source.progress is not None and source.progress != self._told
        return is_progress or now >= self._due or (source.end > self._end and now >= self._line_due())

    def _line_due(self) -> float:
        """Return the earliest time of a notification for a new log line."""
        return max(self._begun + FIRST_SECONDS, self._due - IDLE_SECONDS + LINE_SECONDS)

    async def _changed(self) -> None:
        """Wait for a change of the run, or until the next notification is due. Before a run has started, do not
        wait.
        """
        if self._followed is None:
            return
        source = self._followed.source
        due = self._line_due() if source.end > self._end else self._due
        if source.has_ended:
            await asyncio.sleep(IDLE_SECONDS)
            return
        changed = source.changed()
        await asyncio.wait({changed}, timeout=max(0.0, due - time.monotonic()))
        changed.cancel()

    async def _send(self) -> None:
        """Send a notification with the progress and the last log line."""
        now = time.monotonic()
        progress, line = None, ""
        if self._followed is not None:
            source = self._followed.source
            progress = self._told = source.progress
            self._end = source.end
            line = await last_line(source)
        self._due = now + IDLE_SECONDS
        seconds = now - self._begun
        number = self._larger(progress.done if progress is not None else round(seconds, 3))
        await self._context.session.report_progress(
            number,
            progress.total if progress is not None else None,
            progress_message(progress, line) or f"{self._tool} has been at work for {seconds:.0f} s",
        )

    def _larger(self, number: float) -> float:
        """Return `number`, or a slightly larger number than that of the last notification."""
        self._number = number if self._number is None else max(number, self._number + STEP)
        return self._number


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
    key = key_in_meta if isinstance(key_in_meta, str) else visit.idempotency_key
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


def _unknown(name: str, known_tools: list[str]) -> MCPError:
    remedy = (
        f"Ask for it: /mcp?tools={name}, or skillery mcp --tools {name}"
        if name in ON_REQUEST
        else "Skills are run with execute_skill."
    )
    hint = f"There are {', '.join(known_tools)}. {remedy}"
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
