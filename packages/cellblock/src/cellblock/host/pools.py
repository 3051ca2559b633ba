"""The pools of one sandbox: one of trusted zygotes, and one for each set of modules that was preloaded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from cellblock.host.plan import MEBIBYTE, Preload
from cellblock.host.pool import Pool
from cellblock.host.succession import in_words
from cellblock.host.zygote_answers import CannotStart
from cellblock.values import Busy

log = logging.getLogger(__name__)
REMEMBERED_SECONDS = 300.0
"""Seconds for which modules that could not be preloaded are not preloaded again."""
LEAVING_SECONDS = 0.05

Open = Callable[[Preload, Callable[[str], None]], Pool]


@dataclass(eq=False)
class Preloaded:
    """The pool of one set of modules."""

    preload: Preload
    holder: object
    """Referenced, so that its owner sees that the folder of the packages is in use."""
    state: Literal["starting", "ready", "failed"] = "starting"
    message: str = ""
    """The reason if the modules could not be preloaded."""
    pool: Pool | None = None
    began: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    start_seconds: float = 0.0
    memory: int = 0
    """Memory of the zygote in bytes when it was ready."""


class Pools:
    """A pool starts when a run first wants its modules preloaded, and ends when it is idle or another needs its place.

    No run waits for an import: until a pool is ready, or if it has failed, `of` returns the pool `trusted`.
    """

    def __init__(self, trusted: Pool, open_pool: Open, most: int = 0, idle_seconds: float = 600.0) -> None:
        """`most` is the number of pools with preloaded modules. `open_pool` gets a function to call with the reason if
        the pool cannot go on.
        """
        self.trusted = trusted
        self._open = open_pool
        self._most = most
        self._idle_seconds = idle_seconds
        self._kept: dict[Preload, Preloaded] = {}
        """Least recently used first."""
        self._leaving = 0
        self._served = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def of(self, preload: Preload | None, holder: object = None) -> Pool:
        """Return the pool for a run. Start a pool with these modules if there is room and it has not failed recently.

        `preload` is None for a run that an untrusted zygote must not fork: one with secrets or a network.
        """
        if preload is None or self._closed or not self._most:
            return self.trusted
        kept = self._kept.pop(preload, None)
        if kept is not None and kept.state == "failed" and time.monotonic() - kept.used > REMEMBERED_SECONDS:
            kept = None
        if kept is None:
            self._begin(preload, holder)
            return self.trusted
        self._kept[preload] = kept
        if kept.state != "ready" or kept.pool is None:
            return self.trusted
        kept.used = time.monotonic()
        self._served += 1
        return kept.pool

    def preloaded(self) -> list[Preloaded]:
        """Return the pools with preloaded modules, least recently used first."""
        return list(self._kept.values())

    def figures(self) -> dict[str, float]:
        ready = self._ready()
        return self.trusted.figures() | {
            "environments_warm": len(ready),
            "environments_bytes": sum(kept.memory for kept in ready),
            "environment_runs": self._served,
        }

    def _ready(self) -> list[Preloaded]:
        return [kept for kept in self._kept.values() if kept.state == "ready"]

    # -- coming --------------------------------------------------------------------------------------------------

    def _begin(self, preload: Preload, holder: object) -> None:
        if not self._has_room():
            return
        kept = self._kept[preload] = Preloaded(preload, holder)
        self._keep(self._start(kept))

    def _has_room(self) -> bool:
        """Return whether another pool may start.

        If all places are taken, end the least recently used pool, provided that it was idle for longer than its start
        takes. Otherwise, two pools that need the last place in turn would spend all time on imports.
        """
        now = time.monotonic()
        for preload, kept in tuple(self._kept.items()):
            if kept.state == "failed" and now - kept.used > REMEMBERED_SECONDS:
                del self._kept[preload]
        living = [kept for kept in self._kept.values() if kept.state != "failed"]
        if len(living) + self._leaving < self._most:
            return True
        idle = [kept for kept in self._ready() if now - kept.used > kept.start_seconds]
        if idle and not self._leaving:
            self._dismiss(min(idle, key=lambda kept: kept.used))
        return False

    async def _start(self, kept: Preloaded) -> None:
        if self._closed:
            return
        pool = kept.pool = self._open(kept.preload, lambda reason: self._spoil(kept, reason))
        try:
            await pool.start()
        except (Busy, CannotStart, OSError, TimeoutError) as error:
            self._spoil(kept, in_words(error))
            return
        if kept.state == "failed":
            return
        kept.used = time.monotonic()
        kept.start_seconds = kept.used - kept.began
        kept.memory = pool.memory
        kept.state = "ready"
        words, lock = kept.preload.words, kept.preload.lock[:12]
        log.info("%s of %s are imported: %.1f MiB, %.1f s", words, lock, kept.memory / MEBIBYTE, kept.start_seconds)
        self._look_again()

    # -- going ---------------------------------------------------------------------------------------------------

    def _spoil(self, kept: Preloaded, reason: str) -> None:
        """Note that the modules cannot be kept imported, log the reason and end their zygote."""
        if kept.state == "failed" or self._closed:
            return
        kept.state, kept.message, kept.used = "failed", reason, time.monotonic()
        words, lock = kept.preload.words, kept.preload.lock[:12]
        log.warning("%s of %s cannot be kept imported, runs import for themselves: %s", words, lock, reason)
        self._let_go(kept)

    def _dismiss(self, kept: Preloaded) -> None:
        self._kept.pop(kept.preload, None)
        self._let_go(kept)

    def _let_go(self, kept: Preloaded) -> None:
        pool, kept.pool = kept.pool, None
        if pool is not None:
            self._leaving += 1
            self._keep(self._leave(pool))

    async def _leave(self, pool: Pool) -> None:
        """Close the pool after its last run."""
        try:
            while pool.is_busy:  # noqa: ASYNC110 - rare, and no caller waits
                await asyncio.sleep(LEAVING_SECONDS)
            await pool.close()
        finally:
            self._leaving -= 1

    def _look_again(self) -> None:
        """Start a timer until the next pool may be idle."""
        if self._timer is not None:
            self._timer.cancel()
        ready, self._timer = self._ready(), None
        if ready and not self._closed:
            due = min(kept.used for kept in ready) + self._idle_seconds - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.01, due), self._let_idle_go)

    def _let_idle_go(self) -> None:
        now = time.monotonic()
        for kept in [kept for kept in self._ready() if now - kept.used >= self._idle_seconds]:
            if kept.pool is not None and kept.pool.is_busy:
                kept.used = now
            else:
                self._dismiss(kept)
        self._look_again()

    def _keep(self, doing: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close the pools with preloaded modules. Afterwards no process of them is left."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        pools = [kept.pool for kept in self._kept.values() if kept.pool is not None]
        self._kept.clear()
        for pool in pools:
            await pool.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
