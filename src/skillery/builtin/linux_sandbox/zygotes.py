"""The server's side of one zygote and its workshop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from skillery.builtin.linux_sandbox.cells import Cell, Demand, Ends, said
from skillery.builtin.linux_sandbox.links import Packets, Received
from skillery.sandboxing.linux import interpreter
from skillery.sandboxing.linux.groups import ControlGroup
from skillery.sandboxing.linux.plan import tree_limits

HERE = interpreter.HERE
START = "import sys; sys.path.append('.'); from cell import zygote; zygote.main(*map(int, sys.argv[1:]))"
BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}
START_SECONDS = 20.0
ANSWER_SECONDS = 2.0
SEND_SECONDS = 20.0
CLOSE_SECONDS = 0.5
SLOTS = 64
PIECE_BYTES = 32 * 1024


class ZygoteLost(Exception):
    """Raised if the zygote has died or does not answer. No run was started; another zygote can serve it."""


class CannotStart(Exception):
    """Raised if the host does not allow the set-up. The message says what failed."""


class CannotMount(Exception):
    """Raised if a file for the run is missing. The message contains no path of the host."""


class Answers:
    """Requests over one socket, each answered by its number. A silent process counts as dead."""

    def __init__(self, *, wary: bool = False) -> None:
        """`wary` means that the other process is untrusted. If it sends an unrequested message, the link is closed."""
        self._wary = wary
        self.link = Packets(wary=wary)
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Received]] = {}
        self._listening: asyncio.Task[None] | None = None
        self.lost = False
        self._answered = 0

    async def wait_ready(self, seconds: float = START_SECONDS) -> int:
        """Wait for the first message. Return the pid of its sender, which only a wary link knows. Raise CannotStart."""
        try:
            async with asyncio.timeout(seconds):
                first = await self.link.receive()
        except TimeoutError:
            raise CannotStart(f"the sandbox was not ready after {seconds:.0f} seconds") from None
        if first is None or "ready" not in first.content:
            raise CannotStart(
                said(str(first.content.get("message", ""))) if first else "the sandbox ended while it was being set up"
            )
        self._listening = asyncio.ensure_future(self._listen())
        return first.pid

    async def _listen(self) -> None:
        while (received := await self.link.receive()) is not None:
            self._answered += 1
            number = received.content.get("number", -1)
            asked = self._asked.pop(number, None) if isinstance(number, int) else None
            if asked is None and self._wary:
                break
            if asked is None or asked.done():
                received.close()
            else:
                asked.set_result(received)
        self.lose()

    def lose(self) -> None:
        self.lost = True
        if self._wary:
            self.link.hang_up()  # then its keeper ends it
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ZygoteLost())
        self._asked.clear()

    async def ask(self, messages: list[dict[str, Any]], descriptors: tuple[int, ...] = ()) -> Received:
        """Send a request as one or more messages, the last with the descriptors, and return the answer.

        Raise ZygoteLost.
        """
        if self.lost:
            raise ZygoteLost
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        whole = False
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self.link.send_whole([{**message, "number": number} for message in messages], descriptors)
            whole = True
            received = await self._answer(asked)
        except (TimeoutError, OSError):
            self._asked.pop(number, None)
            close_answer(asked)
            self.lose()
            raise ZygoteLost from None
        except asyncio.CancelledError:
            close_answer(asked)
            if not whole:
                self.lose()  # the rest of a request must not be read as the next one
            raise
        if received.cut:
            received.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return received

    async def _answer(self, asked: asyncio.Future[Received]) -> Received:
        """Return the answer. Raise TimeoutError if the process answers no request at all for ANSWER_SECONDS.

        The process handles requests one after another, so answers to other requests show that it works.
        """
        while True:
            before = self._answered
            await asyncio.wait({asked}, timeout=ANSWER_SECONDS)
            if asked.done():
                return asked.result()
            if self._answered == before:
                raise TimeoutError

    async def close(self) -> None:
        """Close the connection, after a short time for the other side to end."""
        if self._listening is not None:
            self.link.say_no_more()
            await asyncio.wait({self._listening}, timeout=CLOSE_SECONDS)
        self.link.close()
        if self._listening is not None:
            await self._listening


def close_answer(asked: asyncio.Future[Received]) -> None:
    """Close an answer that arrived when its caller was cancelled."""
    if asked.done() and not asked.cancelled() and asked.exception() is None:
        asked.result().close()


class Zygote:
    """Forks runs until it has served enough, is too old, or is lost."""

    def __init__(self, python: str, plan: dict[str, Any]) -> None:
        """Start the process from this thread, not from a worker: the zygote dies with the thread that forked it."""
        self._plan = plan
        self._forks = Answers(wary=bool(plan.get("environment")))
        self._mounts = Answers()
        theirs = (self._forks.link.theirs.fileno(), self._mounts.link.theirs.fileno())
        numbers = [str(number) for number in (os.getpid(), *theirs)]
        try:
            self._process = subprocess.Popen(
                [python, "-I", "-S", "-B", "-c", START, *numbers],
                cwd=HERE,
                env=BASE_ENVIRONMENT,
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
        self._free_slots = list(range(SLOTS))
        self.cells: set[Cell] = set()
        self.forking = 0
        """Number of runs that are being forked and are not in `cells` yet."""
        self.served = 0
        self.base_bytes = 0
        """Address space that each run inherits, beyond that of a bare interpreter."""
        self.started = time.monotonic()
        self.retired = False

    async def prepare(self) -> None:
        """Wait until the zygote and the workshop are ready. Raise CannotStart."""
        with contextlib.suppress(ConnectionError):  # the process has died, which wait_ready reports
            self._forks.link.send(self._plan)
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
        """Return a new cell, which is still being prepared and first joins the group.

        With network access it has a net namespace that no other run ever uses. Raise ZygoteLost, OSError.
        """
        self.served += 1
        ends = Ends()
        slot = self._free_slots.pop() if self._free_slots and demand.port is None else -1
        try:
            received = await self._order(demand, uid, slot, affinity, group, ends, ahead=ahead)
        except BaseException:
            ends.close()  # ends a cell that was made anyway; its slot is not reused
            raise
        pidfd, mounts = received.descriptors
        pid = received.content["pid"]
        cell = Cell(self, demand, ends, pid=pid, pidfd=pidfd, mounts=mounts, uid=uid, slot=slot, group=group)
        self._add(cell)
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
        order = {
            "uid": uid,
            "slot": slot,
            "limits": tree_limits(demand.limits, cgroups=self._plan["cgroups"], base=self.base_bytes),
            "affinity": affinity,
            "port": demand.port,
            "ahead": ahead,
        }
        doors: AbstractContextManager[list[int]] = group.doors() if group else nullcontext([])
        with doors as opened:
            received = await self._forks.ask([order], (*ends.theirs, *opened))
        ends.handed_over()
        return received

    def _add(self, cell: Cell) -> None:
        self.cells.add(cell)
        cell.when_gone(self._forget)

    def _forget(self, cell: Cell) -> None:
        self.cells.discard(cell)
        if cell.slot >= 0:
            self._free_slots.append(cell.slot)

    async def mount(self, cell: Cell, entries: list[dict[str, Any]]) -> None:
        """Mount these entries for a cell. Raise ZygoteLost, CannotMount."""
        messages = [{"uid": cell.uid, "entries": piece} for piece in in_pieces(entries)]
        received = await self._mounts.ask(messages, (cell.mounts,))
        if "done" not in received.content:
            raise CannotMount(received.content.get("message", ""))

    async def close(self) -> None:
        """End the zygote and the workshop. Its cells must have ended."""
        await self._mounts.close()  # before its parent, which reaps it
        if not self._gone.done():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait({self._gone})
        await self._forks.close()


def in_pieces(entries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the entries in order, in pieces of at most about PIECE_BYTES of JSON.

    One entry is far smaller than a message.
    """
    pieces: list[list[dict[str, Any]]] = []
    size = PIECE_BYTES
    for entry in entries:
        needed = len(json.dumps(entry)) + 2
        if size + needed > PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(entry)
        size += needed
    return pieces


def open_pidfd(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when the process ends. If that fails, kill the process."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise
