"""The server's side of a zygote that has imported the packages of an environment. Its messages are untrusted.

Such a zygote has a separate pid namespace. It also has a separate cgroup and host uid, if the host and the rights of
the server allow that. The kernel, not the zygote, tells the server the pid, the pidfd and the mount namespace of a run.
The server never accepts descriptors from the zygote.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellblock.filter import rules
from cellblock.host import watchdog
from cellblock.host.cells import Cell, Demand, Ends
from cellblock.host.groups import ControlGroup
from cellblock.host.plan import MEBIBYTE, look
from cellblock.host.processes import children, parent_of, start_time
from cellblock.host.zygote_answers import ANSWER_SECONDS, CannotStart, ZygoteLost
from cellblock.host.zygotes import Zygote, is_crowded

PROCESSES = 32
"""Most processes of a zygote and its keeper, without its runs."""
MOST_PROCESSES = 256
"""Most processes of a zygote and its runs if no cgroup counts them. The kernel enforces it; a watchdog would be too
late.
"""
LOOK_SECONDS, LATER_SECONDS = 0.1, 1.0
"""Seconds between two checks of the zygote's memory if no cgroup limits it: during the import, and afterwards."""
GENERATIONS = 8
END_SECONDS = 5.0
FORKING = ("mount", "unshare", "setns", "clone", "sched_setaffinity")
"""System calls that a zygote needs to fork a run, and that the run itself must not make."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The modules that a zygote imports, and the folder of their packages."""

    lock: str
    folder: str
    preload: tuple[str, ...]

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """The key of the environment. It contains the folder, because a rebuild of the same lock has another folder."""
        return self.folder, self.preload

    @property
    def modules(self) -> str:
        return ", ".join(self.preload)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of zygotes with preloaded packages."""

    most: int = 4
    memory_mb: int = 1024
    preload_seconds: float = 60.0
    idle_seconds: float = 600.0


class Crowded(ZygoteLost):
    """Raised if a zygote runs, but may not create a process for another run."""


class PreloadedZygote(Zygote):
    """A zygote with preloaded packages. `uid` is its host uid; None if the server is an ordinary user."""

    def __init__(
        self,
        python: str,
        plan: dict[str, Any],
        environment: Environment,
        bounds: Bounds,
        uid: int | None,
        group: ControlGroup | None,
    ) -> None:
        self.environment = environment
        self.group = group
        self.uid = uid
        self._bounds = bounds
        self._held = plan["cgroups"] and group is not None
        self._reason = ""
        self._inner: tuple[int, str | None] = (0, None)
        super().__init__(python, plan | environment_plan(plan, environment, bounds, uid, group))
        self._guarding = None if self._held else asyncio.ensure_future(self._guard())

    async def prepare(self) -> None:
        """Start the zygote and let it import the modules. Raise CannotStart with the reason if that fails."""
        with contextlib.suppress(ConnectionError), contextlib.ExitStack() as opened:
            group_files = opened.enter_context(self.group.group_files()) if self.group else []
            self._forks.link.send(json.dumps(self._plan).encode(), group_files)
        await self._mounts.wait_ready()
        try:
            pid = await self._forks.wait_ready(self._bounds.preload_seconds)
        except CannotStart as error:
            raise CannotStart(self._why(str(error))) from None
        self._inner = (pid, start_time(pid))
        if not self._is_within(pid):
            raise CannotStart(f"the process that imported {self.environment.modules} ended")
        self.base_bytes = watchdog.fields(Path(f"/proc/{pid}/status"), ("VmSize",))

    def _is_within(self, pid: int) -> bool:
        """Return whether the process is a descendant of the zygote. Another process may have got the pid since."""
        with contextlib.suppress(OSError):
            for _ in range(GENERATIONS):
                pid = parent_of(pid)
                if pid == self.pid:
                    return True
        return False

    def _why(self, reason: str) -> str:
        if self._reason:
            return self._reason
        if self.group is not None and self.group.oom_kills():
            return self._too_much()
        if reason.startswith("the sandbox was not ready"):
            return f"importing {self.environment.modules} took longer than {self._bounds.preload_seconds:g} seconds"
        if reason.startswith("the sandbox ended"):
            return f"the process that imported {self.environment.modules} ended"
        return reason

    def _too_much(self) -> str:
        return f"importing {self.environment.modules} took more than {self._bounds.memory_mb} MiB of memory"

    @property
    def memory(self) -> int:
        """Return the memory of the zygote in bytes. Its runs share this memory."""
        return watchdog.rough_memory(self._inner[0]) if self._inner[0] else 0

    # -- runs ----------------------------------------------------------------------------------------------------

    async def cell(
        self, demand: Demand, uid: int, affinity: list[int], group: ControlGroup | None, *, ahead: bool
    ) -> Cell:
        """Return a new cell, as `Zygote.cell` does."""
        self.served += 1
        ends = Ends(wary=True)
        slot = self._free_slots.pop() if self._free_slots else -1
        try:
            answer = await self._order(demand, uid, slot, affinity, group, ends, ahead=ahead)
            if is_crowded(answer):
                if slot >= 0:
                    self._free_slots.append(slot)  # no run was forked into it
                raise Crowded
            pid, pidfd, mounts = await self._meet(ends)
        except BaseException:
            ends.close()
            raise
        cell = Cell(self, demand, ends, pidfd=pidfd, uid=uid, slot=slot, group=group, pid=pid, mounts=mounts)
        self._add(cell)
        return cell

    async def _meet(self, ends: Ends) -> tuple[int, int, int]:
        """Receive the first message of a run's pid 1, and let the process continue. Raise ZygoteLost if none arrives.

        Return the pid, and descriptors of the process and of its mount namespace.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                greeting = await ends.control.receive()
            if greeting is None or greeting.pid <= 0:
                raise ZygoteLost
            known = self._descriptors(greeting.pid)
        except (TimeoutError, OSError, ZygoteLost):
            raise self._lose() from None
        try:
            ends.control.send(b"g")
        except OSError:
            for descriptor in known:
                os.close(descriptor)
            raise self._lose() from None
        return greeting.pid, *known

    def _descriptors(self, pid: int) -> tuple[int, int]:
        """Return a descriptor of the process, and one of its mount namespace.

        A pid is reliable only while a descriptor holds it, so the parent of the process is checked after the descriptor
        was opened. Raise OSError or ZygoteLost if the process is not a child of the zygote.
        """
        pidfd = os.pidfd_open(pid)
        try:
            parent = parent_of(pid)
            mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(pidfd)
            raise
        try:
            if (parent, start_time(parent)) != self._inner:
                raise ZygoteLost
            signal.pidfd_send_signal(pidfd, 0)  # still the same process
        except BaseException:
            os.close(pidfd)
            os.close(mounts)
            raise
        return pidfd, mounts

    def _lose(self) -> ZygoteLost:
        self._forks.lose()
        return ZygoteLost("the process that had imported its packages is lost")

    # -- without a cgroup ----------------------------------------------------------------------------------------

    async def _guard(self) -> None:
        while not self._gone.done():
            held, processes = await asyncio.to_thread(self._look)
            if held > self._bounds.memory_mb * MEBIBYTE or processes > PROCESSES:
                self._reason = self._too_much() if processes <= PROCESSES else "the import started too many processes"
                self._forks.lose()
            await asyncio.wait({self._gone}, timeout=LATER_SECONDS if self._inner[0] else LOOK_SECONDS)

    def _look(self) -> tuple[int, int]:
        """Return the memory in bytes and the number of the zygote's processes, without its runs."""
        runs = {cell.pid for cell in tuple(self.cells)}
        left = [pid for pid in children(self.pid) if pid not in runs]
        held = processes = 0
        while left and processes <= PROCESSES:
            pid = left.pop()
            held += watchdog.memory_of(pid, watchdog.rough_memory)
            processes += 1
            left += [child for child in children(pid) if child not in runs]
        return held, processes

    # -- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the zygote, and wait until all of its processes have ended.

        The child process of the server waits for the keeper, which is pid 1 of the zygote's pid namespace. When the
        keeper ends, the kernel kills all other processes in that namespace.
        """
        await self._mounts.close()
        self._forks.lose()
        await asyncio.wait({self._gone}, timeout=END_SECONDS)
        if not self._gone.done():  # the process was stopped; its keeper dies with it
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait({self._gone})
        await self._forks.close()
        if self._guarding is not None:
            await self._guarding
        if self.group is not None:
            await self.group.remove()


def environment_plan(
    plan: dict[str, Any], environment: Environment, bounds: Bounds, uid: int | None, group: ControlGroup | None
) -> dict[str, Any]:
    """Return the part of the plan that describes an environment.

    The zygote has a separate filter, so its runs load the whole filter.
    """
    source, is_open, _ = look(environment.folder)
    machine, cgroups = platform.machine(), plan["cgroups"]
    program = rules.program(machine, cgroups=cgroups, also=FORKING)
    own = {
        "lock": environment.lock,
        "folder": source,
        "closed": uid is not None and not is_open,
        "preload": list(environment.preload),
        "uid": uid,
        "address_bytes": 0 if cgroups else (bounds.memory_mb + 1024) * MEBIBYTE,
        "processes": 0 if group is not None and group.counts_processes else MOST_PROCESSES,
        "filter": program.hex(),
    }
    usual, wider = (rules.program(machine, cgroups=cgroups, network=network).hex() for network in (False, True))
    return {"environment": own, "filter": usual, "network_filter": wider}
