"""One place for one run: two processes forked from the zygote, given what the run needs, waited for, always ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from skillery.backends import Limits
from skillery.builtin.linux_sandbox.links import Packets
from skillery.context.threads import Workers
from skillery.sandboxing.linux.cell import calls
from skillery.sandboxing.linux.groups import ControlGroup
from skillery.sandboxing.linux.watchdog import descendants
from skillery.sandboxing.python_runner.logs import LogPipe
from skillery.sandboxing.python_runner.wire import Channel

STATUS = struct.Struct("=i")
FAILURE = calls.FAILURE
PATIENCE = 0.1
MOST_SAID = 300
UNMOUNTING = Workers("unmounting", 4)


class Event(msgspec.Struct, frozen=True):
    """What the place says of its end, `ended` or `failed`: `status` is the wait status of the code's process."""

    event: str
    status: int = 0
    message: str = ""


def heard(raw: bytes) -> Event:
    """What `init` or `calls` wrote. Another may have written it where the zygote has imported what is not ours."""
    if len(raw) == STATUS.size:
        return Event("ended", *STATUS.unpack(raw))
    if len(raw) < FAILURE.size:
        return Event("failed", message="the sandbox said what it never says")
    step, (answer,) = said(raw[: -FAILURE.size].decode(errors="replace")), FAILURE.unpack(raw[-FAILURE.size :])
    return Event("failed", message=f"{step}: {errno.errorcode.get(-answer, f'it answered {answer}')}")


def said(text: str) -> str:
    """In one line, and not long."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:MOST_SAID])


class Demand(msgspec.Struct, frozen=True):
    """What a place is made for: one that was made for the same may be used for it."""

    limits: Limits
    port: int | None = None
    """Of the way to the network, where the run has one."""


class Ends:
    """The server's ends of what connects it with a place, and the place's own, to be handed over."""

    def __init__(self, *, wary: bool = False) -> None:
        """Raises OSError; nothing is open then. `wary`: somebody whom nobody trusts may keep the other ends."""
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


class Home(Protocol):
    """Where it comes from."""

    @property
    def lost(self) -> bool: ...

    async def mount(self, cell: Cell, entries: list[dict[str, Any]]) -> None: ...


class Cell:
    """`pid` is pid 1 of the run, as the host counts; `mounts` a descriptor of its mount namespace. It is used once, or
    not at all."""

    def __init__(
        self,
        home: Home,
        demand: Demand,
        ends: Ends,
        *,
        pid: int,
        pidfd: int,
        mounts: int,
        uid: int,
        slot: int,
        group: ControlGroup | None,
    ) -> None:
        self.home = home
        self.demand = demand
        self.pid = pid
        self.uid = uid
        self.slot = slot
        self.group = group
        self.mounts = mounts
        self.log = ends.log
        self.channel: Channel | None = None
        self.is_ready = False
        self._ends = ends
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._whenever_gone: list[Callable[[Cell], None]] = []
        self._loop.add_reader(pidfd, self._end_of_life)

    @property
    def bare_channel(self) -> socket.socket:
        """What comes over it before it is opened is the caller's business."""
        return self._ends.channel

    async def open_channel(self) -> Channel:
        self.channel = await Channel.over(self._ends.channel)
        return self.channel

    def when_gone(self, act: Callable[[Cell], None]) -> None:
        self._whenever_gone.append(act)

    def _end_of_life(self) -> None:
        """Pid 1 has ended: the kernel has killed and buried everybody else of the run before that."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._ends.wary:
            self._ends.control.hang_up()
        self._gone.set_result(None)
        for act in self._whenever_gone:
            act(self)

    @property
    def lives(self) -> bool:
        return not self._gone.done()

    async def event(self) -> Event | None:
        """How it ended, None where it cannot say so any more."""
        received = await self._ends.control.receive()
        if received is None:
            return None
        received.close()
        return heard(received.raw)

    async def end(self) -> None:
        """Kill it and wait until nothing of it is left."""
        if self.lives:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and we are about to hear of it
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait({self._gone}, timeout=PATIENCE)
        while self.lives:
            # Pid 1 takes everybody along, once it gets a processor; many busy children may leave it none.
            self._hasten()
            await asyncio.wait({self._gone}, timeout=PATIENCE)
        # What it said last stays readable until `close`.

    def _hasten(self) -> None:
        if self.group is None:
            members = list(descendants(self.pid))  # before any ends, and leaves its children to pid 1
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
        # Nobody else has the mounts: the kernel takes them down now, and waits for all processors, often milliseconds.
        await UNMOUNTING.run(os.close, self.mounts)
