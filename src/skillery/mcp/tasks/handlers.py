"""The methods `tasks/get`, `tasks/update` and `tasks/cancel`."""

from __future__ import annotations

from typing import Any

from mcp_types import RequestParams

from skillery.mcp.methods import COMPLETE, answer_of
from skillery.mcp.requests import visit_of
from skillery.mcp.tasks.negotiation import Context, check_name_header, require_tasks
from skillery.mcp.tasks.shapes import decoded_state, detailed_task


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


async def get_task(context: Context, params: TaskParams) -> dict[str, Any]:
    """Return the state of a task, with the result of the tool call if the task is completed."""
    _check(context, params)
    visit = visit_of(context)
    state = decoded_state(await answer_of(visit, "tasks/get", task_id=params.task_id))
    return await detailed_task(visit, state) | COMPLETE


async def update_task(context: Context, params: UpdateParams) -> dict[str, Any]:
    """Acknowledge responses to requests for input. The responses are ignored, because no tool requests input."""
    _check(context, params)
    await answer_of(visit_of(context), "tasks/get", task_id=params.task_id)
    return dict(COMPLETE)


async def cancel_task(context: Context, params: TaskParams) -> dict[str, Any]:
    """Cancel the run of a task. If the run has ended, do nothing."""
    _check(context, params)
    await answer_of(visit_of(context), "tasks/cancel", task_id=params.task_id)
    return dict(COMPLETE)


def _check(context: Context, params: TaskParams) -> None:
    require_tasks(context)
    check_name_header(context, params.task_id)
