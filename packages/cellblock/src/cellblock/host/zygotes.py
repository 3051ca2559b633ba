"""The server's side of one zygote and its workshop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cellblock.host import plan as interpreter
from cellblock.host.cells import Cell, Demand, Ends
from cellblock.host.channel import encode_json
from cellblock.host.groups import ControlGroup
from cellblock.host.packets import Received
from cellblock.host.plan import tree_limits
from cellblock.host.unmounting import Unmounting
from cellblock.host.zygote_answers import CannotMount, ZygoteAnswers
from cellblock.inside.link import CROWDED, NUMBER, PID

HERE = interpreter.HERE
START = "import sys; sys.path.append('.'); from inside import zygote; zygote.main(*map(int, sys.argv[1:]))"
BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}
# Each arena of the C library reserves 64 MiB of address space, which counts towards RLIMIT_AS.
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}
SLOTS = 64
REMEMBERED = 32
PIECE_BYTES = 32 * 1024
SHARED_FROM_MB = 16
"""Runs with at least this memory start in the memory of the zygote: their set-up takes less than a megabyte."""


class Zygote:
    """A zygote. It forks runs until it has forked enough, is too old, or is lost."""

    def __init__(self, python: str, plan: dict[str, Any]) -> None:
        """Start the zygote from this thread, not from a worker thread: the zygote ends with the thread that started
        it.
        """
        self._plan = plan
        self._forks = ZygoteAnswers(wary=bool(plan.get("environment")))
        self._mounts = ZygoteAnswers()
        theirs = (self._forks.link.theirs.fileno(), self._mounts.link.theirs.fileno())
        numbers = [str(number) for number in (os.getpid(), *theirs)]
        try:
            self._process = subprocess.Popen(
                [python, "-I", "-S", "-B", "-c", START, *numbers],
                cwd=HERE,
                env=BASE_ENVIRONMENT | FEW_ARENAS,
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

    async def prepare(self) -> None:
        """Wait until the zygote and the workshop are ready. Raise CannotStart if one of them fails."""
        with contextlib.suppress(ConnectionError):  # the process has died, which wait_ready reports
            self._forks.link.send(json.dumps(self._plan).encode())
        await self._mounts.wait_ready()
        await self._forks.wait_ready()

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

        With network access, the cell has a net namespace that no other run ever uses. Raise ZygoteLost or OSError on
        failure.
        """
        self.served += 1
        ends = Ends()
        slot = self._free_slots.pop() if self._free_slots and demand.port is None else -1
        try:
            received = await self._order(demand, uid, slot, affinity, group, ends, ahead=ahead)
        except BaseException:
            ends.close()  # ends a cell that was made anyway; its slot is not reused
            raise
        [pidfd] = received.descriptors
        cell = Cell(self, demand, ends, pidfd=pidfd, uid=uid, slot=slot, group=group)
        self._add(cell)
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
            known = interpreter.parameters(limits, affinity, demand.port)
            if len(self._encoded) >= REMEMBERED:
                self._encoded.clear()
            self._encoded[demand, affinity] = known
        return known

    def _add(self, cell: Cell) -> None:
        self.cells.add(cell)
        cell.when_closed(self._forget)

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

    async def close(self) -> None:
        """End the zygote and the workshop. All cells of the zygote must have ended."""
        await self._mounts.close()  # before its parent, which reaps it
        if not self._gone.done():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait({self._gone})
        await self._forks.close()


def is_crowded(answer: Received) -> bool:
    """Return whether the zygote answered a request for a run with CROWDED."""
    return answer.raw[NUMBER.size :] == PID.pack(CROWDED)


def check_mounts(answer: Received) -> None:
    """Raise CannotMount if the workshop has answered that a mount failed."""
    if failed := answer.raw[NUMBER.size :].decode():
        raise CannotMount(failed)


def mount_order(uid: int, entries: list[bytes]) -> bytes:
    """Return a message for the workshop. The entries are JSON."""
    return b'{"uid": %d, "entries": [%b]}' % (uid, b",".join(entries))


def in_pieces(entries: list[dict[str, Any]]) -> list[list[bytes]]:
    """Return the entries in order as JSON, in groups of about PIECE_BYTES.

    An entry is always much smaller than a group.
    """
    pieces: list[list[bytes]] = []
    size = PIECE_BYTES
    for entry in entries:
        encoded = encode_json(entry)
        if size + len(encoded) > PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(encoded)
        size += len(encoded) + 1
    return pieces


def open_pidfd(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when the process ends. If none can be opened, kill the process."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise
