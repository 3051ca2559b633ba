"""One run from the server's side: take a place, hold the limits, listen, end it, say what became of it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec

from skillery.backends import Failure, Job, Log, Outcome, RunHost
from skillery.builtin.egress.handing import ENVIRONMENT as PROXY_ENVIRONMENT
from skillery.builtin.egress.handing import PORT as PROXY_PORT
from skillery.builtin.egress.service import Egress, EgressBroken, Session
from skillery.builtin.linux_sandbox import watchdog
from skillery.builtin.linux_sandbox.cells import Cell, Demand, Event
from skillery.builtin.linux_sandbox.groups import ControlGroups
from skillery.builtin.linux_sandbox.plan import cpu_seconds, given, shape
from skillery.builtin.linux_sandbox.pool import Pool
from skillery.builtin.linux_sandbox.zygotes import CannotMount, CannotStart, ZygoteLost
from skillery.builtin.python_runner.dialogue import BrokenSetup, Dialogue, Places, job_header
from skillery.builtin.python_runner.endings import ended_early, finish_whole
from skillery.builtin.python_runner.wire import Channel

SETUP_SECONDS = 20.0
ATTEMPTS = 4
LOG_SECONDS = 2.0
OOM_INTERVAL = 0.1


class Means(msgspec.Struct, frozen=True):
    """What this host has, found out once at start, and the places for runs in it."""

    root: bool
    groups: ControlGroups | None
    landlock: bool
    pool: Pool
    egress: Egress

    @property
    def memory_held(self) -> bool:
        return self.groups is not None and "memory" in self.groups.controllers

    @property
    def degraded(self) -> tuple[str, ...]:
        weaker = {"memory_tree": not self.memory_held, "landlock": not self.landlock}
        return tuple(name for name, is_weaker in weaker.items() if is_weaker)

    async def close(self) -> None:
        await self.pool.close()
        if self.groups is not None:
            self.groups.close()


class Run:
    """One job on its way. `live`, then `end` whatever happened, then `outcome`."""

    def __init__(self, means: Means, job: Job, host: RunHost) -> None:
        self._means = means
        self._job = job
        self._host = host
        self._demand = Demand(shape(job.limits), PROXY_PORT if job.network else None)
        self._way_out: Session | None = None
        self._cell: Cell | None = None
        self._dialogue: Dialogue | None = None
        self._stopped: Failure | None = None
        self._ended: Event | None = None
        self._duration = 0.0

    # -- set-up ------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Until the code has ended, or a limit has ended it."""
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                dialogue = await self._set_up()
        except (BrokenSetup, CannotStart, CannotMount, EgressBroken) as problem:
            self._stopped = Failure("SandboxError", str(problem))
        except TimeoutError:
            self._stopped = Failure("SandboxError", f"the sandbox was not ready after {SETUP_SECONDS:.0f} seconds")
        except OSError as error:
            self._stopped = not_started(error)
        else:
            await self._let_run(dialogue)

    async def _set_up(self) -> Dialogue:
        """Until the code could start. A place that is lost before that is nothing to the run: it takes another."""
        entries = given(self._job, root=self._means.root)
        for attempt in range(ATTEMPTS):
            try:
                dialogue = self._dialogue = await self._enter(entries)
            except ZygoteLost as lost:
                if attempt == ATTEMPTS - 1:
                    raise CannotStart(str(lost) or "one zygote after the other was lost") from None
                await self._leave()
            else:
                return dialogue
        raise AssertionError

    async def _enter(self, entries: list[dict[str, Any]]) -> Dialogue:
        cell = self._cell = await self._means.pool.take(self._demand)
        cell.log.keep(self._job.limits.log_kb * 1024)
        mounting = asyncio.ensure_future(cell.home.mount(cell, entries)) if entries else None
        try:
            channel = cell.channel or await self._open_channel(cell)
            return await self._hand_over(cell, channel, mounting)
        except (BrokenSetup, ConnectionError) as broken:
            said = await cell.event()
            if (isinstance(broken, BrokenSetup) and broken.explained) or (said is not None and said.message):
                raise BrokenSetup((said and said.message) or str(broken)) from None
            raise ZygoteLost(str(broken)) from None
        finally:
            if mounting is not None:
                mounting.cancel()

    async def _open_channel(self, cell: Cell) -> Channel:
        """Raises EgressBroken, ZygoteLost."""
        if self._job.network:  # then the first thing on it is for the proxy
            self._way_out = await self._means.egress.open_over(cell.bare_channel, self._job.network, cell.log.note)
        return await cell.open_channel()

    async def _hand_over(self, cell: Cell, channel: Channel, mounting: asyncio.Future[None] | None) -> Dialogue:
        """The place makes its job ready while its mounts are made. Raises BrokenSetup, CannotMount, ZygoteLost."""
        proxy = PROXY_ENVIRONMENT if self._job.network else {}
        header = job_header(self._job, {**proxy, **self._job.environment}, Places())
        await channel.send(header | {"cpu_seconds": cpu_seconds(self._job.limits)}, self._job.args)
        if mounting is not None:
            await mounting
        dialogue = Dialogue(channel, self._job, self._host)
        if not cell.is_ready:
            await dialogue.wait_ready()
        await dialogue.go()
        return dialogue

    async def _leave(self) -> None:
        cell, way_out, self._cell, self._way_out = self._cell, self._way_out, None, None
        if cell is not None:
            self._means.pool.drop(cell)
        if way_out is not None:
            await way_out.close()

    # -- while the code runs -----------------------------------------------------------------------------------

    async def _let_run(self, dialogue: Dialogue) -> None:
        timeout = self._job.limits.timeout_ms
        started = time.monotonic()
        listening = asyncio.ensure_future(self._listen(dialogue))
        guarding = asyncio.ensure_future(self._exceeds_memory())
        try:
            done, _ = await asyncio.wait(
                {listening, guarding}, timeout=timeout / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            self._duration = (time.monotonic() - started) * 1000
            if listening in done:
                listening.result()
            elif guarding in done:
                guarding.result()
                self._stopped = self._too_much_memory()
            else:
                self._stopped = Failure("TimeoutError", f"the run took longer than {timeout} ms")
        finally:
            await cancel(listening, guarding)

    async def _listen(self, dialogue: Dialogue) -> None:
        await dialogue.listen()
        if dialogue.result is None and dialogue.failure is None and self._cell is not None:
            # It closed the channel, or has ended. Only pid 1 knows which, and only the end counts.
            self._ended = await self._cell.event()

    async def _exceeds_memory(self) -> None:
        """Returns when the run has used more memory than it may."""
        if not self._means.memory_held and self._cell is not None:
            await watchdog.exceeds(self._cell.pid, self._job.limits.memory_mb << 20)
            return
        while self._oom_kills() == 0:  # noqa: ASYNC110 - it is the kernel that counts
            await asyncio.sleep(OOM_INTERVAL)

    def _oom_kills(self) -> int:
        return self._cell.group.oom_kills() if self._cell and self._cell.group else 0

    def _too_much_memory(self) -> Failure:
        limit = self._job.limits.memory_mb
        return Failure("MemoryLimitExceeded", f"the run and its processes used more than {limit} MiB of memory")

    # -- the end -----------------------------------------------------------------------------------------------

    async def end(self) -> Outcome:
        """Nothing of the run is left when this returns, however it began."""
        oom_killed, log = False, Log()
        if self._cell is not None:
            await self._cell.end()
            self._ended = self._ended or await self._cell.event()
            oom_killed = self._oom_kills() > 0
        network = await self._way_out.close() if self._way_out is not None else ()
        if self._cell is not None:
            log = await self._cell.log.finish(LOG_SECONDS)
            self._means.pool.drop(self._cell)
        dialogue = self._dialogue
        failure = self._failure(oom_killed=oom_killed)
        return Outcome(
            result=dialogue.result if dialogue and failure is None else None,
            failure=failure,
            summary=dialogue.summary if dialogue else None,
            log=log,
            duration_ms=self._duration,
            degraded=self._means.degraded,
            network=network,
        )

    def _failure(self, *, oom_killed: bool) -> Failure | None:
        if self._stopped is not None:
            return self._stopped
        if oom_killed:
            return self._too_much_memory()
        if self._dialogue is not None and self._dialogue.failure is not None:
            return self._dialogue.failure
        if self._dialogue is not None and self._dialogue.result is not None:
            return None
        if self._ended is None or self._ended.event != "ended":
            return Failure("SandboxError", "the sandbox was ended from outside")
        return ended_early(self._ended.status)


def not_started(error: OSError) -> Failure:
    return Failure("SandboxError", f"the sandbox could not be started: {os.strerror(error.errno or 0)}")


async def cancel(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_job(means: Means, job: Job, host: RunHost) -> Outcome:
    run = Run(means, job, host)
    try:
        await run.live()
    except BaseException:
        await finish_whole(run.end())
        raise
    return await finish_whole(run.end())
