"""Where the log of a run is read from: the run itself, the record of its end, or the server that executes it."""

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
        """The offset behind the last byte."""
        ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def status(self) -> Status:
        """The status of the run. `completed` only if the source knows how the run ended."""
        ...

    @property
    def progress(self) -> Progress | None: ...

    async def read(self, after: int, size: int) -> LogPart:
        """Return at most `size` bytes from the offset `after`."""
        ...

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change of the log or the progress, or at the end of the run."""
        ...

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done at the end of the run."""
        ...


class LiveSource:
    """A run of this server that has not ended, or that ended while it was followed."""

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
    """A run that this server executes."""

    def __init__(self, run: ActiveRun) -> None:
        super().__init__(run.live)
        self._run = run

    @property
    def status(self) -> Status:
        if self.live.status is not None:
            return self.live.status
        return "queued" if self._run.is_waiting else "started"


class EndedRun:
    """A run that has ended."""

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
