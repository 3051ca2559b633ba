"""Cells for runs: a few prepared in advance, any number on demand, forked from a zygote that is replaced regularly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cellblock.host.cells import Cell, Demand
from cellblock.host.channel import BrokenSetup, wait_ready
from cellblock.host.group_shelf import GroupShelf
from cellblock.host.groups import ControlGroup, ControlGroups
from cellblock.host.plan import Preload, shape
from cellblock.host.shares import Processors, Uids
from cellblock.host.zygote_answers import CannotStart, ZygoteLost
from cellblock.host.zygotes import OWN_PROCESSES, Crowded, Zygote
from cellblock.values import Limits

log = logging.getLogger(__name__)
ATTEMPTS = 4
PREPARE_SECONDS = 10.0
RETRY_SECONDS = 1.0
GROUPS_KEPT = 7
"""Kept cgroups, in addition to those of prepared cells. Each holds ten descriptors, also on a server that may open few
files.
"""
REMEMBERED = 16
LOST = "the process that had imported it ended"


@dataclass(frozen=True, slots=True)
class Warmth:
    """The number and the lifetime of prepared cells and zygotes."""

    prepared: int
    recycle_runs: int
    recycle_seconds: float
    usual: Limits = field(default_factory=Limits)
    """The limits of the first prepared cells. Later ones have the limits that are requested most often."""

    @property
    def enough(self) -> int:
        """The number of runs after which the next zygote starts, to be ready when it replaces the present one."""
        return self.recycle_runs - self.recycle_runs // 10

    @property
    def groups_kept(self) -> int:
        """The number of cgroups that are kept for later runs. 0 if runs should share nothing, not even a zygote."""
        return GROUPS_KEPT + self.prepared if self.recycle_runs > 1 else 0


class Pool:
    """A pool of cells: `take` a cell, use it for one run, then `drop` it. An unused pool uses no processor time.

    With `preload`, the zygotes are untrusted: they have imported foreign modules. Then a run never waits for a zygote:
    if none is ready, `take` raises ZygoteLost, and the run uses another pool. No cgroup serves two runs, because the
    zygote gets descriptors with which it could join the groups of its runs.
    """

    def __init__(
        self,
        python: str,
        plan: dict[str, Any],
        uids: Uids,
        groups: ControlGroups | None,
        warmth: Warmth,
        preload: Preload | None = None,
        spoiled: Callable[[str], None] = log.warning,
    ) -> None:
        """`spoiled` is called with the reason if no zygote can preload the modules. The owner then closes the pool."""
        self._preload = preload
        self._spoiled = spoiled
        self._python = python
        self._plan = plan
        self._uids = uids
        self._groups = groups
        self._shelf = GroupShelf(groups, 0 if preload else warmth.groups_kept) if groups is not None else None
        self._warmth = warmth
        self._processors = Processors(counted=groups is not None and "cpu" in groups.controllers)
        self._usual = Demand(shape(warmth.usual))
        self._demands: deque[Demand] = deque([self._usual], maxlen=REMEMBERED)
        self._ready: deque[Cell] = deque()
        self._current: Zygote | None = None
        self._coming: asyncio.Task[None] | None = None
        self._refilling: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._zygotes: set[Zygote] = set()
        self._busy = 0
        self._closed = False

    async def start(self) -> None:
        """Start the zygote and prepare cells. Raise CannotStart if the host does not allow that."""
        if self._preload:
            await self._start_preloaded()
            return
        await self._zygote()
        if self._shelf is not None:
            await self._shelf.fill(self._usual.limits)
        self._consider()
        if self._refilling is not None:  # may have been started by an earlier run
            await asyncio.shield(self._refilling)

    async def _start_preloaded(self) -> None:
        """Start the zygote and fork one cell, which shows that it can."""
        try:
            await self._start_another()
            cell = await self._prepared(self._usual)
        except (ZygoteLost, OSError, TimeoutError) as error:
            raise CannotStart(f"no run could be forked: {in_words(error)}") from None
        if self._warmth.prepared:
            self._ready.append(cell)
        else:
            self.drop(cell, busy=False)
        self._consider()

    @property
    def is_busy(self) -> bool:
        return self._busy > 0

    @property
    def memory(self) -> int:
        """The memory of the zygote with its modules in bytes. Its runs share this memory."""
        return self._current.memory if self._current is not None else 0

    # -- cells -------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        return {"places_busy": self._busy, "places_prepared": len(self._ready), "zygotes": len(self._zygotes)}

    async def take(self, demand: Demand) -> Cell:
        """Return a prepared cell with these parameters, or a new cell. With network access, the cell is always new.
        Raise CannotStart, OSError or Busy if no cell can be made.
        """
        self._busy += 1
        try:
            cell = self._fitting(demand) if demand.port is None else None
            return cell or await self._whole(self._make(demand, ahead=False))
        except BaseException:
            self._busy -= 1
            raise

    def _fitting(self, demand: Demand) -> Cell | None:
        self._remember(demand)
        while self._ready and self._ready[0].demand == demand:
            cell = self._ready.popleft()
            if cell.lives and not cell.home.lost:
                return cell
            self.drop(cell, busy=False)
        return None

    def _remember(self, demand: Demand) -> None:
        """Record the requested parameters. Cells are prepared for the parameters that were requested most often
        recently.
        """
        self._demands.append(demand)
        if demand != self._usual:
            self._usual = Counter(self._demands).most_common(1)[0][0]
            while self._ready and self._ready[0].demand != self._usual:
                self.drop(self._ready.popleft(), busy=False)

    async def _whole(self, making: Any) -> Cell:
        """Return the cell that `making` makes. If the caller is cancelled, finish making the cell, then drop it."""
        task: asyncio.Task[Cell] = self._keep(making)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._adopt)
            raise

    def _adopt(self, task: asyncio.Task[Cell]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.drop(task.result(), busy=False)

    async def _make(self, demand: Demand, *, ahead: bool) -> Cell:
        """Fork a cell in its cgroups. An untrusted zygote has one attempt: then the caller uses another pool."""
        for attempt in range(1 if self._preload else ATTEMPTS):
            zygote = await self._zygote()
            try:
                return await self._forked(zygote, demand, ahead=ahead)
            except Crowded:
                raise
            except ZygoteLost:
                log.warning("the zygote %d is lost; another takes its place (%d)", zygote.pid, attempt + 1)
                self._retire(zygote)
        if self._preload:
            self._spoiled(LOST)
            raise ZygoteLost
        raise CannotStart("one zygote after the other was lost")

    async def cell_after(self, cell: Cell) -> Cell:
        """Return a new cell that can read the files of a cell whose processes have ended.

        The new cell has the same zygote and the same uid, so drop it before the other one. Raise ZygoteLost, OSError.
        """
        assert isinstance(cell.home, Zygote)
        self._busy += 1
        try:
            return await self._whole(self._forked_with(cell.home, self._usual, cell.uid, ahead=False))
        except BaseException:
            self._busy -= 1
            raise

    async def _forked(self, zygote: Zygote, demand: Demand, *, ahead: bool) -> Cell:
        if zygote.uid is not None:  # an untrusted zygote cannot give its runs other uids
            return await self._forked_with(zygote, demand, zygote.uid, ahead=ahead)
        uid = self._uids.take()
        try:
            cell = await self._forked_with(zygote, demand, uid, ahead=ahead)
        except BaseException:
            self._uids.give_back(uid)
            raise
        cell.when_closed(lambda cell: self._uids.give_back(cell.uid))
        return cell

    async def _forked_with(self, zygote: Zygote, demand: Demand, uid: int, *, ahead: bool) -> Cell:
        group: ControlGroup | None = None
        zygote.forking += 1
        try:
            group = self._shelf.take(demand.limits) if self._shelf is not None else None
            affinity = self._processors.some(demand.limits.cpus)
            return await zygote.cell(demand, uid, affinity, group, ahead=ahead)
        except BaseException:
            if group is not None:
                self._keep(group.remove())
            raise
        finally:
            zygote.forking -= 1
            if zygote.retired and not zygote.in_use:
                self._keep(self._bury(zygote))

    def drop(self, cell: Cell, *, busy: bool = True, before: Cell | None = None) -> None:
        """End a cell in the background. `before` is a used cell from `cell_after`, which must be gone first."""
        self._busy -= busy + (before is not None)
        self._keep(self._clear(cell) if before is None else self._clear_both(before, cell))
        self._consider()

    async def _clear_both(self, first: Cell, second: Cell) -> None:
        try:
            await self._clear(first)
        finally:
            await self._clear(second)

    async def _clear(self, cell: Cell) -> None:
        await cell.end()
        await cell.close()
        if self._shelf is not None and cell.group is not None:
            await self._shelf.give_back(cell.group, self._usual.limits)
        for zygote in [zygote for zygote in self._zygotes if zygote.retired and not zygote.in_use]:
            await self._bury(zygote)

    # -- the few that are ready ----------------------------------------------------------------------------------

    def _consider(self) -> None:
        """Prepare more cells if the pool is not full and at most half of the processors have runs."""
        if self._wanting() and (self._refilling is None or self._refilling.done()):
            self._refilling = self._keep(self._refill())

    @property
    def ready(self) -> tuple[Cell, ...]:
        """The prepared cells."""
        return tuple(self._ready)

    @property
    def is_full(self) -> bool:
        """Whether the pool has as many prepared cells as it should have."""
        return len(self._ready) >= self._warmth.prepared

    def _wanting(self) -> bool:
        return not self.is_full and self._busy <= self._spare() and not self._closed

    def _spare(self) -> int:
        return max(1, len(os.sched_getaffinity(0)) // 2)

    async def _refill(self) -> None:
        while self._wanting():
            try:
                cell = await self._prepared(self._usual)
            except Crowded:
                return  # a later end of a run frees a process
            except (ZygoteLost, CannotStart, OSError, TimeoutError) as error:
                if self._preload:
                    self._spoiled(f"no run could be forked: {in_words(error)}")
                    return
                log.warning("no place could be prepared ahead: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if cell.demand == self._usual:
                self._ready.append(cell)
            else:
                self.drop(cell, busy=False)

    async def _prepared(self, demand: Demand) -> Cell:
        cell = await self._make(demand, ahead=True)
        try:
            async with asyncio.timeout(PREPARE_SECONDS):
                await wait_ready(await cell.open_channel())
            cell.is_ready = True
        except BrokenSetup as broken:
            event = await cell.event()
            self.drop(cell, busy=False)
            raise CannotStart((event and event.message) or str(broken)) from None
        except BaseException:
            self.drop(cell, busy=False)
            raise
        return cell

    # -- zygotes -------------------------------------------------------------------------------------------------

    async def _zygote(self) -> Zygote:
        while True:
            zygote = self._current
            is_used_up = zygote is None or zygote.lost or zygote.served >= self._warmth.recycle_runs
            if self._preload and (self._closed or zygote is None or zygote.lost):
                self._spoiled(LOST)
                raise ZygoteLost
            if self._closed:
                raise CannotStart("the sandbox is closed")
            if zygote is not None and (self._preload or not is_used_up):
                if self._is_due(zygote):
                    self._replace()
                return zygote
            await asyncio.shield(self._replace())

    def _is_due(self, zygote: Zygote) -> bool:
        old = time.monotonic() - zygote.started > self._warmth.recycle_seconds
        return old or zygote.served >= self._warmth.enough

    def _replace(self) -> asyncio.Task[None]:
        if self._coming is None or self._coming.done():
            self._coming = self._keep(self._start_another())
            if self._preload:
                self._coming.add_done_callback(self._note_failure)
        return self._coming

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._spoiled(in_words(error))

    async def _start_another(self) -> None:
        zygote = await self._untrusted(self._preload) if self._preload else Zygote(self._python, self._plan)
        self._zygotes.add(zygote)
        try:
            await zygote.prepare()
        except BaseException:
            await self._bury(zygote)
            raise
        # Callers seldom wait for the new zygote, which starts early. If each run has its own zygote, the practice would
        # be this run.
        if self._current is not None and self._warmth.recycle_runs > 1 and not self._preload:
            await asyncio.wait({self._keep(self._practise(zygote))}, timeout=PREPARE_SECONDS)
        before, self._current = self._current, zygote
        if before is not None:
            self._retire(before)

    async def _untrusted(self, preload: Preload) -> Zygote:
        """Start a zygote that will import foreign modules, with its own uid and its own cgroup."""
        uid = self._uids.take() if self._plan["root"] else None
        group: ControlGroup | None = None
        try:
            if self._groups is not None:
                group = await asyncio.to_thread(self._groups.make)
                group.limit(Limits(memory_mb=preload.memory_mb, processes=OWN_PROCESSES, cpus=1.0))
            if self._closed:
                raise CannotStart("the sandbox is closed")
            return Zygote(self._python, self._plan, preload, uid, group)
        except BaseException:
            if uid is not None:
                self._uids.give_back(uid)
            if group is not None:
                await group.remove()
            raise

    async def _practise(self, zygote: Zygote) -> None:
        """Fork a cell that no run gets, because the first cell of a zygote takes several times as long as the next."""
        with contextlib.suppress(ZygoteLost, OSError):  # a later run finds out too
            await self._clear(await self._forked(zygote, self._usual, ahead=False))
            zygote.served -= 1  # not to 0: after PREPARE_SECONDS, the zygote may have served runs

    def _retire(self, zygote: Zygote) -> None:
        """Stop using a zygote. Its runs continue, and the zygote ends after the last one."""
        if self._current is zygote:
            self._current = None
        if not zygote.retired:
            zygote.retired = True
            if not zygote.in_use:
                self._keep(self._bury(zygote))

    async def _bury(self, zygote: Zygote) -> None:
        if zygote in self._zygotes:
            self._zygotes.discard(zygote)
            await zygote.close()
            if zygote.uid is not None:
                self._uids.give_back(zygote.uid)

    # -- the end -------------------------------------------------------------------------------------------------

    def _keep(self, doing: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Close the pool. Afterwards no process of the pool is left. An import that still runs is ended."""
        self._closed = True
        for zygote in tuple(self._zygotes) if self._preload else ():
            if zygote is not self._current:
                zygote.lose()
        if self._refilling is not None:
            await asyncio.wait({self._refilling})
        while self._ready:
            self.drop(self._ready.popleft(), busy=False)
        while self._tasks:
            await asyncio.wait(self._tasks)
        for zygote in tuple(self._zygotes):
            await self._bury(zygote)
        if self._shelf is not None:
            await self._shelf.close()


def in_words(error: BaseException) -> str:
    """Return the error as text, without any path of the host."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
