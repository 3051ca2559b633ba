"""The cells of one environment. They are forked from a zygote that has imported the packages of the environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from cellblock.host.cells import Cell, Demand
from cellblock.host.groups import ControlGroup, ControlGroups
from cellblock.host.pool import Pool, Warmth
from cellblock.host.preloaded import PROCESSES, Bounds, Crowded, Environment, PreloadedZygote
from cellblock.host.shares import Uids
from cellblock.host.zygote_answers import CannotStart, ZygoteLost
from cellblock.host.zygotes import Zygote
from cellblock.values import Limits

LOST = "the process that had imported it ended"


class OneUid(Uids):
    """The single host uid of all runs of a zygote without privileges, which cannot give them other uids."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def take(self) -> int:
        return self._uid

    def give_back(self, uid: int) -> None:
        """Do nothing: the uid belongs to the zygote."""


class PreloadedPool(Pool):
    """The cells of one environment. A run never waits for an import: if no zygote is ready, ZygoteLost is raised."""

    def __init__(
        self,
        python: str,
        plan: dict[str, Any],
        uids: Uids,
        groups: ControlGroups | None,
        warmth: Warmth,
        environment: Environment,
        bounds: Bounds,
        spoiled: Callable[[str], None],
    ) -> None:
        # The zygote has executed foreign code, and gets descriptors with which it could join the groups of its runs.
        super().__init__(python, plan, uids, groups, warmth, keeps_groups=False)
        self.environment = environment
        self._bounds = bounds
        self._spoiled = spoiled

    async def start(self) -> None:
        """Start the zygote and prepare one cell. Raise CannotStart if that fails."""
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
        return self._current.memory if isinstance(self._current, PreloadedZygote) else 0

    def _uids_of(self, zygote: Zygote) -> Uids:
        uid = zygote.uid if isinstance(zygote, PreloadedZygote) else None
        return self._uids if uid is None else OneUid(uid)

    async def _zygote(self) -> Zygote:
        zygote = self._current
        if self._closed or zygote is None or zygote.lost:
            self._spoiled(LOST)
            raise ZygoteLost
        if self._is_due(zygote) and not self._closed:
            self._replace()
        return zygote

    async def _make(self, demand: Demand, *, ahead: bool) -> Cell:
        """Fork a cell. Raise ZygoteLost if that fails; then the caller runs the job in an ordinary cell."""
        zygote = await self._zygote()
        try:
            return await self._forked(zygote, demand, ahead=ahead)
        except Crowded:
            raise
        except ZygoteLost:
            self._retire(zygote)
            self._spoiled(LOST)
            raise

    async def _start_another(self) -> None:
        uid = self._uids.take() if self._plan["root"] else None
        group: ControlGroup | None = None
        try:
            if self._groups is not None:
                group = await asyncio.to_thread(self._groups.make)
                group.limit(Limits(memory_mb=self._bounds.memory_mb, processes=PROCESSES, cpus=1.0))
            if self._closed:
                raise CannotStart("the sandbox is closed")
            zygote = PreloadedZygote(self._python, self._plan, self.environment, self._bounds, uid, group)
        except BaseException:
            self._give_back(uid)
            if group is not None:
                await group.remove()
            raise
        self._zygotes.add(zygote)
        try:
            await zygote.prepare()
        except BaseException:
            await self._bury(zygote)
            raise
        before, self._current = self._current, zygote
        if before is not None:
            self._retire(before)

    def _replace(self) -> asyncio.Task[None]:
        task = super()._replace()
        task.add_done_callback(self._note_failure)
        return task

    async def _refill(self) -> None:
        try:
            while self._wanting():
                cell = await self._prepared(self._usual)
                if cell.demand == self._usual:
                    self._ready.append(cell)
                else:
                    self.drop(cell, busy=False)
        except Crowded:
            return  # a later end of a run frees a process
        except (ZygoteLost, CannotStart, OSError, TimeoutError) as error:
            self._spoiled(f"no run could be forked: {in_words(error)}")

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._spoiled(in_words(error))

    async def _bury(self, zygote: Zygote) -> None:
        if zygote in self._zygotes:
            await super()._bury(zygote)
            if isinstance(zygote, PreloadedZygote):
                self._give_back(zygote.uid)

    async def close(self) -> None:
        """Close the pool as `Pool.close` does, without waiting for an import that is still running."""
        self._closed = True
        for zygote in tuple(self._zygotes):
            if zygote is not self._current:
                zygote.lose()
        await super().close()

    def _give_back(self, uid: int | None) -> None:
        if uid is not None:
            self._uids.give_back(uid)


def in_words(error: BaseException) -> str:
    """Return the error as text, without any path of the host."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
