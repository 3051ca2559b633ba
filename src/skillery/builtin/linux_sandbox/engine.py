"""One run on the server: take a cell, enforce limits, talk to the code, end the cell, return the outcome."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from cellblock.egress.listeners import ENVIRONMENT as PROXY_ENVIRONMENT
from cellblock.egress.listeners import PORT as PROXY_PORT
from cellblock.egress.service import Egress, EgressBroken, Session
from cellblock.host import watchdog
from cellblock.host.cells import Cell, Demand
from cellblock.host.channel import BrokenSetup, Channel
from cellblock.host.groups import ControlGroups
from cellblock.host.plan import cpu_seconds, mount_entries, shape
from cellblock.host.pool import Pool
from cellblock.host.sessions import run_whole
from cellblock.host.zygote_answers import CannotMount, CannotStart, ZygoteLost
from cellblock.values import Busy, Log, Used
from skillery.backends import Failure, FailureType, Job, Outcome, RunHost
from skillery.builtin.linux_sandbox.warm_environments import WarmEnvironments
from skillery.jobs.collecting import (
    Collection,
    collect,
    collecting_dialogue,
    collection_of,
    try_to_collect,
)
from skillery.jobs.dialogue import Dialogue
from skillery.jobs.filling import filling_seconds
from skillery.jobs.header import Places, job_header, mounts_of
from skillery.jobs.outcomes import RunSession, limits_of, sink_of

SETUP_SECONDS = 20.0
ATTEMPTS = 4
LOG_SECONDS = 2.0
OOM_INTERVAL = 0.1


class HostCapabilities(msgspec.Struct, frozen=True):
    """The capabilities of this host, determined at start, and the pools of cells."""

    root: bool
    groups: ControlGroups | None
    landlock: bool
    pool: Pool
    egress: Egress
    environments: WarmEnvironments | None = None
    """Pools of cells with preloaded packages. None if no packages are preloaded."""

    @property
    def memory_held(self) -> bool:
        return self.groups is not None and "memory" in self.groups.controllers

    @property
    def degraded(self) -> tuple[str, ...]:
        weaker = {"memory_tree": not self.memory_held, "landlock": not self.landlock}
        return tuple(name for name, is_weaker in weaker.items() if is_weaker)

    def pool_for(self, job: Job, attempt: int) -> Pool:
        """Return the pool for an attempt to run a job. Only the first attempt (0) may use preloaded packages."""
        warm = self.environments.pool_for(job) if self.environments is not None and attempt == 0 else None
        return warm or self.pool

    async def close(self) -> None:
        if self.environments is not None:
            await self.environments.close()
        await self.pool.close()
        if self.groups is not None:
            self.groups.close()


class CellRun:
    """One job in a cell. Call `live`, then always `end`, which returns the outcome."""

    def __init__(self, capabilities: HostCapabilities, job: Job, host: RunHost) -> None:
        self._capabilities = capabilities
        self._job = job
        self._host = host
        self._demand = Demand(shape(limits_of(job.limits)), PROXY_PORT if job.network else None)
        self._network: Session | None = None
        self._cell: Cell | None = None
        self._collector: Cell | None = None
        """The cell that collects the files after the end of `_cell`."""
        self._pool = capabilities.pool
        self._session = RunSession(job.limits)

    # -- set-up ------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run the job until the code has ended, or until a limit has ended the code."""
        seconds = SETUP_SECONDS + filling_seconds(self._job)
        try:
            async with asyncio.timeout(seconds):
                dialogue = await self._set_up()
        except (Busy, BrokenSetup, CannotStart, CannotMount, EgressBroken) as problem:
            if not self._oom_kills():  # else the outcome names the limit
                self._session.stopped = Failure(FailureType.SANDBOX_ERROR, str(problem))
        except TimeoutError:
            self._session.stopped = Failure(
                FailureType.SANDBOX_ERROR, f"the sandbox was not ready after {seconds:.0f} seconds"
            )
        except OSError as error:
            self._session.stopped = not_started(error)
        else:
            await self._session.follow(dialogue, self._end_of_code, self._exceeds_memory)

    async def _set_up(self) -> Dialogue:
        """Prepare a cell until the code can start. Return the dialogue with it.

        If a cell is lost before that, take another cell, at most ATTEMPTS cells in all. No code of the run has started
        then.
        """
        for attempt in range(ATTEMPTS):
            self._pool = self._capabilities.pool_for(self._job, attempt)
            try:
                dialogue = await self._enter(self._entries())
            except ZygoteLost as lost:
                if attempt == ATTEMPTS - 1:
                    raise CannotStart(str(lost) or "one zygote after the other was lost") from None
                await self._leave()
            else:
                return dialogue
        raise AssertionError

    def _entries(self) -> list[dict[str, Any]]:
        """Return the entries that the workshop mounts for the run.

        If the zygote has preloaded the only environment of the job, its packages are mounted already.
        """
        is_there = self._pool is not self._capabilities.pool and len(self._job.packages) == 1
        return mount_entries(mounts_of(self._job, packages=not is_there), root=self._capabilities.root)

    async def _enter(self, entries: list[dict[str, Any]]) -> Dialogue:
        cell = self._cell = await self._pool.take(self._demand)
        cell.log.keep(self._job.limits.log_kb * 1024, sink_of(self._host))
        mounting = asyncio.create_task(cell.home.mount(cell, entries)) if entries else None
        try:
            channel = cell.channel or await self._open_channel(cell)
            return await self._hand_over(cell, channel, mounting)
        except (BrokenSetup, ConnectionError) as broken:
            event = await cell.event()
            explained = (isinstance(broken, BrokenSetup) and broken.explained) or self._oom_kills()
            if explained or (event is not None and event.message):
                raise BrokenSetup((event and event.message) or str(broken)) from None
            raise ZygoteLost(str(broken)) from None
        finally:
            if mounting is not None:
                mounting.cancel()

    async def _open_channel(self, cell: Cell) -> Channel:
        """Open the channel to the cell, and let the proxy serve the run, if it may use the network.

        Raise EgressBroken if the proxy fails, BrokenSetup if the cell has ended.
        """
        if self._job.network:  # the first message is the listener for the proxy
            job, egress = self._job, self._capabilities.egress
            self._network = await egress.open_over(
                cell.bare_channel, job.network, cell.log.note, private=job.private_network, identity=job.identity
            )
        return await cell.open_channel()

    async def _hand_over(self, cell: Cell, channel: Channel, mounting: asyncio.Future[None] | None) -> Dialogue:
        """Send the job while its mounts are made. Raise BrokenSetup, CannotMount or ZygoteLost if a step fails."""
        proxy = PROXY_ENVIRONMENT if self._job.network else {}
        header = job_header(self._job, {**proxy, **self._job.environment}, Places())
        await channel.send(header | {"cpu_seconds": cpu_seconds(limits_of(self._job.limits))}, self._job.args)
        if mounting is not None:
            await mounting
        dialogue = Dialogue(channel, self._job, self._host)
        if not cell.is_ready:
            await dialogue.wait_ready()
        await dialogue.go()
        return dialogue

    async def _leave(self) -> None:
        cell, session, self._cell, self._network = self._cell, self._network, None, None
        if cell is not None:
            self._pool.drop(cell)
        if session is not None:
            await session.close()

    # -- while the code runs -----------------------------------------------------------------------------------

    async def _end_of_code(self) -> int | None:
        """Return the wait status of the code; None if it is unknown. Only pid 1 of the run can report it."""
        event = await self._cell.event() if self._cell is not None else None
        return event.status if event is not None and event.event == "ended" else None

    async def _exceeds_memory(self) -> None:
        """Return when the run has exceeded its memory limit."""
        if not self._capabilities.memory_held and self._cell is not None:
            await watchdog.exceeds(self._cell.pid, self._job.limits.memory_mb << 20)
            return
        while self._oom_kills() == 0:  # noqa: ASYNC110 - the kernel counts, without an event
            await asyncio.sleep(OOM_INTERVAL)

    def _oom_kills(self) -> int:
        return self._cell.group.oom_kills() if self._cell and self._cell.group else 0

    # -- the end -----------------------------------------------------------------------------------------------

    async def end(self) -> Outcome:
        """End the run and return its outcome. No process of the run is left.

        Its mounts, its files and the collecting process are removed in the background.
        """
        oom_killed, log, used = False, Log(), Used()
        if self._cell is not None:
            await self._cell.end()
            if self._session.status is None:
                self._session.status = await self._end_of_code()
            oom_killed, used = self._oom_kills() > 0, self._used(self._cell)
        network = await self._network.close() if self._network is not None else ()
        if self._cell is not None:
            log = await self._cell.log.finish(LOG_SECONDS)
            await self._collect(self._cell)
            self._pool.drop(self._cell, before=self._collector)
        return self._session.outcome(
            log=log, degraded=self._capabilities.degraded, oom_killed=oom_killed, network=network, used=used
        )

    def _used(self, cell: Cell) -> Used:
        if cell.group is None:
            return Used(disk_bytes=self._session.disk_bytes)
        peaks = cell.group.peaks()
        processes = peaks.get("pids")
        return Used(
            memory_bytes=peaks.get("memory"),
            processes=processes and max(1, processes - 1),  # without pid 1 of the run
            disk_bytes=self._session.disk_bytes,
        )

    async def _collect(self, cell: Cell) -> None:
        """Keep the files that the code could not keep itself, and save its workspace."""
        collection = collection_of(self._session, self._job)
        if collection is not None:
            await try_to_collect(self._collect_after(cell, collection), collection)

    async def _collect_after(self, cell: Cell, collection: Collection) -> None:
        """Collect in a new cell, which sees the workspace of the ended one."""
        fresh = self._collector = await self._pool.cell_after(cell)
        fresh.log.keep(self._job.limits.log_kb * 1024, sink_of(self._host))
        dialogue = collecting_dialogue(await fresh.open_channel(), collection, self._host)
        await dialogue.wait_ready()  # its own workspace is mounted then, and the other one covers it
        await cell.home.show_workspace(cell, fresh)
        await dialogue.begin(collection.header())
        await collect(dialogue)
        if collection.kept is not None:  # it may have written which files are lost
            await fresh.end()
            await fresh.log.finish(LOG_SECONDS)


def not_started(error: OSError) -> Failure:
    return Failure(FailureType.SANDBOX_ERROR, f"the sandbox could not be started: {os.strerror(error.errno or 0)}")


async def run_job(capabilities: HostCapabilities, job: Job, host: RunHost) -> Outcome:
    return await run_whole(CellRun(capabilities, job, host))
