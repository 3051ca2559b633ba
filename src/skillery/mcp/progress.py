"""Progress notifications of a tool call: the progress that the code reports, and the last line of the log of the
run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types import CallToolRequestParams

from skillery.backends import Progress
from skillery.errors import SkilleryError
from skillery.mcp.requests import Visit, visit_of
from skillery.runs.followed_runs import Followed, last_line, progress_message

Context = ServerRequestContext[Any, Any]
FIRST_SECONDS = 1.0
"""Seconds from the call to the first notification."""
IDLE_SECONDS = 5.0
"""Seconds between notifications if nothing changes."""
LINE_SECONDS = 1.0
"""The minimum number of seconds from a notification to one for a new log line."""
PAUSE_SECONDS = 0.1
"""Seconds after each notification without another one. So a client gets at most ten a second."""
STEP = 1e-6
"""The minimum difference between the progress numbers of two notifications. MCP requires increasing numbers."""


@asynccontextmanager
async def progress_sent(context: Context, params: CallToolRequestParams, run_ids: list[str]) -> AsyncIterator[None]:
    """Send progress notifications during the `with` block, if the client has asked for them.

    The call appends the ids of its runs to `run_ids`.
    """
    if "progress_token" not in (params.meta or {}):
        yield
        return
    notifier = _Notifier(context, params.name, run_ids)
    task = asyncio.create_task(notifier.tell())
    try:
        yield
        await _stop(task)
        await notifier.tell_last()
    finally:
        task.cancel()
        notifier.close()


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel the task that sends notifications. Raise its error, if it has failed."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


class _Notifier:
    """Sends the progress notifications of one tool call."""

    def __init__(self, context: Context, tool: str, run_ids: list[str]) -> None:
        self._context = context
        self._visit: Visit = visit_of(context)
        self._tool = tool
        self._run_ids = run_ids
        self._followed: Followed | None = None
        self._begun = time.monotonic()
        self._due = self._begun + FIRST_SECONDS
        """The monotonic time of the next notification if nothing changes."""
        self._told: Progress | None = None
        self._end = 0
        """The offset of the end of the log at the last notification."""
        self._number: float | None = None
        """The progress number of the last notification."""

    async def tell(self) -> None:
        """Send notifications until the task of this call is cancelled."""
        while True:
            await self._follow()
            if self._is_due():
                await self._send()
            await self._changed()
            await asyncio.sleep(PAUSE_SECONDS)

    async def tell_last(self) -> None:
        """Send the last progress that the code has reported, unless the last notification had it."""
        await self._follow()
        if self._followed is not None and self._followed.source.progress != self._told:
            await self._send()

    def close(self) -> None:
        if self._followed is not None:
            self._followed.close()

    async def _follow(self) -> None:
        """Start to follow the first run, when the call has started one."""
        if self._followed is None and self._run_ids:
            try:
                self._followed = await self._visit.core.following.open(self._visit.identity, self._run_ids[0])
            except SkilleryError:  # the run was refused, or its record has been deleted
                self._run_ids = []

    def _is_due(self) -> bool:
        """Return whether to send a notification now."""
        now = time.monotonic()
        if self._followed is None:
            return now >= self._due
        source = self._followed.source
        is_progress = source.progress is not None and source.progress != self._told
        return is_progress or now >= self._due or (source.end > self._end and now >= self._line_due())

    def _line_due(self) -> float:
        """Return the earliest time of a notification for a new log line."""
        return max(self._begun + FIRST_SECONDS, self._due - IDLE_SECONDS + LINE_SECONDS)

    async def _changed(self) -> None:
        """Wait for a change of the run, or until the next notification is due. Before a run has started, do not
        wait.
        """
        if self._followed is None:
            return
        source = self._followed.source
        due = self._line_due() if source.end > self._end else self._due
        if source.has_ended:
            await asyncio.sleep(IDLE_SECONDS)
            return
        changed = source.changed()
        await asyncio.wait({changed}, timeout=max(0.0, due - time.monotonic()))
        changed.cancel()

    async def _send(self) -> None:
        """Send a notification with the progress and the last log line."""
        now = time.monotonic()
        progress, line = None, ""
        if self._followed is not None:
            source = self._followed.source
            self._told, self._end = progress, _ = source.progress, source.end
            line = await last_line(source)
        self._due = now + IDLE_SECONDS
        seconds = now - self._begun
        number = self._larger(progress.done if progress is not None else round(seconds, 3))
        await self._context.session.report_progress(
            number,
            progress.total if progress is not None else None,
            progress_message(progress, line) or f"{self._tool} has been at work for {seconds:.0f} s",
        )

    def _larger(self, number: float) -> float:
        """Return `number`, or a slightly larger number than that of the last notification."""
        self._number = number if self._number is None else max(number, self._number + STEP)
        return self._number
