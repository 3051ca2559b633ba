"""The proxy as a separate program: one process for all runs of a server.

So the process of the server neither parses nor forwards bytes of a run, and holds no descriptor of a run's connections.

The process starts with one descriptor, a SOCK_SEQPACKET socket. The server sends a pair of descriptors for each run:
the listening socket of the run, and a report socket. The first line on the report socket is the order of the server.
The proxy sends events back, one line each. When the run is over, the server closes its half of the report socket, and
the proxy answers with GOODBYE. The process ends with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import sys
from collections.abc import Callable

from cellblock.egress.exchange import Exchange
from cellblock.egress.log import OTHERS, Event
from cellblock.egress.lookups import LookUpThreads, RunLookUps
from cellblock.egress.orders import GOODBYE, Order
from cellblock.egress.policy import Denied, Policy, Target
from cellblock.egress.resolver import AddressRules, FixedHosts, Resolver, checked_addresses, dial
from cellblock.egress.streams import Caps, Spent, Stream
from cellblock.host.packets import receive

# The proxy of one run: it accepts connections on the run's listening socket, and forwards what the policy allows.


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


MAX_ORDER = 1 << 20
NOBODY = 65_534
MAX_UNREAD = 1 << 20


async def serve_run(listener: socket.socket, report: socket.socket, threads: LookUpThreads) -> None:
    """Serve one run until the server closes the report socket."""
    reader, writer = await asyncio.open_connection(sock=report, limit=MAX_ORDER)
    with listener:
        line = await reader.readline()
        if line:  # otherwise the server has already ended the run
            await serve_until_told(listener, Order.parse(line), threads, reader, writer)
    writer.write(GOODBYE)
    writer.close()


async def serve_until_told(
    listener: socket.socket,
    order: Order,
    threads: LookUpThreads,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    def tell(event: Event) -> None:
        if writer.transport.get_write_buffer_size() > MAX_UNREAD:
            serving.cancel()  # unread events: without a record, allow nothing more
        writer.write(event.line())

    look_ups = RunLookUps(threads, order.identity, order.caps, of_the_house=order.private)
    resolver = FixedHosts(order.hosts, look_ups)
    policy = Policy.parse(order.patterns, order.names)
    rules = AddressRules(order.allow_private, every=order.private, names=order.names)
    serving = asyncio.ensure_future(RunProxy(policy, resolver, rules, tell, order.caps).serve(listener))
    await reader.read()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    look_ups.close()


def take_orders(control: socket.socket, ended: asyncio.Future[None]) -> None:
    """Start to receive orders from `control`."""
    loop = asyncio.get_running_loop()
    threads = LookUpThreads()
    tasks: set[asyncio.Task[None]] = set()

    def take() -> None:
        try:
            received = receive(control, 1)
        except BlockingIOError:
            return
        if received is None:
            loop.remove_reader(control)
            ended.set_result(None)
            return
        ends = [socket.socket(fileno=descriptor) for descriptor in received.descriptors]
        for end in ends:
            end.setblocking(False)
        if len(ends) != 2:  # out of descriptors: the server sees that the report socket is closed
            for end in ends:
                end.close()
            return
        task = loop.create_task(serve_run(ends[0], ends[1], threads))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_reader(control, take)


def become_nobody() -> None:
    """Give up the rights of root, because a process that forwards untrusted bytes needs no rights."""
    if os.geteuid() != 0:
        return
    # In a user namespace without another uid this fails, and root there is an ordinary user outside.
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


async def serve(control: socket.socket) -> None:
    ended = asyncio.get_running_loop().create_future()
    take_orders(control, ended)
    become_nobody()
    await ended


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.setblocking(False)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(serve(control))
    # The interpreter would wait for the threads of running look-ups.
    sys.stdout.flush()
    os._exit(0)
