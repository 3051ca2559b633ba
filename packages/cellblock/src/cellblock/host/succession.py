"""The zygotes of a pool: the current one, the next one while it starts, and former ones whose runs continue."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from cellblock.host.groups import ControlGroup, ControlGroups
from cellblock.host.plan import Preload, base_python
from cellblock.host.shares import Uids
from cellblock.host.zygote_answers import CannotStart, ZygoteLost
from cellblock.host.zygotes import OWN_PROCESSES, Zygote
from cellblock.values import Limits

PREPARE_SECONDS = 10.0
GROUPS_KEPT = 7
"""The number of unused cgroups that are kept for later runs, in addition to those of prepared cells. The number is low,
because each cgroup holds ten descriptors.
"""
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


@dataclass(frozen=True, slots=True)
class Shared:
    """What all pools of one sandbox share."""

    plan: dict[str, Any]
    uids: Uids
    groups: ControlGroups | None
    warmth: Warmth


class Zygotes:
    """Starts a zygote, and the next one before the current one is used up or too old.

    With `preload`, the zygotes are untrusted, and no run waits for one: a run without a zygote uses another pool.
    """

    def __init__(
        self,
        shared: Shared,
        preload: Preload | None,
        spoiled: Callable[[str], None],
        practise: Callable[[Zygote], Awaitable[None]],
        keep: Callable[[Any], asyncio.Task[Any]],
    ) -> None:
        """`spoiled` is called with the reason if no zygote can preload the modules. `practise` forks the first cell of
        a zygote. `keep` makes a task of a coroutine, for which the pool waits at its end.
        """
        self._shared = shared
        self._preload = preload
        self._spoiled = spoiled
        self._practise = practise
        self._keep = keep
        self._all: set[Zygote] = set()
        self._current: Zygote | None = None
        self._coming: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def count(self) -> int:
        return len(self._all)

    @property
    def memory(self) -> int:
        """The memory of the current zygote with its modules in bytes. Its runs share this memory."""
        return self._current.memory if self._current is not None else 0

    async def current(self) -> Zygote:
        """Return the zygote for the next run. Raise ZygoteLost or CannotStart."""
        while True:
            zygote = self._current
            is_used_up = zygote is None or zygote.lost or zygote.served >= self._shared.warmth.recycle_runs
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
        old = time.monotonic() - zygote.started > self._shared.warmth.recycle_seconds
        return old or zygote.served >= self._shared.warmth.enough

    def _replace(self) -> asyncio.Task[None]:
        if self._coming is None or self._coming.done():
            self._coming = self._keep(self.start_another())
            if self._preload:
                self._coming.add_done_callback(self._note_failure)
        return self._coming

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._spoiled(in_words(error))

    async def start_another(self) -> None:
        zygote = await self._untrusted(self._preload) if self._preload else Zygote(base_python(), self._shared.plan)
        self._all.add(zygote)
        try:
            await zygote.prepare()
        except BaseException:
            await self._bury(zygote)
            raise
        # Callers seldom wait for the new zygote, which starts early. If each run has its own zygote, the practice would
        # be this run.
        if self._current is not None and self._shared.warmth.recycle_runs > 1 and not self._preload:
            await asyncio.wait({self._keep(self._practise(zygote))}, timeout=PREPARE_SECONDS)
        before, self._current = self._current, zygote
        if before is not None:
            self.retire(before)

    async def _untrusted(self, preload: Preload) -> Zygote:
        """Start a zygote that will import foreign modules, with its own uid and its own cgroup."""
        uid = self._shared.uids.take() if self._shared.plan["root"] else None
        group: ControlGroup | None = None
        try:
            if self._shared.groups is not None:
                group = await asyncio.to_thread(self._shared.groups.make)
                group.limit(Limits(memory_mb=preload.memory_mb, processes=OWN_PROCESSES, cpus=1.0))
            if self._closed:
                raise CannotStart("the sandbox is closed")
            return Zygote(base_python(), self._shared.plan, preload, uid, group)
        except BaseException:
            if uid is not None:
                self._shared.uids.give_back(uid)
            if group is not None:
                await group.remove()
            raise

    def retire(self, zygote: Zygote) -> None:
        """Stop using a zygote. Its runs continue, and the zygote ends after the last one."""
        if self._current is zygote:
            self._current = None
        if not zygote.retired:
            zygote.retired = True
            self.let_go(zygote)

    def let_go(self, zygote: Zygote) -> None:
        """End a former zygote in the background if it has no runs."""
        if zygote.retired and not zygote.in_use:
            self._keep(self._bury(zygote))

    async def bury_unused(self) -> None:
        for zygote in [zygote for zygote in self._all if zygote.retired and not zygote.in_use]:
            await self._bury(zygote)

    async def bury_all(self) -> None:
        for zygote in tuple(self._all):
            await self._bury(zygote)

    async def _bury(self, zygote: Zygote) -> None:
        if zygote in self._all:
            self._all.discard(zygote)
            await zygote.close()
            if zygote.uid is not None:
                self._shared.uids.give_back(zygote.uid)

    def close(self) -> None:
        """Start no further zygote, and end those that still import modules."""
        self._closed = True
        for zygote in tuple(self._all) if self._preload else ():
            if zygote is not self._current:
                zygote.lose()


def in_words(error: BaseException) -> str:
    """Return the error as text, without any path of the host."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
