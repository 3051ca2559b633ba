"""The end of a run's process in words, and an end that cancellation cannot interrupt."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

from skillery.backends import Failure, Outcome


def ended_early(status: int) -> Failure:
    """Return the failure of a process that ended without a result. `status` comes from wait()."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return Failure("ProcessKilled", f"the process was killed by {name} before it returned a result")
    code = os.WEXITSTATUS(status)
    return Failure("ProcessExited", f"the process exited with status {code} before it returned a result")


async def finish_whole(ending: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Await `ending` completely. A cancellation, even a second one, must not leave half of a run behind."""
    task = asyncio.ensure_future(ending)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()
