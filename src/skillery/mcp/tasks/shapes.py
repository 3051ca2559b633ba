"""The shapes of a task: `Task` as in the specification, with the result of the tool call if the task is completed."""

from __future__ import annotations

from typing import Any

import msgspec

from skillery.mcp.methods import COMPLETE
from skillery.mcp.requests import Visit
from skillery.mcp.skill_tools import result_of
from skillery.mcp.tool_results import tool_result, with_pictures
from skillery.methods.execution import Parts
from skillery.runs.states import RunState

POLL_INTERVAL_MS = 1000


def task_of(state: RunState, ttl_ms: int | None) -> dict[str, Any]:
    """Return a run as a task, without its result."""
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
    """Return a run as a task, with the result of the tool call if the task is completed."""
    task = task_of(state, visit.terms.ttl_ms)
    if task["status"] != "completed":
        return task
    answer = bytes(state.answer)
    result = result_of(msgspec.json.decode(answer)) if state.method == "call_tool" else tool_result(answer)
    return task | {"result": await with_pictures(visit, result) | COMPLETE}


def _status(state: RunState) -> str:
    """Return the status of the task. A failed run is `completed`: its result has `isError`.

    `failed` is only for calls that end with a JSON-RPC error, and a call that has started a run never does.
    """
    if not state.has_ended:
        return "working"
    return "cancelled" if state.is_cancelled else "completed"


def decoded_state(answer: Parts) -> RunState:
    """Return the state in the answer of the method `tasks/get`."""
    return msgspec.json.decode(b"".join(answer), type=RunState)
