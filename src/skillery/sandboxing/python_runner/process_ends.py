"""The end of a run's process as a failure, and a clean-up that cancellation cannot interrupt."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

from skillery.backends import Failure, FailureType, Outcome


def ended_early(status: int) -> Failure:
    """Return the failure of a process that ended without a result. `status` comes from wait()."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return Failure(FailureType.CPU_TIME_EXCEEDED, "the process used more CPU time than the run allows")
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return Failure(FailureType.PROCESS_KILLED, f"the process was killed by {name} before it returned a result")
    code = os.WEXITSTATUS(status)
    return Failure(FailureType.PROCESS_EXITED, f"the process exited with status {code} before it returned a result")


async def finish_whole(ending: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Await `ending` completely, and only then raise a cancellation. Otherwise, parts of a run could be left behind."""
    task = asyncio.create_task(ending)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()
