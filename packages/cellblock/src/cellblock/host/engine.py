"""One run on the host: take a cell, enforce limits, talk to the code, end the cell, return the result."""

from __future__ import annotations

import asyncio
import compileall
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cellblock.egress.listeners import ENVIRONMENT as PROXY_ENVIRONMENT
from cellblock.egress.listeners import OWN_SERVERS, receive_listener
from cellblock.egress.listeners import PORT as PROXY_PORT
from cellblock.egress.service import Egress, EgressBroken, Session
from cellblock.filter import rules
from cellblock.filter.rules import Sockets
from cellblock.host import groups, watchdog
from cellblock.host.cells import Cell, Demand
from cellblock.host.channel import BrokenSetup, Channel
from cellblock.host.dialogue import Dialogue
from cellblock.host.groups import ControlGroups, HostLimits
from cellblock.host.logs import Sink
from cellblock.host.plan import INSIDE, RUNTIME, can_set_network, cpu_seconds, make_plan, shape
from cellblock.host.pool import Pool
from cellblock.host.sessions import RunSession
from cellblock.host.shares import Uids
from cellblock.host.sockets import SharedFolders, mounts_hold_socket
from cellblock.host.succession import Shared, Warmth
from cellblock.host.zygote_answers import CannotMount, CannotStart, ZygoteLost
from cellblock.inside import kernel
from cellblock.values import Busy, Failure, FailureKind, Limits, Log, Mount, Result, Template, Used

SETUP_SECONDS = 20.0
ATTEMPTS = 4
LOG_SECONDS = 2.0
OOM_INTERVAL = 0.1
SOCKET_BYTES = 64 << 10
"""The most bytes that a TCP socket of a run can hold, with the small buffers of its net namespace."""


