"""The sources of a run's log: the active run of this server, the stored log of an ended run, or the rows of another
server.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from skillery.backends import Progress
from skillery.runs.active_run import ActiveRun
from skillery.runs.live_output import LiveOutput, LogPart
from skillery.runs.results import Status
from skillery.runs.stored_log import StoredLog


class LogSource(Protocol):
    """The log of one run."""

    @property
    def end(self) -> int:
        """The offset after the last byte of the log."""
        ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def status(self) -> Status:
        """The status of the run. Of the statuses of an ended run, some sources know only `completed` and `failed`."""
        ...

    @property
    def progress(self) -> Progress | None: ...

    async def read(self, after: int, size: int) -> LogPart:
        """Return at most `size` bytes of the log from the offset `after`. If bytes were dropped there, the part starts
        later.
        """
        ...

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change of the log or the progress, or at the end of the run."""
        ...

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done at the end of the run."""
        ...


class LiveSource:
    """The log of an active run, in the memory of this server. It can be read after the run has ended."""

    def __init__(self, live: LiveOutput) -> None:
        self.live = live

    @property
    def end(self) -> int:
        return self.live.end

    @property
    def has_ended(self) -> bool:
        return self.live.has_ended

    @property
    def progress(self) -> Progress | None:
        return self.live.progress

    async def read(self, after: int, size: int) -> LogPart:
        return self.live.read(after, size)

    def changed(self) -> asyncio.Future[None]:
        return self.live.changed()

    def ended(self) -> asyncio.Future[None]:
        return self.live.ended()


class LocalRun(LiveSource):
    """The log of a run that this server executes."""

    def __init__(self, run: ActiveRun) -> None:
        super().__init__(run.live)
        self._run = run

    @property
    def status(self) -> Status:
        if self.live.status is not None:
            return self.live.status
        return "queued" if self._run.is_waiting else "started"


class EndedRun:
    """The stored log of a run that has ended."""

    has_ended = True
    progress = None

    def __init__(self, status: Status, stored: StoredLog) -> None:
        self.status = status
        self._stored = stored

    @property
    def end(self) -> int:
        return self._stored.end

    async def read(self, after: int, size: int) -> LogPart:
        return await asyncio.to_thread(self._stored.read, after, size)

    def changed(self) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    ended = changed
