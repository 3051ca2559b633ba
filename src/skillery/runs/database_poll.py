"""Regular polling of the database while a server has active runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from skillery.errors import SkilleryError
from skillery.runs.active_run import ActiveRuns

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.5
"""The interval of polling in seconds. A request about a run of this server that another server has received waits for
the next poll.
"""


class Polling:
    """Calls the functions `looks` regularly while this server has active runs. Each makes a short query of the
    database.
    """

    def __init__(self, active: ActiveRuns, looks: Sequence[Callable[[], Awaitable[None]]]) -> None:
        self._active = active
        self._looks = looks
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Start polling. It ends when this server has no active run."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._begin)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._timer = None
        if self._active:
            self._task = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        for look in self._looks:
            try:
                await look()
            except SkilleryError as error:
                log.debug("the database did not answer what is asked of active runs: %s", error.message)
        self.watch()
