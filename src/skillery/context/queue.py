"""The queue: a limited number of slots for runs and other jobs. Callers get free slots in turn."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol

from skillery.context.tallies import OwnTally, Tally
from skillery.errors import Busy, Unavailable

# -- The slots of a queue: how many requests may run at the same time --------------------------------------------------


class Slots(Protocol):
    """A limited number of slots."""

    @property
    def most(self) -> int:
        """The number of all slots."""
        ...

    def take(self) -> bool:
        """Take a free slot and return True, or return False if no slot is free."""
        ...

    def give_back(self) -> None: ...

    def is_wanted_elsewhere(self) -> bool:
        """Return whether requests wait for a slot in other processes."""
        ...

    def watch(self, offer: Callable[[], None]) -> None:
        """Call `offer` on the event loop when another process gives a slot back while requests wait here."""
        ...


class OwnSlots:
    """The slots of one process."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = most

    def take(self) -> bool:
        if not self._free:
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        self._free += 1

    def is_wanted_elsewhere(self) -> bool:
        return False

    def watch(self, offer: Callable[[], None]) -> None:
        """Do nothing: no other process gives slots back."""


until_client_gone: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("until_client_gone", default=None)
"""Function that returns when the client of the current request has disconnected, or None.

The endpoint /rpc sets the function. A job in the queue awaits it, and leaves the queue when the client has
disconnected.
"""

MOST_RETRY_MS = 60_000
RECENT_ENDS = 64
YIELD_SECONDS = 0.002
"""Time in which another process takes a slot that this process gave back for it."""


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

    The worker processes of a server share slots and limits: each has a queue of its own, with `slots` and with the
    numbers of waiting jobs and of their bytes (`tallies`) in memory that the workers share.
    """

    def __init__(
        self,
        at_once: int,
        waiting: int,
        waiting_bytes: int,
        *,
        slots: Slots | None = None,
        tallies: tuple[Tally, Tally] | None = None,
    ) -> None:
        self._slots = slots or OwnSlots(at_once)
        self._most_waiting = waiting
        self._most_bytes = waiting_bytes
        self._waiting, self._waiting_bytes = tallies or (OwnTally(), OwnTally())
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._recent_seconds = deque([0.1], RECENT_ENDS)
        self._is_turn_of_others = False

    def enter_now(self) -> Slot | None:
        """Return a slot if one is free and no job waits. Otherwise, return None."""
        if not self._lines and self._slots.take():
            return Slot(self)
        return None

    @property
    def waiting(self) -> int:
        """The number of jobs that wait in this process."""
        return self._waiting.own

    def watch(self) -> None:
        """Use slots that other processes give back. Call this once on the event loop, if `slots` are shared."""
        self._slots.watch(self._use_free_slots)

    async def enter(self, caller: str, size: int) -> Slot:
        """Wait for a slot and return it. `size` is the memory of the request while it waits, in bytes.

        Raise Busy if the queue is full. Raise Unavailable if the client disconnects while the request waits. In both
        cases, nothing was run.
        """
        slot = self.enter_now()
        if slot is not None:
            return slot
        waiting, held = self._waiting.total, self._waiting_bytes.total
        if waiting >= self._most_waiting:
            raise self._busy(f"{waiting} runs are waiting already, as many as may (the setting queued_runs)")
        if held + size > self._most_bytes:
            raise self._busy(
                f"the {waiting} runs that are waiting hold {held} bytes, and this one has {size} "
                f"more: at most {self._most_bytes} may be held (the setting queued_mb)"
            )
        self._waiting.add(1)
        self._waiting_bytes.add(size)
        try:
            await self._wait_in_line(caller)
        finally:
            self._waiting.add(-1)
            self._waiting_bytes.add(-size)
        return Slot(self)

    def free(self, seconds: float) -> None:
        """Pass the slot of a job that took `seconds` to the next caller. `Slot.leave` calls this method."""
        self._recent_seconds.append(seconds)
        self._pass_on()

    def _pass_on(self) -> None:
        if self._others_come_first():
            self._slots.give_back()
            # The others may not take the slot after all.
            asyncio.get_running_loop().call_later(YIELD_SECONDS, self._use_free_slots)
        elif not self._pass_to_next():
            self._slots.give_back()

    def _others_come_first(self) -> bool:
        """Return whether this slot goes to another process: each second one, if requests wait there."""
        if not self._slots.is_wanted_elsewhere():
            return False
        self._is_turn_of_others = not self._is_turn_of_others
        return self._is_turn_of_others

    def _use_free_slots(self) -> None:
        while self._lines and self._slots.take():
            self._pass_on()

    def _pass_to_next(self) -> bool:
        """Pass a slot of this process to the next caller in turn. Return False if no caller waits."""
        while self._lines:
            caller, line = next(iter(self._lines.items()))
            turn = line.popleft()
            del self._lines[caller]
            if line:
                self._lines[caller] = line  # moves the caller to the end, behind all other callers
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    async def _wait_in_line(self, caller: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        # A slot that another process gave back before this process was counted as waiting rang no bell here.
        self._use_free_slots()
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
        seconds = statistics.median(self._recent_seconds) * (1 + self._waiting.total / self._slots.most)
        return Busy(
            message,
            hint="Nothing was run. Try again after retry_after_ms.",
            retry_after_ms=min(MOST_RETRY_MS, max(50, round(seconds * 1000))),
        )
