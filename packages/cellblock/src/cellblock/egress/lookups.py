"""DNS look-ups in threads, which all runs share.

`getaddrinfo` cannot be cancelled: if the name server does not answer, the thread is busy until the resolver of the host
gives up, often after 30 seconds. So a look-up counts towards the limits of its run and its identity until its thread
returns, even after the run has ended.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from cellblock.egress.policy import Denied
from cellblock.egress.streams import Caps

Found = list[str]
FAILURE_SECONDS = 30.0
"""Seconds for which a failed look-up is remembered (RFC 9520 §3.2 allows up to five minutes)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on the threads that resolve names at the same time."""

    in_all: int = 64
    of_identity: int = 16
    of_run: int = 4


BOUNDS = Bounds()


def system_addresses(host: str, of_the_house: bool) -> Found:
    # The final dot stops the host's search domains from turning a public name into an internal one.
    name = host if of_the_house else f"{host}."
    infos = socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


class LookUpThreads:
    """The look-up threads of all runs. A look-up occupies its thread, and counts towards the limits, until `find`
    returns.
    """

    def __init__(self, find: Callable[[str, bool], Found] = system_addresses, bounds: Bounds = BOUNDS) -> None:
        self.bounds = bounds
        self._find = find
        self._pool = ThreadPoolExecutor(bounds.in_all, "look-up")
        self._all = asyncio.Semaphore(bounds.in_all)
        # An entry disappears when the identity has no run and no look-up.
        self._identities: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def share_of(self, identity: str) -> asyncio.Semaphore:
        """Return the semaphore that all runs of this identity share."""
        return self._identities.setdefault(identity, asyncio.Semaphore(self.bounds.of_identity))

    async def begin(
        self, run: asyncio.Semaphore, identity: asyncio.Semaphore, host: str, of_the_house: bool
    ) -> asyncio.Future[Found]:
        """Wait for a free thread, and start the look-up of `host`. Return its future, which must not be cancelled."""
        with ExitStack() as held:
            for share in (run, identity, self._all):  # always in this order, so that no deadlock is possible
                await share.acquire()
                held.callback(share.release)
            look_up = asyncio.get_running_loop().run_in_executor(self._pool, self._find, host, of_the_house)
            until_it_returns = held.pop_all()
        look_up.add_done_callback(lambda _: until_it_returns.close())
        return look_up


class RunLookUps:
    """The look-ups of one run. If several connections need the same name at the same time, they share one look-up.

    Failures are cached for FAILURE_SECONDS. Addresses are not cached: a later connection starts a new look-up.
    """

    def __init__(self, threads: LookUpThreads, identity: str, caps: Caps, *, of_the_house: bool = False) -> None:
        """`of_the_house` also allows names of the server's network (search domains, /etc/hosts). It is set if the
        server's admin wrote the patterns.
        """
        self._threads = threads
        self._identity = threads.share_of(identity)
        self._run = asyncio.Semaphore(threads.bounds.of_run)
        self._caps = caps
        self._of_the_house = of_the_house
        self._under_way: dict[str, asyncio.Task[Found]] = {}
        self._failed_until: dict[str, float] = {}  # bounded by `Caps.hosts`

    async def look_up(self, host: str) -> Found:
        """Return the addresses of a host.

        Raise OSError if the name has none, if the look-up takes too long, or if it failed recently. Raise Denied if no
        thread becomes free.
        """
        if host not in self._under_way:
            if time.monotonic() < self._failed_until.get(host, 0.0):
                raise OSError("its lookup failed a few seconds ago")
            task = self._under_way[host] = asyncio.create_task(self._ask(host))
            task.add_done_callback(partial(self._forget_task, host))
        return await asyncio.shield(self._under_way[host])

    def close(self) -> None:
        """Cancel all look-ups. A look-up that has a thread occupies it until `getaddrinfo` returns."""
        for task in self._under_way.values():
            task.cancel()

    def _forget_task(self, host: str, task: asyncio.Task[Found]) -> None:
        del self._under_way[host]
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved: the connections have ended

    async def _ask(self, host: str) -> Found:
        look_up = await self._begin(host)
        self._failed_until[host] = math.inf  # until the thread returns
        look_up.add_done_callback(partial(self._returned, host))
        await asyncio.wait({look_up}, timeout=self._caps.look_up_seconds)  # unlike wait_for, does not cancel
        if not look_up.done():
            raise TimeoutError
        return look_up.result()

    async def _begin(self, host: str) -> asyncio.Future[Found]:
        try:
            async with asyncio.timeout(self._caps.look_up_wait_seconds):
                return await self._threads.begin(self._run, self._identity, host, self._of_the_house)
        except TimeoutError:
            bounds = self._threads.bounds
            reason = (
                f"{host} was not looked up: earlier look-ups are not answered yet, and a run may have {bounds.of_run} "
                f"at a time, all runs of an identity {bounds.of_identity}"
            )
            raise Denied(reason, status=503, advice="try again in a minute") from None

    def _returned(self, host: str, look_up: asyncio.Future[Found]) -> None:
        succeeded = not look_up.cancelled() and look_up.exception() is None
        self._failed_until[host] = 0.0 if succeeded else time.monotonic() + FAILURE_SECONDS
