"""Cells for runs: a few prepared in advance, any number on demand, forked from a zygote that is replaced regularly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from cellblock.host.cells import Cell, Demand
from cellblock.host.channel import BrokenSetup, wait_ready
from cellblock.host.group_shelf import GroupShelf
from cellblock.host.groups import ControlGroup
from cellblock.host.plan import Preload, shape
from cellblock.host.shares import Processors
from cellblock.host.succession import LOST, PREPARE_SECONDS, Shared, Zygotes, in_words
from cellblock.host.zygote_answers import CannotStart, Crowded, ZygoteLost
from cellblock.host.zygotes import Zygote
from cellblock.values import Busy

log = logging.getLogger(__name__)
ATTEMPTS = 4
RETRY_SECONDS = 1.0
REMEMBERED = 16


class Pool:
    """A pool of cells: `take` a cell, use it for one run, then `drop` it. An unused pool uses no processor time.

    With `preload`, the zygotes are untrusted: they have imported foreign modules. Then a run never waits for a zygote:
    if none is ready, `take` raises ZygoteLost, and the run uses another pool. No cgroup serves two runs, because the
    zygote gets descriptors with which it could join the groups of its runs.
    """

    def __init__(
        self,
        shared: Shared,
        preload: Preload | None = None,
        spoiled: Callable[[str], None] = log.warning,
    ) -> None:
        """`spoiled` is called with the reason if no zygote can preload the modules. The owner then closes the pool."""
        self._preload = preload
        self._spoiled = spoiled
        groups, warmth = shared.groups, shared.warmth
        self._uids = shared.uids
        self._shelf = GroupShelf(groups, 0 if preload else warmth.groups_kept) if groups is not None else None
        self._prepared_cells = warmth.prepared
        self._processors = Processors(counted=groups is not None and "cpu" in groups.controllers)
        self._usual = Demand(shape(warmth.usual))
        self._demands: deque[Demand] = deque([self._usual], maxlen=REMEMBERED)
        self._ready: deque[Cell] = deque()
        self._refilling: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._zygotes = Zygotes(shared, preload, spoiled, self._practise, self._keep)
        self._busy = 0
        self._is_starting = False
        self._closed = False

    async def start(self) -> None:
        """Start the zygote and prepare cells. Raise CannotStart, ZygoteLost or OSError on failure."""
        if self._preload:
            await self._start_preloaded()
            return
        await self._zygotes.current()
        if self._shelf is not None:
            await self._shelf.fill(self._usual.limits)
        self._is_starting = True
        try:
            self._consider()
            if self._refilling is not None:  # may have been started by an earlier run
                await asyncio.shield(self._refilling)
        finally:
            self._is_starting = False

    async def _start_preloaded(self) -> None:
        """Start the zygote and fork one cell, which shows that it can."""
        try:
            await self._zygotes.start_another()
            cell = await self._prepared(self._usual)
        except (ZygoteLost, OSError, TimeoutError) as error:
            raise CannotStart(f"no run could be forked: {in_words(error)}") from None
        if self._prepared_cells:
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
        return self._zygotes.memory

    # -- cells -------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        return {"places_busy": self._busy, "places_prepared": len(self._ready), "zygotes": self._zygotes.count}

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
        reason = ""
        for attempt in range(1 if self._preload else ATTEMPTS):
            zygote = await self._zygotes.current()
            try:
                return await self._forked(zygote, demand, ahead=ahead)
            except Crowded:
                raise
            except ZygoteLost as lost:
                reason = str(lost) or reason
                log.warning("the zygote %d is lost; another takes its place (%d)", zygote.pid, attempt + 1)
                self._zygotes.retire(zygote)
        if self._preload:
            self._spoiled(LOST)
            raise ZygoteLost
        raise CannotStart(reason or "one zygote after the other was lost")

    async def cell_after(self, cell: Cell) -> Cell:
        """Return a new cell that can read the files of a cell whose processes have ended.

        The new cell has the same zygote and the same uid, so drop it before the other one. Raise ZygoteLost, OSError.
        """
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
            if group is not None and self._shelf is not None:
                self._keep(self._shelf.discard(group, self._usual.limits))
            raise
        finally:
            zygote.forking -= 1
            self._zygotes.let_go(zygote)

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
        await self._zygotes.bury_unused()

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
        return len(self._ready) >= self._prepared_cells

    def _wanting(self) -> bool:
        return not self.is_full and self._busy <= self._spare() and not self._closed

    def _spare(self) -> int:
        return max(1, len(os.sched_getaffinity(0)) // 2)

    async def _refill(self) -> None:
        while self._wanting():
            try:
                cell = await self._prepared(self._usual)
            except (Crowded, Busy):
                return  # a later end of a run frees a process or a uid
            except (ZygoteLost, CannotStart, OSError, TimeoutError) as error:
                if self._preload:
                    self._spoiled(f"no run could be forked: {in_words(error)}")
                    return
                if self._is_starting:
                    raise
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

    async def _practise(self, zygote: Zygote) -> None:
        """Fork a cell that no run gets, because the first cell of a zygote takes several times as long as the next."""
        with contextlib.suppress(ZygoteLost, OSError):  # a later run finds out too
            await self._clear(await self._forked(zygote, self._usual, ahead=False))
            zygote.served -= 1  # not to 0: after PREPARE_SECONDS, the zygote may have served runs

    # -- the end -------------------------------------------------------------------------------------------------

    def _keep(self, doing: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Close the pool. Afterwards no process of the pool is left. An import that still runs is ended."""
        self._closed = True
        self._zygotes.close()
        if self._refilling is not None:
            await asyncio.wait({self._refilling})
        while self._ready:
            self.drop(self._ready.popleft(), busy=False)
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._zygotes.bury_all()
        if self._shelf is not None:
            await self._shelf.close()
