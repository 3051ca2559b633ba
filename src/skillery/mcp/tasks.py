"""The tasks extension of MCP, `io.modelcontextprotocol/tasks` (2026-07-28). A task is a run.

If a tool call starts a run that takes long, a client that declares the extension gets a task instead of a result. The
client then polls `tasks/get`, which any server of the database answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import RequestParams
from mcp_types.jsonrpc import HEADER_MISMATCH, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from skillery.mcp.methods import answer_of
from skillery.mcp.requests import COMPLETE, Visit, visit_of
from skillery.mcp.tool_results import result_of, tool_result, with_pictures
from skillery.methods.execution import Parts
from skillery.runs.followed_runs import RunState
from skillery.runs.rendering import answer_within

# -- The checks of requests about tasks: the protocol version, the capability of the client, and the routing header ----


Context = ServerRequestContext[Any, Any]
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
REQUIRED: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}


def declares_tasks(context: Context) -> bool:
    """Return whether the request declares the extension, which only requests of version 2026-07-28 or later can do."""
    declared = context.session.client_capabilities
    extensions = (declared.extensions or {}) if declared is not None else {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS_EXTENSION in extensions


def require_tasks(context: Context) -> None:
    """Raise MCPError if the protocol version has no tasks, or if the request does not declare the extension."""
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        hint = f"The extension {TASKS_EXTENSION} needs version {MODERN_PROTOCOL_VERSIONS[0]} of the protocol."
        message = f"there is no method {context.method!r} in version {context.protocol_version}"
        raise MCPError(METHOD_NOT_FOUND, message, {"type": "method_not_found", "hint": hint})
    if not declares_tasks(context):
        message = f"{context.method} needs the extension {TASKS_EXTENSION}, which the request does not declare"
        hint = "Declare it in _meta of the request: io.modelcontextprotocol/clientCapabilities.extensions."
        data = {"type": "missing_capability", "hint": hint, "requiredCapabilities": REQUIRED}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, data)


def check_name_header(context: Context, task_id: str) -> None:
    """Raise MCPError if the header `Mcp-Name` is not the id of the task, because load balancers route by this
    header.
    """
    value = context.request.headers.get(MCP_NAME_HEADER) if context.request is not None else None
    if decode_header_value(value) != task_id:
        message = f"the header Mcp-Name is not the taskId of {context.method}"
        hint = "Send the taskId as Mcp-Name too."
        raise MCPError(HEADER_MISMATCH, message, {"type": "header_mismatch", "hint": hint})


# The shapes of a task: `Task` as in the specification, with the result of the tool call if the task is completed.


POLL_INTERVAL_MS = 1000


def task_of(state: RunState, ttl_ms: int | None) -> dict[str, Any]:
    """Return the `Task` of the specification for a run, without a result."""
    task: dict[str, Any] = {
        "taskId": state.run_id,
        "status": _status(state),
        "createdAt": msgspec.to_builtins(state.created_at),
        "lastUpdatedAt": msgspec.to_builtins(state.changed_at),
        "ttlMs": ttl_ms,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }
    return task | ({"statusMessage": state.message} if state.message else {})


async def detailed_task(visit: Visit, state: RunState) -> dict[str, Any]:
    """Return the `Task` of the specification for a run. A completed task has the result of the tool call."""
    task = task_of(state, visit.terms.ttl_ms)
    if task["status"] != "completed":
        return task
    answer = bytes(state.answer)
    result = result_of(msgspec.json.decode(answer)) if state.method == "call_tool" else tool_result(answer)
    return task | {"result": await with_pictures(visit, result) | COMPLETE}


def _status(state: RunState) -> str:
    """Return the status of a task. A failed run is `completed`, and its result has `isError`.

    `failed` is only for calls that end with a JSON-RPC error, and a call that has started a run never does.
    """
    if not state.has_ended:
        return "working"
    return "cancelled" if state.is_cancelled else "completed"


def decoded_state(answer: Parts) -> RunState:
    """Return the state of a run from the JSON result of `tasks/get`."""
    return msgspec.json.decode(b"".join(answer), type=RunState)


# -- The methods `tasks/get`, `tasks/update` and `tasks/cancel` --------------------------------------------------------


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


async def get_task(context: Context, params: TaskParams) -> dict[str, Any]:
    """Return the state of a task. A completed task has the result of the tool call."""
    _check(context, params)
    visit = visit_of(context)
    state = decoded_state(await answer_of(visit, "tasks/get", task_id=params.task_id))
    return await detailed_task(visit, state) | COMPLETE


async def update_task(context: Context, params: UpdateParams) -> dict[str, Any]:
    """Accept responses to requests for input, and ignore them, because no tool requests input."""
    _check(context, params)
    await answer_of(visit_of(context), "tasks/get", task_id=params.task_id)
    return dict(COMPLETE)


async def cancel_task(context: Context, params: TaskParams) -> dict[str, Any]:
    """Cancel the run of a task. If the run has ended, do nothing."""
    _check(context, params)
    await answer_of(visit_of(context), "tasks/cancel", task_id=params.task_id)
    return dict(COMPLETE)


def _check(context: Context, params: TaskParams) -> None:
    """Raise MCPError if the request does not fulfil the conditions of requests about tasks."""
    require_tasks(context)
    check_name_header(context, params.task_id)


# -- Creation of tasks: a tool call whose run takes long is answered with a task ---------------------------------------


STARTS_RUNS = {"execute_skill", "run_code", "call_tool"}
BEGUN = {"queued", "started"}


class _Begun(msgspec.Struct):
    """The members of a result that say whether its run has ended."""

    status: str = ""
    run_id: str | None = None


_begun = msgspec.json.Decoder(_Begun)


@contextmanager
def answered_within(context: Context, seconds: float) -> Iterator[None]:
    """Answer a call in the `with` block after `seconds` with the id of its run, if the client supports tasks."""
    token = answer_within.set(seconds if declares_tasks(context) else None)
    try:
        yield
    finally:
        answer_within.reset(token)


async def created_task(context: Context, method: str, answer: Parts) -> dict[str, Any] | None:
    """Return the task for a run that has not ended, or None if the answer is a result.

    If the client does not declare the tasks extension, the answer for a run in the background is a result.
    """
    if method not in STARTS_RUNS or not declares_tasks(context):
        return None
    begun_run = _begun.decode(b"".join(answer))
    if begun_run.run_id is None or begun_run.status not in BEGUN:
        return None
    visit = visit_of(context)
    state = decoded_state(await answer_of(visit, "tasks/get", task_id=begun_run.run_id))
    return task_of(state, visit.terms.ttl_ms) | {"resultType": "task"}
