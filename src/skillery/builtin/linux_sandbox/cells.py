"""One place for one run: two processes forked from the zygote, told what to do, waited for, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from skillery.builtin.linux_sandbox.groups import ControlGroup
from skillery.builtin.linux_sandbox.links import Packets, Received


class Event(msgspec.Struct, frozen=True):
    """What the place says of itself. `status` of `ended` is the wait status of the code's process."""

    event: str
    status: int = 0
    message: str = ""


class Home(Protocol):
    """Where it comes from."""

    @property
    def lost(self) -> bool: ...

    async def trees(self, uid: int, entries: list[dict[str, Any]]) -> Received: ...


class Cell:
    """`pid` is pid 1 of the run, as the host counts. It is used once, or not at all."""

    def __init__(
        self, home: Home, pid: int, pidfd: int, control: Packets, uid: int, slot: int, group: ControlGroup | None
    ) -> None:
        self.home = home
        self.pid = pid
        self.uid = uid
        self.slot = slot
        self.group = group
        self._pidfd = pidfd
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._whenever_gone: list[Callable[[Cell], None]] = []
        self._loop.add_reader(pidfd, self._end_of_life)

    def when_gone(self, act: Callable[[Cell], None]) -> None:
        self._whenever_gone.append(act)

    def _end_of_life(self) -> None:
        """Pid 1 has ended: the kernel has killed and buried everybody else of the run before that."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._gone.set_result(None)
        for act in self._whenever_gone:
            act(self)

    @property
    def lives(self) -> bool:
        return not self._gone.done()

    def tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Nothing happens where it has ended meanwhile: what waits for its answer sees that."""
        with contextlib.suppress(ConnectionError):
            self._control.send(message, descriptors)

    async def event(self, *, wanted: tuple[str, ...] = ("ended", "failed")) -> Event | None:
        """The next event of these, None when there is none any more."""
        while (received := await self._control.receive()) is not None:
            received.close()
            event = msgspec.convert(received.content, Event)
            if event.event in wanted:
                return event
        return None

    async def end(self) -> None:
        """Kill it and wait until nothing of it is left."""
        if self.lives:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and we are about to hear of it
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait({self._gone})
        # What it said last stays readable until `close`.

    def close(self) -> None:
        self._control.close()
