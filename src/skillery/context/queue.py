"""The queue of runs: a limited number of slots, which callers get in turn."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from skillery.errors import Busy, Unavailable

until_client_gone: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("until_client_gone", default=None)
"""A function that returns when the client disconnects. Endpoints set it if they can detect that. A run in the queue
awaits
the function.
"""

MOST_RETRY_MS = 60_000
RECENT_ENDS = 64


class Slot:
    """A slot of the queue. A run holds it until `leave` is called."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._since = time.monotonic()

    def leave(self) -> None:
        self._queue.free(time.monotonic() - self._since)


class Queue:
    """Gives slots to `at_once` runs. At most `waiting` more runs wait, with at most `waiting_bytes` of memory together.

    Callers take turns: a caller with a thousand waiting runs delays another caller by one run. The runs of one caller
    start in the order of their arrival.
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
        """Return a slot if one is free and no run waits; otherwise None."""
        if self._free and not self._lines:
            self._free -= 1
            return Slot(self)
        return None

    @property
    def waiting(self) -> int:
        return self._waiting

    async def enter(self, caller: str, size: int) -> Slot:
        """Wait for a slot, and return it. `size` is the memory of the waiting request in bytes.

        Raise Busy if the queue is full, Unavailable if the client disconnects first. In both cases no code ran.
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
        """Give the slot of a run that ended after `seconds` to the next caller."""
        self._recent_seconds.append(seconds)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._lines:
            caller, line = next(iter(self._lines.items()))
            turn = line.popleft()
            del self._lines[caller]
            if line:
                self._lines[caller] = line  # at the end: all other callers come first
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
        """Remove a cancelled wait. If the wait got its slot at the same moment, pass the slot on."""
        if turn.done():
            self._pass_on()
            return
        turn.cancel()
        line = self._lines[caller]
        line.remove(turn)
        if not line:
            del self._lines[caller]

    def _busy(self, message: str) -> Busy:
        # The median: one long run among many short ones says nothing about the next.
        seconds = statistics.median(self._recent_seconds) * (1 + self._waiting / self._at_once)
        return Busy(
            message,
            hint="Nothing was run. Try again after retry_after_ms.",
            retry_after_ms=min(MOST_RETRY_MS, max(50, round(seconds * 1000))),
        )
