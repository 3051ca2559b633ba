"""The queue: a limited number of slots for runs and other jobs. Callers get free slots in turn."""

from __future__ import annotations

import asyncio
import statistics
import time
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from operator import itemgetter
from typing import Protocol

import msgspec

from skillery.context.tallies import OwnTally, Tally
from skillery.errors import Busy, Unavailable

# -- The slots of a queue: how many requests may run at the same time --------------------------------------------------


class Slots(Protocol):
    """A limited number of slots."""

    @property
    def most(self) -> int:
        """The number of all slots."""

    def take(self) -> bool:
        """Take a free slot and return True, or return False if no slot is free."""

    def give_back(self) -> None: ...

    def is_wanted_elsewhere(self) -> bool:
        """Return whether requests wait for a slot in other processes."""

    def watch(self, offer: Callable[[], None]) -> None:
        """Call `offer` on the event loop when another process gives a slot back while requests wait here."""


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

The endpoint /rpc sets the function. A job in the queue awaits it, and then leaves the queue.
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


_Turn = tuple[float, asyncio.Future[None]]
"""A job in the line of its caller: the time of its arrival, and the future that is done when the job has a slot."""


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
        self._lines: OrderedDict[str, deque[_Turn]] = OrderedDict()
        self._recent_seconds = deque([0.1], RECENT_ENDS)
        self._is_turn_of_others = False

    def enter_now(self) -> Slot | None:
        """Return a slot if one is free and no job waits. Otherwise, return None."""
        if not self._lines and self._slots.take():
            return Slot(self)
        return None

    def has_room(self) -> bool:
        """Return whether a slot is free, and no job of any process waits."""
        if is_free := not self._waiting.total and self._slots.take():
            self._slots.give_back()
        return is_free

    @property
    def waiting(self) -> int:
        """The number of jobs that wait in this process."""
        return self._waiting.own

    def watch(self) -> None:
        """Use slots that other processes give back. Call this once on the event loop, if `slots` are shared."""
        self._slots.watch(self._use_free_slots)

    async def enter(self, caller: str, size: int, arrival: float | None = None) -> Slot:
        """Wait for a slot and return it. `size` is the memory of the request while it waits, in bytes. A caller that
        holds a `place` passes its `arrival`, and comes before its own later jobs.

        Raise Busy if the queue is full. Raise Unavailable if the client disconnects while the request waits. In both
        cases, nothing was run.
        """
        if (slot := self.enter_now()) is not None:
            return slot
        with self.place(size) if arrival is None else nullcontext(arrival) as arrived:
            await self._wait_in_line(caller, arrived)
        return Slot(self)

    @contextmanager
    def place(self, size: int) -> Iterator[float]:
        """Context manager: count a waiting job with a request of `size` bytes, and yield the time of its arrival.
        Raise Busy if the queue is full.
        """
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
            yield time.monotonic()
        finally:
            self._waiting.add(-1)
            self._waiting_bytes.add(-size)

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
            _, turn = line.popleft()
            del self._lines[caller]
            if line:
                self._lines[caller] = line  # moves the caller to the end, behind all other callers
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    async def _wait_in_line(self, caller: str, arrival: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        insort(self._lines.setdefault(caller, deque()), (arrival, turn), key=itemgetter(0))
        # A slot that another process gave back before this process was counted as waiting rang no bell here.
        self._use_free_slots()
        watch = until_client_gone.get()
        gone = asyncio.ensure_future(watch()) if watch else None
        try:
            await asyncio.wait({turn, gone} if gone else {turn}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._give_up(caller, (arrival, turn))
            raise
        finally:
            if gone:
                gone.cancel()
        if not turn.done():
            self._give_up(caller, (arrival, turn))
            raise Unavailable("the client has gone", hint="Nothing was run.")

    def _give_up(self, caller: str, turn: _Turn) -> None:
        """Remove a job from the queue. If the job has just got a slot, pass the slot to the next caller."""
        if turn[1].done():
            self._pass_on()
            return
        turn[1].cancel()
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


# -- Slots for installations of packages -------------------------------------------------------------------------------


class BuildProgress:
    """The progress of a build: the present step as text, and the number of finished packages."""

    def __init__(self) -> None:
        self.step = "waiting for a build slot"
        self.done = 0
        self.total = 0
        self.callers = 0
        """The number of callers that wait for the build."""

    @contextmanager
    def awaited(self, *queues: BuildQueue) -> Iterator[None]:
        """Context manager: count one more caller of the build, and offer the free slots of these queues."""
        self.callers += 1
        for queue in queues:
            queue.offer()
        try:
            yield
        finally:
            self.callers -= 1
            for queue in queues:
                queue.offer()


class BuildQueue:
    """Slots for builds, or for their jobs. A build with a waiting caller goes first, even if it is queued already.
    Builds without a caller never use the last `reserved` slots.
    """

    def __init__(self, at_once: int, reserved: int = 0) -> None:
        self._at_once = at_once
        self._for_all = at_once - reserved
        self._running: dict[asyncio.Future[None], BuildProgress] = {}
        self._waiting: dict[asyncio.Future[None], BuildProgress] = {}

    @asynccontextmanager
    async def slot(self, build: BuildProgress) -> AsyncIterator[None]:
        """Context manager: wait for a slot, and hold it during the `with` block."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = build
        self.offer()
        try:
            await turn
            yield
        finally:
            self._waiting.pop(turn, None)
            self._running.pop(turn, None)
            self.offer()

    def offer(self) -> None:
        """Give free slots to waiting builds. Call this after the number of callers of a build has changed."""
        while (turn := self._next()) is not None:
            self._running[turn] = self._waiting.pop(turn)
            turn.set_result(None)

    def ahead(self, build: BuildProgress) -> int:
        """Return the number of builds that run now or start earlier than `build`, or 0 if `build` does not wait."""
        order = sorted(self._waiting.values(), key=lambda waiting: not waiting.callers)
        return len(self._running) + order.index(build) if build in order else 0

    def _next(self) -> asyncio.Future[None] | None:
        if len(self._running) >= self._at_once:
            return None
        waiting = [turn for turn in self._waiting if not turn.done()]  # a cancelled one is about to leave
        awaited = next((turn for turn in waiting if self._waiting[turn].callers), None)
        without_caller = sum(not build.callers for build in self._running.values())
        return awaited or (next(iter(waiting), None) if without_caller < self._for_all else None)


class PackageWait(msgspec.Struct, frozen=True):
    """The packages that a run waits for."""

    step: str
    done: int
    """Installed packages."""
    total: int
    """All packages, or 0 if the number is not known yet."""
    ahead: int
    """Installations that run now or start earlier, or 0 if this installation has started."""

    @property
    def text(self) -> str:
        if self.ahead:
            return f"packages: {self.ahead} install{'s' * (self.ahead > 1)} ahead"
        verb, _, package = self.step.partition(" ")
        step = package if verb in {"fetching", "unpacking"} else self.step
        return f"installing packages: {f'{self.done} of {self.total} ({step})' if self.total else step}"


Watch = Callable[[PackageWait], None]
"""Function that gets the progress of an installation."""


def ignore(_: PackageWait) -> None:
    """Watch nothing."""
