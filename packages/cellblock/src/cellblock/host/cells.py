"""A cell: two processes for one run, forked from the zygote, with their descriptors. A cell is always ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellblock.filter.rules import Sockets
from cellblock.host.channel import Channel
from cellblock.host.groups import ControlGroup
from cellblock.host.logs import LogPipe
from cellblock.host.packets import Packets, Received
from cellblock.host.processes import descendants, pid_of
from cellblock.values import Limits

if TYPE_CHECKING:
    from cellblock.host.zygotes import Zygote

STATUS = struct.Struct("=i")
FAILURE = struct.Struct("=q")
PATIENCE = 0.1
MOST_SAID = 300


@dataclass(frozen=True, slots=True)
class CellEnd:
    """The end of a cell. `event` is `ended` or `failed`. `status` is the wait status of the code's process."""

    event: str
    status: int = 0
    message: str = ""


def heard(raw: bytes) -> CellEnd:
    """Parse a message of pid 1: a wait status, or the name of a failed step and its result.

    The message is untrusted: with preloaded packages, another process of the zygote may have written it.
    """
    if len(raw) == STATUS.size:
        return CellEnd("ended", *STATUS.unpack(raw))
    if len(raw) < FAILURE.size:
        return CellEnd("failed", message="the sandbox sent an unknown message")
    step, (answer,) = one_line(raw[: -FAILURE.size].decode(errors="replace")), FAILURE.unpack(raw[-FAILURE.size :])
    return CellEnd("failed", message=f"{step}: {errno.errorcode.get(-answer, f'it answered {answer}')}")


def one_line(text: str) -> str:
    """Return the text as one line of limited length."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MOST_SAID])


@dataclass(frozen=True, slots=True)
class Demand:
    """The parameters of a cell. A cell can serve any run with equal parameters."""

    limits: Limits
    port: int | None = None
    """Port of the proxy inside the run. None without network access."""
    sockets: Sockets = Sockets.PAIRS
    """The sockets of the run. Only runs with `PAIRS` share net namespaces, one after another."""


class Ends:
    """The server's ends of the connections to a cell, and the cell's ends until they are sent."""

    def __init__(self, *, wary: bool = False) -> None:
        """Open all connections. Raise OSError if that fails; then no connection stays open.

        `wary` says that an untrusted process may keep the other ends.
        """
        self.wary = wary
        with contextlib.ExitStack() as opened:
            self.control = Packets(wary=wary)
            opened.callback(self.control.close)
            self.log = LogPipe()
            opened.callback(self.log.close)
            self.channel, self._theirs = socket.socketpair()
            opened.pop_all()

    @property
    def theirs(self) -> tuple[int, int, int]:
        return self.control.theirs.fileno(), self._theirs.fileno(), self.log.write_end

    def handed_over(self) -> None:
        self.control.theirs.close()
        self._theirs.close()
        self.log.close_write_end()

    def close(self) -> None:
        self.control.close()
        self.log.close()
        self.channel.close()
        self._theirs.close()


class Cell:
    """A cell, used for at most one run.

    `mounts` is a descriptor of the mount namespace of the run, or -1 if its pid 1 failed before it could send one.
    """

    def __init__(
        self,
        home: Zygote,
        demand: Demand,
        ends: Ends,
        *,
        pidfd: int,
        uid: int,
        slot: int,
        group: ControlGroup | None,
        pid: int = 0,
        mounts: int = -1,
    ) -> None:
        """`pid` is 0 if it is not known yet."""
        self.home = home
        self.demand = demand
        self.uid = uid
        self.slot = slot
        self.group = group
        self.mounts = mounts
        self.log = ends.log
        self.channel: Channel | None = None
        self.is_ready = False
        self._ends = ends
        self._pid = pid
        self._pidfd = pidfd
        self._first: Received | None = None
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._whenever_closed: list[Callable[[Cell], None]] = []
        self._loop.add_reader(pidfd, self._end_of_life)

    @property
    def pid(self) -> int:
        """The pid of the run's pid 1 on the host. It is -1 for a process that has ended."""
        if not self._pid:
            self._pid = pid_of(self._pidfd) if self.lives else -1
        return self._pid

    async def see_mounts(self) -> None:
        """Receive the descriptor `mounts`, which pid 1 sends before any other message."""
        first = await self._ends.control.receive()
        if first is not None and first.descriptors:
            [self.mounts] = first.descriptors
        else:
            self._first = first

    @property
    def bare_channel(self) -> socket.socket:
        """The channel before it is opened. Until then, the caller reads and writes messages directly."""
        return self._ends.channel

    async def open_channel(self) -> Channel:
        self.channel = await Channel.over(self._ends.channel)
        return self.channel

    def when_closed(self, act: Callable[[Cell], None]) -> None:
        """Call `act` when the cell is closed. Its files and its uid stay in use until then."""
        self._whenever_closed.append(act)

    def _end_of_life(self) -> None:
        """Handle the end of pid 1. The kernel has killed and reaped all other processes of the run before."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._ends.wary:
            self._ends.control.hang_up()
        self._gone.set_result(None)

    @property
    def lives(self) -> bool:
        return not self._gone.done()

    async def event(self) -> CellEnd | None:
        """Return how the cell ended, or None if the cell can no longer report it."""
        received = self._first or await self._ends.control.receive()
        if received is None:
            return None
        received.close()
        return heard(received.raw)

    async def end(self) -> None:
        """Kill the cell, and wait until it has no process left."""
        if self.lives:
            with contextlib.suppress(ProcessLookupError):  # the process has ended, and the loop will notice
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait({self._gone}, timeout=PATIENCE)
        while self.lives:
            # The end of pid 1 ends all others, as soon as it gets a processor; many busy children may leave it none.
            self._hasten()
            await asyncio.wait({self._gone}, timeout=PATIENCE)
        # Its last message stays readable until `close`.

    def _hasten(self) -> None:
        if self.group is None:
            members = list(descendants(self.pid))  # listed before any ends, because orphans move to pid 1
        else:
            self.group.free()
            members = self.group.members()
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self._ends.close()
        if self.mounts >= 0:
            await self.home.unmounting.close(self.mounts)
        for act in self._whenever_closed:
            act(self)
