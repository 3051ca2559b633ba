"""Zygotes with preloaded packages. One starts when an environment is first used, and ends when it is idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

from cellblock.host.plan import MEBIBYTE
from cellblock.host.pool import Pool
from cellblock.host.preloaded import Bounds, Environment
from cellblock.host.preloaded_pool import PreloadedPool, in_words
from cellblock.host.zygote_answers import CannotStart
from cellblock.values import Busy
from skillery.backends import CodeCall, Job, PackageMount, SkillCall, Warm
from skillery.errors import SkilleryError

log = logging.getLogger(__name__)
REMEMBERED_SECONDS = 300.0
"""Seconds for which an environment that failed to start is not started again."""
LEAVING_SECONDS = 0.05

Open = Callable[[Environment, Callable[[str], None]], PreloadedPool]


def environment_of(job: Job) -> Environment | None:
    """Return the environment that a zygote may preload for the job; None if no zygote may.

    A job with variables (secrets) or a network never runs in such a zygote, because code of packages would be its
    parent process. Neither does a job whose code is not a Python function.
    """
    is_python = isinstance(job.call, SkillCall) or (isinstance(job.call, CodeCall) and job.call.language == "python")
    if not (job.preload and job.packages and is_python) or job.environment or job.network:
        return None
    first = job.packages[0]
    return Environment(first.lock, str(first.folder), job.preload)


class WarmEnvironment:
    """One environment that was used, with its pool."""

    def __init__(self, environment: Environment, mount: PackageMount) -> None:
        self.environment = environment
        self.mount = mount
        """Referenced, so that the store of environments sees that the folder is in use."""
        self.state: Literal["starting", "ready", "failed"] = "starting"
        self.message = ""
        self.pool: PreloadedPool | None = None
        self.began = self.used = time.monotonic()
        self.start_seconds = 0.0
        self.memory = 0

    def shown(self) -> Warm:
        environment = self.environment
        megabytes = round(self.memory / MEBIBYTE, 1) if self.state == "ready" else 0.0
        return Warm(environment.lock, environment.preload, self.state, megabytes, self.message)


class WarmEnvironments:
    def __init__(self, open_pool: Open, bounds: Bounds) -> None:
        self._open = open_pool
        self._bounds = bounds
        self._kept: dict[tuple[str, tuple[str, ...]], WarmEnvironment] = {}
        """Least recently used first."""
        self._leaving = 0
        self._served = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def pool_for(self, job: Job) -> PreloadedPool | None:
        """Return the pool for the job if the pool is ready.

        Otherwise return None, and start the pool if there is room and it has not failed recently.
        """
        environment = environment_of(job)
        if environment is None or self._closed or not self._bounds.most:
            return None
        kept = self._kept.pop(environment.key, None)
        if kept is not None and kept.state == "failed" and time.monotonic() - kept.used > REMEMBERED_SECONDS:
            kept = None
        if kept is None:
            self._begin(environment, job.packages[0])
            return None
        self._kept[environment.key] = kept
        if kept.state != "ready":
            return None
        kept.used = time.monotonic()
        self._served += 1
        return kept.pool

    def warm(self) -> list[Warm]:
        """See `skillery.backends.KeepsWarm`."""
        return [kept.shown() for kept in self._kept.values()]

    def figures(self) -> dict[str, float]:
        ready = [kept for kept in self._kept.values() if kept.state == "ready"]
        return {
            "environments_warm": len(ready),
            "environments_bytes": sum(kept.memory for kept in ready),
            "environment_runs": self._served,
        }

    # -- coming --------------------------------------------------------------------------------------------------

    def _begin(self, environment: Environment, mount: PackageMount) -> None:
        if not self._has_room():
            return
        kept = self._kept[environment.key] = WarmEnvironment(environment, mount)
        self._keep(self._start(kept))

    def _has_room(self) -> bool:
        """Return whether another environment may start.

        If all places are taken, end the least recently used environment, provided that it was idle for longer than its
        start takes. Otherwise, two environments that need the last place in turn would spend all time on imports.
        """
        self._forget_failures()
        living = [kept for kept in self._kept.values() if kept.state != "failed"]
        if len(living) + self._leaving < self._bounds.most:
            return True
        now = time.monotonic()
        idle = [kept for kept in living if kept.state == "ready" and now - kept.used > kept.start_seconds]
        if idle and not self._leaving:
            self._dismiss(min(idle, key=lambda kept: kept.used))
        return False

    def _forget_failures(self) -> None:
        past = time.monotonic() - REMEMBERED_SECONDS
        for key in [key for key, kept in self._kept.items() if kept.state == "failed" and kept.used < past]:
            del self._kept[key]

    async def _start(self, kept: WarmEnvironment) -> None:
        pool = kept.pool = self._open(kept.environment, lambda reason: self._spoil(kept, reason))
        try:
            await pool.start()
        except (Busy, CannotStart, OSError, TimeoutError, SkilleryError) as error:
            self._spoil(kept, in_words(error))
            return
        if kept.state == "failed":
            return
        kept.start_seconds = time.monotonic() - kept.began
        kept.memory = pool.memory
        kept.used = time.monotonic()
        kept.state = "ready"
        log.info(
            "%s of %s are imported: %.1f MiB, %.1f s",
            kept.environment.modules,
            kept.environment.lock[:12],
            kept.memory / MEBIBYTE,
            kept.start_seconds,
        )
        self._look_again()

    # -- going ---------------------------------------------------------------------------------------------------

    def _spoil(self, kept: WarmEnvironment, reason: str) -> None:
        """Note that the environment cannot be kept imported, log the reason and end its process."""
        if kept.state == "failed" or self._closed:
            return
        kept.state, kept.message, kept.used = "failed", reason, time.monotonic()
        log.warning(
            "%s of %s cannot be kept imported, runs import for themselves: %s",
            kept.environment.modules,
            kept.environment.lock[:12],
            reason,
        )
        self._let_go(kept)

    def _dismiss(self, kept: WarmEnvironment) -> None:
        self._kept.pop(kept.environment.key, None)
        self._let_go(kept)

    def _let_go(self, kept: WarmEnvironment) -> None:
        pool, kept.pool = kept.pool, None
        if pool is not None:
            self._leaving += 1
            self._keep(self._leave(pool))

    async def _leave(self, pool: PreloadedPool) -> None:
        """Close the pool after its last run."""
        try:
            while pool.is_busy:  # noqa: ASYNC110 - rare, and no caller waits
                await asyncio.sleep(LEAVING_SECONDS)
            await pool.close()
        finally:
            self._leaving -= 1

    def _look_again(self) -> None:
        """Start a timer until the next environment may be idle."""
        if self._timer is not None:
            self._timer.cancel()
        ready = [kept for kept in self._kept.values() if kept.state == "ready"]
        if not ready or self._closed:
            self._timer = None
            return
        due = min(kept.used for kept in ready) + self._bounds.idle_seconds
        self._timer = asyncio.get_running_loop().call_later(max(0.01, due - time.monotonic()), self._let_idle_go)

    def _let_idle_go(self) -> None:
        past = time.monotonic() - self._bounds.idle_seconds
        for kept in [kept for kept in self._kept.values() if kept.state == "ready" and kept.used <= past]:
            if kept.pool is not None and kept.pool.is_busy:
                kept.used = time.monotonic()
            else:
                self._dismiss(kept)
        self._look_again()

    def _keep(self, doing: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all pools. Afterwards no process of them is left."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        pools: list[Pool] = [kept.pool for kept in self._kept.values() if kept.pool is not None]
        self._kept.clear()
        for pool in pools:
            await pool.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