@dataclass(frozen=True)
class Capabilities(HostLimits):
    """The capabilities of this host, determined at start, and the pool of cells."""

    root: bool
    loopback: bool
    """Whether programs may have servers on loopback."""
    folders: SharedFolders
    pool: Pool
    egress: Egress

    async def close(self) -> None:
        """Close the pool. Afterwards no process of it is left. The proxy may serve other pools."""
        try:
            await self.folders.close()
            await self.pool.close()
        finally:
            if self.groups is not None:
                self.groups.close()


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs from the sandbox."""

    limits: Limits
    network: tuple[str, ...] = ()
    private_network: bool = False
    identity: str = ""
    """The owner of the run. The proxy limits the look-ups of each owner."""
    sink: Sink | None = None
    """Takes the log. If it is None, the result has the log."""
    setup_seconds: float = SETUP_SECONDS
    is_program: bool = False
    """Whether the code is a program in a separate process, which may have servers on loopback."""


def look_around(template: Template, warmth: Warmth, uids: Uids, egress: Egress | None = None) -> Capabilities:
    """Return the capabilities of the host with a new pool, which the caller must close. No process starts yet."""
    control_groups, plan = find_plan(template)
    return Capabilities(
        root=plan["root"],
        loopback=can_set_network(),
        folders=SharedFolders(plan, template.packages),
        groups=control_groups,
        landlock=not plan["without_landlock"],
        pool=Pool(Shared(plan, uids, control_groups, warmth)),
        egress=egress or Egress(),
    )


def find_plan(template: Template) -> tuple[ControlGroups | None, dict[str, Any]]:
    """Return the cgroups of this process, which the caller must close, and the plan of its zygotes."""
    compile_ahead(INSIDE, RUNTIME, *((template.guest.folder,) if template.guest is not None else ()))
    control_groups = groups.find()
    held = control_groups is not None and "memory" in control_groups.controllers
    return control_groups, make_plan(
        root=os.geteuid() == 0,
        filters=rules.filters(platform.machine(), cgroups=held),
        cgroups=held,
        without_landlock=kernel.landlock_version() == 0,
        private=tuple(map(str, template.private)),
        points=template.points,
        guest=template.guest,
        node=template.node,
        pythons=template.pythons,
        names_in_etc=template.etc,
        programs=template.programs,
    )


def compile_ahead(*folders: Path) -> None:
    """Compile the programs that start with every run, if the installer has not.

    Do nothing if the compiled code is up to date, or if a folder is not writable; then runs are slower.
    """
    for folder in folders:
        compileall.compile_dir(folder, maxlevels=0, quiet=2)


class CellRun(ABC):
    """One job in a cell. Call `live`, then always `end`, which returns the result."""

    def __init__(self, capabilities: Capabilities, needs: Needs) -> None:
        self._capabilities = capabilities
        self._needs = needs
        self._demand = Demand(shape(needs.limits), PROXY_PORT if needs.network else None)
        self._network: Session | None = None
        self._cell: Cell | None = None
        self._next_cell: Cell | None = None
        """The cell that reads the files of `_cell` after its end."""
        self._pool = capabilities.pool
        self._session = RunSession(needs.limits)

    # -- what the job adds -------------------------------------------------------------------------------------

    def _pool_for(self, attempt: int) -> Pool:
        """Return the pool for an attempt to start the run, counted from 0."""
        return self._capabilities.pool

    @abstractmethod
    def _mounts(self) -> Sequence[Mount]:
        """Return the mounts of the job."""

    @abstractmethod
    def _entries(self) -> list[dict[str, Any]]:
        """Return the entries that the workshop mounts (`mount_entries`)."""

    @abstractmethod
    def _header(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """Return the description of the job for the process inside. `environment` has variables of the sandbox."""

    @abstractmethod
    def _args(self) -> bytes:
        """Return the arguments of the code as JSON."""

    @abstractmethod
    def _dialogue(self, channel: Channel) -> Dialogue: ...

    async def _after(self, cell: Cell) -> None:
        """Read the files of the ended cell in `_next_cell` (`Pool.cell_after`), if the job keeps files."""
        return

    # -- set-up ------------------------------------------------------------------------------------------------

    async def _sockets(self) -> Sockets:
        """Return the sockets of the run. A Python function has the channel to the owner, so it may have no server."""
        if not (self._needs.is_program and self._capabilities.loopback):
            return Sockets.CLIENTS if self._needs.network else Sockets.PAIRS
        if await self._capabilities.folders.hold_socket() or await mounts_hold_socket(self._mounts()):
            return Sockets.LOOPBACK
        return Sockets.LOOPBACK_AND_UNIX

    async def live(self) -> None:
        """Run the job until the code has ended, or until a limit has ended the code."""
        seconds = self._needs.setup_seconds
        try:
            async with asyncio.timeout(seconds):
                dialogue = await self._set_up()
        except (Busy, BrokenSetup, CannotStart, CannotMount, EgressBroken) as problem:
            if not self._oom_kills():  # else the result names the limit
                self._refuse(problem, str(problem))
        except TimeoutError as problem:
            self._refuse(problem, f"the sandbox was not ready after {seconds:.0f} seconds")
        except OSError as problem:
            self._refuse(problem, f"the sandbox could not be started: {os.strerror(problem.errno or 0)}")
        else:
            await self._session.follow(dialogue, self._end_of_code, self._exceeds_memory)

    def _refuse(self, problem: Exception, message: str) -> None:
        """Fail the run, whose code has not started. `problem` is the reason."""
        step = problem.step if isinstance(problem, StepFailed) else ""
        self._session.stopped = Failure(FailureKind.SANDBOX, message, step=step)

    async def _set_up(self) -> Dialogue:
        """Prepare a cell until the code can start. Return the dialogue with it.

        If a cell is lost before that, take another cell, at most ATTEMPTS cells in all. No code of the run has started
        then.
        """
        self._demand = replace(self._demand, sockets=await self._sockets())
        for attempt in range(ATTEMPTS):
            self._pool = self._pool_for(attempt)
            try:
                dialogue = await self._enter(self._entries())
            except ZygoteLost as lost:
                if attempt == ATTEMPTS - 1:
                    raise CannotStart(str(lost) or "one zygote after the other was lost") from None
                await self._leave()
            else:
                return dialogue
        raise AssertionError

    async def _enter(self, entries: list[dict[str, Any]]) -> Dialogue:
        cell = self._cell = await self._pool.take(self._demand)
        cell.log.keep(self._needs.limits.log_kb * 1024, self._needs.sink)
        mounting = asyncio.create_task(cell.home.mount(cell, entries)) if entries else None
        try:
            channel = cell.channel or await self._open_channel(cell)
            return await self._hand_over(cell, channel, mounting)
        except (BrokenSetup, ConnectionError) as broken:
            event = await cell.event()
            explained = (isinstance(broken, BrokenSetup) and broken.explained) or self._oom_kills()
            if event is not None and event.message:
                raise StepFailed(event.message) from None
            if explained:
                raise BrokenSetup(str(broken)) from None
            raise ZygoteLost(str(broken)) from None
        finally:
            if mounting is not None:
                mounting.cancel()

    async def _open_channel(self, cell: Cell) -> Channel:
        """Open the channel to the cell, and let the proxy serve the run, if it may use the network.

        Raise EgressBroken if the proxy fails, BrokenSetup if the cell has ended.
        """
        needs = self._needs
        if needs.network:  # the first message is the listener for the proxy
            listener = await receive_listener(cell.bare_channel)
            self._network = await self._capabilities.egress.open(
                needs.network, listener, cell.log.note, private=needs.private_network, identity=needs.identity
            )
        return await cell.open_channel()

    async def _hand_over(self, cell: Cell, channel: Channel, mounting: asyncio.Future[None] | None) -> Dialogue:
        """Send the job while its mounts are made. Raise BrokenSetup, CannotMount or ZygoteLost if a step fails."""
        own = OWN_SERVERS if self._demand.sockets >= Sockets.LOOPBACK else {}
        header = self._header({**PROXY_ENVIRONMENT, **own} if self._needs.network else {})
        await channel.send(header | {"cpu_seconds": cpu_seconds(self._needs.limits)}, self._args())
        if mounting is not None:
            await mounting
        dialogue = self._dialogue(channel)
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
        """Return the wait status of the code, or None if it is unknown. Only pid 1 of the run can report it."""
        event = await self._cell.event() if self._cell is not None else None
        return event.status if event is not None and event.event == "ended" else None

    async def _exceeds_memory(self) -> str | None:
        """Return when the run has exceeded its memory limit: the message, or None for the usual one."""
        assert self._cell is not None
        memory_mb, serves = self._needs.limits.memory_mb, self._demand.sockets >= Sockets.LOOPBACK
        if not self._capabilities.memory_held:
            await watchdog.exceeds(self._cell.pid, memory_mb << 20)
            return None
        while self._oom_kills() == 0:
            # A cgroup of version 1 does not count the memory of TCP sockets, so their number is limited.
            if serves and watchdog.tcp_sockets(self._cell.pid) * SOCKET_BYTES > memory_mb << 18:
                most = f"{memory_mb / 4:g} MiB, a quarter of its memory"
                return f"the open sockets of the run can hold more than {most}"
            await asyncio.sleep(OOM_INTERVAL)
        return None

    def _oom_kills(self) -> int:
        return self._cell.group.oom_kills() if self._cell and self._cell.group else 0

    # -- the end -----------------------------------------------------------------------------------------------

    async def end(self) -> Result:
        """End the run and return its result. No process of the run is left.

        Its mounts and files, and the cell of `_after`, are removed in the background.
        """
        oom_killed, log, used = False, Log(), Used()
        try:
            if self._cell is not None:
                await self._cell.end()
                if self._session.status is None:
                    self._session.status = await self._end_of_code()
                oom_killed, used = self._oom_kills() > 0, self._used(self._cell)
            network = await self._network.close() if self._network is not None else ()
            if self._cell is not None:
                log = await self._cell.log.finish(LOG_SECONDS)
                await self._after(self._cell)
        finally:  # the sink of the log may raise an error
            if self._cell is not None:
                self._pool.drop(self._cell, before=self._next_cell)
        return self._session.result(
            log=log, degraded=self._capabilities.degraded, oom_killed=oom_killed, network=network, used=used
        )

    def _used(self, cell: Cell) -> Used:
        used = Used(disk_bytes=self._session.disk_bytes)
        if cell.group is None:
            return used
        peaks = cell.group.peaks()
        processes = peaks.get("pids")  # without pid 1 of the run
        return replace(used, memory_bytes=peaks.get("memory"), processes=processes and max(1, processes - 1))


class StepFailed(BrokenSetup):
    """Raised if a step of the set-up of a cell has failed. The message is `STEP: REASON`."""

    @property
    def step(self) -> str:
        return str(self).rpartition(": ")[0]
