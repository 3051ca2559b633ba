"""The server's side of one zygote and its workshop.

A zygote that has imported foreign modules is untrusted, and so are its messages. It has a separate pid namespace, and a
separate cgroup and host uid, if the host and the rights of the server allow that. The kernel, not the zygote, tells the
server the pid, the pidfd and the mount namespace of a run. The server accepts no descriptors from such a zygote.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cellblock.filter.rules import Sockets
from cellblock.host import plan as interpreter
from cellblock.host import watchdog
from cellblock.host.cells import Cell, Demand, Ends
from cellblock.host.groups import ControlGroup
from cellblock.host.packets import Received
from cellblock.host.plan import ENVIRONMENT, MEBIBYTE, Preload, preload_plan, tree_limits
from cellblock.host.processes import children, is_descendant, open_child, open_pidfd, start_time
from cellblock.host.unmounting import Unmounting
from cellblock.host.zygote_answers import (
    ANSWER_SECONDS,
    CannotStart,
    Crowded,
    ZygoteAnswers,
    ZygoteLost,
    check_mounts,
    in_pieces,
    is_crowded,
    mount_order,
)

HERE = interpreter.HERE
START = "import sys; sys.path.append('.'); from inside import zygote; zygote.main(*map(int, sys.argv[1:]))"
# Each arena of the C library reserves 64 MiB of address space, which counts towards RLIMIT_AS.
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}
SLOTS, REMEMBERED = 64, 32
SHARED_FROM_MB = 16
"""Least memory of runs whose pid 1 borrows the memory of the zygote (vfork). Their set-up takes below a megabyte."""
OWN_PROCESSES = 32
"""Most processes of an untrusted zygote and its keeper, without its runs."""
LOOK_SECONDS, LATER_SECONDS = 0.1, 1.0
"""Seconds between two checks of an untrusted zygote without a cgroup: during the import, and afterwards."""
END_SECONDS = 5.0


class Zygote:
    """A zygote. It forks runs until it has forked enough, is too old, or is lost. With `preload`, it is untrusted."""

    def __init__(
        self,
        python: str,
        plan: dict[str, Any],
        preload: Preload | None = None,
        uid: int | None = None,
        group: ControlGroup | None = None,
    ) -> None:
        """Start the zygote from this thread, not from a worker thread: it ends with the thread that started it.

        `uid` is the host uid of an untrusted zygote and its runs, or None if the server is an ordinary user. `group` is
        its cgroup, which ends with it.
        """
        self._preload = preload
        self.uid = uid
        self.group = group
        if preload:
            counts = group is not None and group.counts_processes
            plan = preload_plan(plan, preload, uid, counts_processes=counts)
        self._plan = plan
        self._forks = ZygoteAnswers(wary=not self.trusted)
        self._mounts = ZygoteAnswers()
        theirs = (self._forks.link.theirs.fileno(), self._mounts.link.theirs.fileno())
        numbers = [str(number) for number in (os.getpid(), *theirs)]
        try:
            self._process = subprocess.Popen(
                [python, "-I", "-S", "-B", "-c", START, *numbers],
                cwd=HERE,
                env=ENVIRONMENT | plan.get("variables", {}) | FEW_ARENAS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=theirs,
                process_group=0,  # Ctrl-C must reach only the server, which ends its runs in order
            )
            self._pidfd = open_pidfd(self._process)
        except BaseException:
            self._forks.link.close()
            self._mounts.link.close()
            raise
        self._forks.link.theirs.close()
        self._mounts.link.theirs.close()
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)
        # The lowest number is taken first: the zygote makes all net namespaces up to the one that a run gets.
        self._free_slots = list(reversed(range(SLOTS)))
        self.cells: set[Cell] = set()
        self.unmounting = Unmounting()
        self.forking = 0
        """Number of runs that are being forked and are not in `cells` yet."""
        self.served = 0
        self.base_bytes = 0
        """Address space that each run inherits, beyond that of a bare interpreter."""
        self._encoded: dict[tuple[Demand, tuple[int, ...]], bytes] = {}
        self.started = time.monotonic()
        self.retired = False
        self._reason = ""
        self._inner: tuple[int, str | None] = (0, None)
        """The process that forks runs of an untrusted zygote, and its start. Pid 0: the import is not over."""
        self._guarding: asyncio.Future[None] | None = None
        if preload and not (plan["cgroups"] and group is not None):
            self._guarding = asyncio.ensure_future(self._guard(preload))

    @property
    def trusted(self) -> bool:
        """Whether the zygote has executed only the code of this package. It decides at four points: the descriptors of
        answers, the greeting of runs, the cgroups that are kept (`Pool`), and whether runs have different uids.
        """
        return self._preload is None

    async def prepare(self) -> None:
        """Wait until the zygote and the workshop are ready, and the modules are imported. Raise CannotStart with the
        reason if one of them fails.
        """
        # A process that has died is reported by wait_ready.
        with contextlib.suppress(ConnectionError), contextlib.ExitStack() as opened:
            group_files = opened.enter_context(self.group.group_files()) if self.group else []
            self._forks.link.send(json.dumps(self._plan).encode(), group_files)
        try:
            await self._mounts.wait_ready()
        except CannotStart:
            # The workshop ends with the zygote, perhaps before it was ready. Then the zygote has sent the reason.
            await self._wait_for_forks()
            raise
        await self._wait_for_forks()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def in_use(self) -> bool:
        """Whether a run of this zygote exists or is being forked. Closing the zygote would kill the run."""
        return bool(self.cells) or self.forking > 0

    def lose(self) -> None:
        """Mark the zygote as lost, so that no caller waits for it."""
        self._forks.lose()

    @property
    def lost(self) -> bool:
        return self._forks.lost or self._mounts.lost

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._forks.lose()
        self._gone.set_result(None)

    async def cell(
        self, demand: Demand, uid: int, affinity: list[int], group: ControlGroup | None, *, ahead: bool
    ) -> Cell:
        """Return a new cell, whose set-up may still go on. Its processes join the cgroup first.

        If the run may open sockets, the cell has a net namespace that no other run ever uses. Raise ZygoteLost or
        OSError on failure.
        """
        self.served += 1
        ends = Ends(wary=not self.trusted)
        slot = self._free_slots.pop() if self._free_slots and demand.sockets is Sockets.PAIRS else -1
        pid, mounts = 0, -1
        try:
            answer = await self._order(demand, uid, slot, affinity, group, ends, ahead=ahead)
            if self.trusted:
                [pidfd] = answer.descriptors
            elif is_crowded(answer):
                raise Crowded
            else:
                pid, pidfd, mounts = await self._meet(ends)
        except BaseException:
            ends.close()  # ends a cell that was made anyway, before it gets code: another run may have its slot
            if slot >= 0:
                self._free_slots.append(slot)
            raise
        cell = Cell(self, demand, ends, pidfd=pidfd, uid=uid, slot=slot, group=group, pid=pid, mounts=mounts)
        self.cells.add(cell)
        cell.when_closed(self._forget)
        if self.trusted:
            await cell.see_mounts()
        return cell

    async def _order(
        self,
        demand: Demand,
        uid: int,
        slot: int,
        affinity: list[int],
        group: ControlGroup | None,
        ends: Ends,
        *,
        ahead: bool,
    ) -> Received:
        group_files: AbstractContextManager[list[int]] = group.group_files() if group else nullcontext([])
        known = self._parameters(demand, tuple(affinity))
        with group_files as opened:
            shares = demand.limits.memory_mb >= SHARED_FROM_MB
            order = interpreter.order(uid, slot, known, ahead=ahead, shares_memory=shares)
            received = await self._forks.ask([order], (*ends.theirs, *opened), number_at=interpreter.NUMBER_AT)
        ends.handed_over()
        return received

    def _parameters(self, demand: Demand, affinity: tuple[int, ...]) -> bytes:
        """Return the parameters of a run as a part of its order. Most runs have the same ones."""
        known = self._encoded.get((demand, affinity))
        if known is None:
            limits = tree_limits(demand.limits, cgroups=self._plan["cgroups"], base=self.base_bytes)
            known = interpreter.parameters(limits, affinity, demand.port, demand.sockets)
            if len(self._encoded) >= REMEMBERED:
                self._encoded.clear()
            self._encoded[demand, affinity] = known
        return known

    def _forget(self, cell: Cell) -> None:
        self.cells.discard(cell)
        if cell.slot >= 0:
            self._free_slots.append(cell.slot)

    async def mount(self, cell: Cell, entries: list[dict[str, Any]]) -> None:
        """Mount the entries for a cell. Raise ZygoteLost if the workshop has died, CannotMount if a mount fails.

        Nothing is mounted if the cell ended before it had mounts.
        """
        if cell.mounts < 0:
            return
        messages = [mount_order(cell.uid, piece) for piece in in_pieces(entries)]
        check_mounts(await self._mounts.ask(messages, (cell.mounts,)))

    async def show_workspace(self, of: Cell, to: Cell) -> None:
        """Mount the workspace of the cell `of` over the workspace of the cell `to`. Raise the errors of `mount`."""
        check_mounts(await self._mounts.ask([mount_order(to.uid, [])], (of.mounts, to.mounts)))

    # -- an untrusted zygote -------------------------------------------------------------------------------------

    async def _wait_for_forks(self) -> None:
        if (preload := self._preload) is None:
            await self._forks.wait_ready()
            return
        try:
            pid = await self._forks.wait_ready(preload.seconds)
        except CannotStart as error:
            raise CannotStart(self._why(preload, str(error))) from None
        self._inner = (pid, start_time(pid))
        if not is_descendant(pid, self.pid):
            raise CannotStart(f"the process that imported {preload.words} ended")
        self.base_bytes = watchdog.fields(Path(f"/proc/{pid}/status"), ("VmSize",))

    def _why(self, preload: Preload, reason: str) -> str:
        if self._reason:
            return self._reason
        if self.group is not None and self.group.oom_kills():
            return too_much(preload)
        if reason.startswith("the sandbox was not ready"):
            return f"importing {preload.words} took longer than {preload.seconds:g} seconds"
        if reason.startswith("the sandbox ended"):
            return f"the process that imported {preload.words} ended"
        return reason

    @property
    def memory(self) -> int:
        """The memory of an untrusted zygote in bytes. Its runs share this memory."""
        return watchdog.rough_memory(self._inner[0]) if self._inner[0] else 0

    async def _meet(self, ends: Ends) -> tuple[int, int, int]:
        """Receive the first message of a run's pid 1, and let the process continue. Raise ZygoteLost if none arrives.

        Return the pid, and descriptors of the process and of its mount namespace.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                greeting = await ends.control.receive()
            if greeting is None or greeting.pid <= 0:
                raise ZygoteLost
            known = open_child(greeting.pid, self._inner)
        except (TimeoutError, OSError, ZygoteLost):
            raise self._lose() from None
        try:
            ends.control.send(b"g")
        except OSError:
            for descriptor in known:
                os.close(descriptor)
            raise self._lose() from None
        return greeting.pid, *known

    def _lose(self) -> ZygoteLost:
        self._forks.lose()
        return ZygoteLost("the process that had imported its packages is lost")

    async def _guard(self, preload: Preload) -> None:
        """Lose the zygote if it has too much memory or too many processes, because no cgroup limits them."""
        while not self._gone.done():
            held, processes = await asyncio.to_thread(self._look)
            if held > preload.memory_mb * MEBIBYTE or processes > OWN_PROCESSES:
                crowded = processes > OWN_PROCESSES
                self._reason = "the import started too many processes" if crowded else too_much(preload)
                self._forks.lose()
            await asyncio.wait({self._gone}, timeout=LATER_SECONDS if self._inner[0] else LOOK_SECONDS)

    def _look(self) -> tuple[int, int]:
        """Return the memory in bytes and the number of the zygote's processes, without its runs."""
        runs = {cell.pid for cell in tuple(self.cells)}
        left = [pid for pid in children(self.pid) if pid not in runs]
        held = processes = 0
        while left and processes <= OWN_PROCESSES:
            pid = left.pop()
            held += watchdog.memory_of(pid, watchdog.rough_memory)
            processes += 1
            left += [child for child in children(pid) if child not in runs]
        return held, processes

    async def close(self) -> None:
        """End the zygote and the workshop, and wait until all of their processes have ended. All cells must have ended.

        The child process of the server waits for the keeper of an untrusted zygote, which is pid 1 of its pid
        namespace. When the keeper ends, the kernel kills all other processes in that namespace.
        """
        await self._mounts.close()  # before its parent, which reaps it
        if not self.trusted:
            self._forks.lose()
            await asyncio.wait({self._gone}, timeout=END_SECONDS)
        if not self._gone.done():  # an untrusted one was stopped; its keeper dies with it
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait({self._gone})
        await self._forks.close()
        if self._guarding is not None:
            await self._guarding
        if self.group is not None:
            await self.group.remove()


def too_much(preload: Preload) -> str:
    return f"importing {preload.words} took more than {preload.memory_mb} MiB of memory"
