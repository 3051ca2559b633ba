"""A node as a server uses it: its connections, its load, and its recent trouble."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from skillery.backends import Job, Outcome, RunHost
from skillery_ray.channels import Door, connect
from skillery_ray.conversation import Conversation
from skillery_ray.jobs import Packed, failed
from skillery_ray.wire import Broken, Wire

logger = logging.getLogger(__name__)

MARK_SECONDS = 60.0
"""A node with trouble gets no runs for this time, if another node can take them."""
SPARE_SECONDS = 2.0
"""Unused connections are closed after this time, except one."""
SETUP_SECONDS = 300.0
"""The longest time for everything that does not count towards the timeout of a run: files, set-up, saving."""
REASONS = {"disk": "its disk is full or broken", "digest": "it got files that do not match their digest"}


class NotStarted(Exception):
    """Raised if a run could not be sent to a node. No code of the run has started, so another node may take it."""


class Member:
    """A node with a running engine. `watch` must run while the member is used."""

    def __init__(self, name: str, labels: dict[str, str], door: Door, on_silence: Callable[[], None]) -> None:
        """`on_silence` is called when the engine cannot be reached."""
        self.name = name
        self.labels = labels
        self.door = door
        self.capabilities: frozenset[str] = frozenset()
        self.is_ready = False
        self.pending = 0
        """The runs of this server on the node."""
        self._reported = 0
        """The runs of all servers, as the node has reported them."""
        self._marked_until = 0.0
        self._on_silence = on_silence
        self._spare: list[tuple[Wire, float]] = []
        self._watching = asyncio.ensure_future(self._watch())

    @property
    def load(self) -> int:
        return max(self.pending, self._reported)

    @property
    def is_marked(self) -> bool:
        return time.monotonic() < self._marked_until

    def mark(self, trouble: str) -> None:
        """Prefer other nodes for a while, because of `trouble` on this node."""
        self._marked_until = time.monotonic() + MARK_SECONDS
        logger.warning("ray: the node %s is marked for %.0f seconds: %s", self.name, MARK_SECONDS, REASONS[trouble])

    async def _watch(self) -> None:
        """Hold a connection on which the node reports its load. The node is ready while this connection is open."""
        while True:
            with contextlib.suppress(Broken):
                await self._watch_once()
            self.is_ready = False
            self._drop_spare()
            self._on_silence()
            await asyncio.sleep(1)

    async def _watch_once(self) -> None:
        """Hold one connection for reports, and read the load of the node until the connection ends."""
        wire, welcome = await connect(self.door, "watch")
        try:
            self.capabilities = frozenset(map(str, welcome["capabilities"]))  # type: ignore[call-overload]
            self._keep(await self._connected())  # so that the first run does not wait for a connection
            self.is_ready = True
            while True:
                self._reported = int((await wire.receive()).header["running"])
                self._close_old()
        finally:
            wire.close()

    async def _connected(self) -> Wire:
        return (await connect(self.door, "run"))[0]

    def _keep(self, wire: Wire) -> None:
        self._spare.append((wire, time.monotonic()))

    def _close_old(self) -> None:
        """Close connections that were not used recently, except one."""
        while len(self._spare) > 1 and time.monotonic() - self._spare[0][1] > SPARE_SECONDS:
            self._spare.pop(0)[0].close()

    def _drop_spare(self) -> None:
        for wire, _ in self._spare:
            wire.close()
        self._spare.clear()

    async def _take(self) -> Wire:
        """Return an open connection to the node: a spare one if there is any, otherwise a new one."""
        while self._spare:
            wire, _ = self._spare.pop()
            if wire.is_open:
                return wire
            wire.close()
        return await self._connected()

    async def run(self, job: Job, packed: Packed, host: RunHost) -> Outcome:
        """Run a job on the node. Raise NotStarted if the node cannot be reached."""
        self.pending += 1
        try:
            return await self._run(job, packed, host)
        finally:
            self.pending -= 1

    async def _run(self, job: Job, packed: Packed, host: RunHost) -> Outcome:
        """Run a job on a free connection. Raise NotStarted if there is none."""
        try:
            wire = await self._take()
        except Broken as broken:
            raise NotStarted(str(broken)) from None
        is_clean = False
        try:
            async with asyncio.timeout(job.limits.timeout_ms / 1000 + SETUP_SECONDS):
                outcome, message = await Conversation(wire, job, packed, host).hold()
            is_clean = True
            self._reported = int(message["running"])
            if message["trouble"]:
                self.mark(message["trouble"])
            return outcome
        except Broken:
            # The run may have started, so no other node may start it again.
            return failed(f"the node was lost: {self.name}")
        except TimeoutError:
            return failed(f"the node {self.name} has not ended the run in time")
        finally:
            self._put_back(wire, is_clean)

    def _put_back(self, wire: Wire, is_clean: bool) -> None:
        # After a cancelled run, the node may still send the end of that run.
        if is_clean and wire.is_open and self.is_ready:
            self._keep(wire)
        else:
            wire.close()

    def lose(self) -> None:
        """Stop using the node. Its runs fail when their connections end."""
        self.is_ready = False
        self._watching.cancel()
        self._drop_spare()

    async def close(self) -> None:
        self.lose()
        await asyncio.wait({self._watching})
