"""The queue: a limited number of slots for runs and other jobs. Callers get free slots in turn."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from skillery.errors import Busy, Unavailable

until_client_gone: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("until_client_gone", default=None)
"""Function that returns when the client of the current request has disconnected, or None.

The endpoint /rpc sets the function. A job in the queue awaits it, and leaves the queue when the client has
disconnected.
"""

MOST_RETRY_MS = 60_000
RECENT_ENDS = 64


class Slot:
    """The right to run, from `enter` until `leave`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._since = time.monotonic()

    def leave(self) -> None:
        self._queue.free(time.monotonic() - self._since)


class Queue:
    """A queue with `at_once` slots. At most `waiting` jobs with at most `waiting_bytes` of memory together wait for a
    slot.

    Callers take turns: a caller with a thousand waiting jobs delays another caller by one job. The jobs of one caller
    keep their order.
    """

    def __init__(self, at_once: int, waiting: int, waiting_bytes: int) -> None:
        self._at_once = at_once
        self._free = at_once
        self._most_waiting = waiting
        self._most_bytes = waiting_bytes
        self._waiting = 0
        self._waiting_bytes = 0
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._recent_seconds = deque([0.1], RECENT_ENDS)

    def enter_now(self) -> Slot | None:
        """Return a slot if one is free and no job waits. Otherwise, return None."""
        if self._free and not self._lines:
            self._free -= 1
            return Slot(self)
        return None

    @property
    def waiting(self) -> int:
        return self._waiting

    async def enter(self, caller: str, size: int) -> Slot:
        """Wait for a slot and return it. `size` is the memory of the request while it waits, in bytes.

        Raise Busy if the queue is full. Raise Unavailable if the client disconnects while the request waits. In both
        cases, nothing was run.
        """
        slot = self.enter_now()
        if slot is not None:
            return slot
        if self._waiting >= self._most_waiting:
            raise self._busy(f"{self._waiting} runs are waiting already, as many as may (the setting queued_runs)")
        if self._waiting_bytes + size > self._most_bytes:
            raise self._busy(
                f"the {self._waiting} runs that are waiting hold {self._waiting_bytes} bytes, and this one has {size} "
                f"more: at most {self._most_bytes} may be held (the setting queued_mb)"
            )
        self._waiting += 1
        self._waiting_bytes += size
        try:
            await self._wait_in_line(caller)
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size
        return Slot(self)

    def free(self, seconds: float) -> None:
        """Pass the slot of a job that took `seconds` to the next caller. `Slot.leave` calls this method."""
        self._recent_seconds.append(seconds)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._lines:
            caller, line = next(iter(self._lines.items()))
            turn = line.popleft()
            del self._lines[caller]
            if line:
                self._lines[caller] = line  # moves the caller to the end, behind all other callers
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _wait_in_line(self, caller: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        watch = until_client_gone.get()
        gone = asyncio.ensure_future(watch()) if watch else None
        try:
            await asyncio.wait({turn, gone} if gone else {turn}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._give_up(caller, turn)
            raise
        finally:
            if gone:
                gone.cancel()
        if not turn.done():
            self._give_up(caller, turn)
            raise Unavailable("the client has gone", hint="Nothing was run.")

    def _give_up(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Remove a job from the queue. If the job has just got a slot, pass the slot to the next caller."""
        if turn.done():
            self._pass_on()
            return
        turn.cancel()
        line = self._lines[caller]
        line.remove(turn)
        if not line:
            del self._lines[caller]

    def _busy(self, message: str) -> Busy:
        # The median, because one long run among many short ones does not predict the next run.
        seconds = statistics.median(self._recent_seconds) * (1 + self._waiting / self._at_once)
        return Busy(
            message,
            hint="Nothing was run. Try again after retry_after_ms.",
            retry_after_ms=min(MOST_RETRY_MS, max(50, round(seconds * 1000))),
        )
