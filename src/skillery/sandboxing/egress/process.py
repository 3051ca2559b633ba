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
import encodings.ascii
import encodings.latin_1  # noqa: F401
import os
import resource
import socket
import sys

import msgspec

from skillery.sandboxing.egress.log import Event
from skillery.sandboxing.egress.lookups import LookUpThreads, RunLookUps
from skillery.sandboxing.egress.orders import GOODBYE, Order
from skillery.sandboxing.egress.policy import Policy
from skillery.sandboxing.egress.proxy import RunProxy
from skillery.sandboxing.egress.resolver import AddressRules, FixedHosts

MAX_ORDER = 1 << 20
NOBODY = 65_534
MAX_UNREAD = 1 << 20


async def serve_run(listener: socket.socket, report: socket.socket, threads: LookUpThreads) -> None:
    """Serve one run until the server closes the report socket."""
    reader, writer = await asyncio.open_connection(sock=report, limit=MAX_ORDER)
    with listener:
        line = await reader.readline()
        if line:  # otherwise the server has already ended the run
            await serve_until_told(listener, msgspec.json.decode(line, type=Order), threads, reader, writer)
    writer.write(GOODBYE)
    writer.close()


async def serve_until_told(
    listener: socket.socket,
    order: Order,
    threads: LookUpThreads,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    encoder = msgspec.json.Encoder()

    def tell(event: Event) -> None:
        if writer.transport.get_write_buffer_size() > MAX_UNREAD:
            serving.cancel()  # unread events: without a record, allow nothing more
        writer.write(encoder.encode(event) + b"\n")

    look_ups = RunLookUps(threads, order.identity, order.caps, of_the_house=order.private)
    resolver = FixedHosts(order.hosts, look_ups)
    policy, rules = Policy.parse(order.patterns), AddressRules(order.allow_private, every=order.private)
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
            message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        except BlockingIOError:
            return
        if not message:
            loop.remove_reader(control)
            ended.set_result(None)
            return
        ends = [socket.socket(fileno=descriptor) for descriptor in descriptors]
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
