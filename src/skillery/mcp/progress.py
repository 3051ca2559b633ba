"""Progress notifications of a tool call: the progress that the code reports, and the last line of its log."""

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
IDLE_SECONDS = 5.0
"""Interval of notifications if nothing changes."""
LINE_SECONDS = 1.0
"""Shortest interval of notifications for a new line of the log."""
PAUSE_SECONDS = 0.1
"""Pause after each notification. A client then gets at most ten in a second."""
STEP = 1e-6
"""The least increase of the number of progress. MCP requires that each notification has a larger number."""


@asynccontextmanager
async def progress_sent(context: Context, params: CallToolRequestParams, run_ids: list[str]) -> AsyncIterator[None]:
    """Context manager: send progress notifications during the `with` block if the client has asked for them.

    `run_ids` gets the id of the run when the call starts one.
    """
    if "progress_token" not in (params.meta or {}):
        yield
        return
    teller = _Teller(context, params.name, run_ids)
    telling = asyncio.create_task(teller.tell())
    try:
        yield
        await _stop(telling)
        await teller.tell_last()
    finally:
        telling.cancel()
        teller.close()


async def _stop(telling: asyncio.Task[None]) -> None:
    telling.cancel()
    await asyncio.wait({telling})
    if not telling.cancelled() and (error := telling.exception()) is not None:
        raise error


class _Teller:
    """Sends the notifications of one tool call."""

    def __init__(self, context: Context, tool: str, run_ids: list[str]) -> None:
        self._context = context
        self._visit: Visit = visit_of(context)
        self._tool = tool
        self._run_ids = run_ids
        self._followed: Followed | None = None
        self._begun = time.monotonic()
        self._due = self._begun + FIRST_SECONDS
        """The time of the next notification if nothing changes."""
        self._told: Progress | None = None
        self._end = 0
        """The end of the log at the last notification."""
        self._number: float | None = None
        """The number of the last notification."""

    async def tell(self) -> None:
        """Send notifications until this task is cancelled."""
        while True:
            await self._follow()
            if self._is_due():
                await self._send()
            await self._changed()
            await asyncio.sleep(PAUSE_SECONDS)

    async def tell_last(self) -> None:
        """Send the last progress that the code has reported, unless it was sent before."""
        await self._follow()
        if self._followed is not None and self._followed.source.progress != self._told:
            await self._send()

    def close(self) -> None:
        if self._followed is not None:
            self._followed.close()

    async def _follow(self) -> None:
        """Start to follow the run as soon as the call has started one."""
        if self._followed is None and self._run_ids:
            try:
                self._followed = await self._visit.core.following.open(self._visit.identity, self._run_ids[0])
            except SkilleryError:  # the run was refused, or its record has been deleted
                self._run_ids = []

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._followed is None:
            return now >= self._due
        source = self._followed.source
        is_progress = source.progress is not None and source.progress != self._told
        return is_progress or now >= self._due or (source.end > self._end and now >= self._line_due())

    def _line_due(self) -> float:
        return max(self._begun + FIRST_SECONDS, self._due - IDLE_SECONDS + LINE_SECONDS)

    async def _changed(self) -> None:
        """Wait for a change of the run, or until the next notification is due. If no run has started, do not wait."""
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
        self._number = number if self._number is None else max(number, self._number + STEP)
        return self._number
