"""Creation of tasks: a tool call whose run takes long is answered with a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from skillery.mcp.methods import answer_of
from skillery.mcp.requests import visit_of
from skillery.mcp.tasks.negotiation import Context, declares_tasks
from skillery.mcp.tasks.shapes import decoded_state, task_of
from skillery.methods.execution import Parts
from skillery.runs.rendering import answer_within

STARTS_RUNS = {"execute_skill", "run_code", "call_tool"}
BEGUN = {"queued", "started"}


class _Begun(msgspec.Struct):
    """The members of an answer that tell whether its run has ended."""

    status: str = ""
    run_id: str | None = None


_begun = msgspec.json.Decoder(_Begun)


@contextmanager
def answered_within(context: Context, seconds: float) -> Iterator[None]:
    """Context manager: if the client supports tasks, and the run of a call in the `with` block takes longer than
    `seconds`, the call is answered before the run has ended.
    """
    token = answer_within.set(seconds if declares_tasks(context) else None)
    try:
        yield
    finally:
        answer_within.reset(token)


async def created_task(context: Context, method: str, answer: Parts) -> dict[str, Any] | None:
    """Return the task for a run that has not ended, or None if the answer is a result.

    Without the tasks extension, the answer of a run in the background is a result too.
    """
    if method not in STARTS_RUNS or not declares_tasks(context):
        return None
    begun = _begun.decode(b"".join(answer))
    if begun.run_id is None or begun.status not in BEGUN:
        return None
    visit = visit_of(context)
    state = decoded_state(await answer_of(visit, "tasks/get", task_id=begun.run_id))
    return task_of(state, visit.terms.ttl_ms) | {"resultType": "task"}
