"""The proxy of one run: it accepts connections on the run's listening socket, and forwards what the policy allows."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from skillery.sandboxing.egress.exchange import Exchange
from skillery.sandboxing.egress.log import OTHERS, Event
from skillery.sandboxing.egress.policy import Denied, Policy, Target
from skillery.sandboxing.egress.resolver import AddressRules, Resolver, checked_addresses, dial
from skillery.sandboxing.egress.streams import Caps, Spent, Stream

PAUSE_SECONDS = 0.1


class RunProxy:
    """Serves one run until cancelled. Only this run can connect to its listening socket, so the socket identifies
    the run.
    """

    def __init__(
        self,
        policy: Policy,
        resolver: Resolver,
        rules: AddressRules,
        tell: Callable[[Event], None],
        caps: Caps,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._rules = rules
        self._hosts: set[str] = set()
        self.tell = tell
        self.caps = caps
        self.spent = Spent(caps)

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled, at most `caps.in_all`.

        Afterwards, the listening socket and all connections are closed.
        """
        slots = asyncio.Semaphore(self.caps.open_at_once)
        tasks: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            slots.release()

        try:
            for _ in range(self.caps.in_all):
                await slots.acquire()
                task = asyncio.create_task(self._serve_one(await accept(listener)))
                tasks.add(task)
                task.add_done_callback(ended)
            listener.close()
            reason = f"the run has made {self.caps.in_all} connections, as many as it may"
            self.tell(Event(OTHERS, 0, False, reason))
            await asyncio.wait(tasks)
        finally:
            listener.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve_one(self, connection: socket.socket) -> None:
        client = Stream(connection)
        try:
            async with asyncio.timeout(self.caps.total_seconds):
                await Exchange(self, client).run()
        except (OSError, EOFError, TimeoutError):
            return  # one end has closed; the bytes until then are recorded
        finally:
            client.close()

    def admit(self, target: Target) -> str:
        """Return the pattern that allows the target. Raise Denied if no pattern does, or if the run used too many
        host names.
        """
        rule = self._policy.check(target)
        if target.host not in self._hosts and len(self._hosts) >= self.caps.hosts:
            raise Denied(f"the run has asked for {self.caps.hosts} different hosts, as many as it may")
        self._hosts.add(target.host)
        return rule

    async def connect(self, target: Target) -> Stream:
        """Connect to the target. Raise Denied if an address is not allowed, or if no address answers."""
        addresses = await checked_addresses(self._resolver, self._rules, target.host)
        return Stream(await dial(addresses, target.port))


async def accept(listener: socket.socket) -> socket.socket:
    while True:
        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        except OSError:  # out of descriptors, or the client has already closed
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return connection
