"""Answers before the end of a run: of a run in the background, and of a run that takes longer than its call waits."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

from skillery.runs.active_run import CLIENT_GONE, ActiveRun
from skillery.runs.rendering import Rendered, begun_answer
from skillery.runs.results import Run

log = logging.getLogger(__name__)

answer_within: ContextVar[float | None] = ContextVar("answer_within", default=None)
"""Seconds after which a call gets the id of its run instead of a result. The run then continues in the background. None
means that the call waits for the end of the run.
"""


async def answer_at_start(run: ActiveRun, task: asyncio.Task[Rendered]) -> Run:
    """Return the answer of a run in the background when the run has a record. `task` executes the run.

    Raise SkilleryError if the run is refused.
    """
    await asyncio.wait({task, run.announced}, return_when=asyncio.FIRST_COMPLETED)
    if not run.announced.done():
        return (await task).answer
    task.add_done_callback(_log_lost)
    return begun_answer(run)


async def answer_after(run: ActiveRun, task: asyncio.Task[Rendered], seconds: float) -> Run:
    """Return the answer of a run. If the run takes longer than `seconds`, let it continue in the background, and return
    an answer without a result.

    Raise SkilleryError if the run is refused. If the caller disconnects while the run waits for a slot, stop the run.
    """
    try:
        await asyncio.wait({task}, timeout=seconds)
        await asyncio.wait({task, run.announced}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if run.is_waiting:
            run.stop(CLIENT_GONE)
        raise
    if task.done():
        return task.result().answer
    run.in_background = True
    task.add_done_callback(_log_lost)
    return begun_answer(run)


def _log_lost(task: asyncio.Task[Rendered]) -> None:
    """Log the error if the end of a run in the background could not be recorded. No caller waits for this error."""
    if not task.cancelled() and task.exception() is not None:
        log.error("a run in the background ended without a record", exc_info=task.exception())
