"""The transfer of a run's listening socket to the host: the first byte on the channel carries the descriptor."""

from __future__ import annotations

import asyncio
import socket

from cellblock.host.channel import BrokenSetup
from cellblock.host.packets import receive
from cellblock.values import Busy

PORT = 3128
"""The port of the proxy on 127.0.0.1 inside the run."""
URL = f"http://127.0.0.1:{PORT}"
ENVIRONMENT = {
    name: value
    for upper, value in {"HTTP_PROXY": URL, "HTTPS_PROXY": URL, "NO_PROXY": ""}.items()
    for name in (upper, upper.lower())
} | {"NODE_USE_ENV_PROXY": "1", "npm_config_offline": "false", "PIP_NO_INDEX": "false"}
"""Environment variables of a run with network access. NODE_USE_ENV_PROXY makes Node.js use the other variables."""
OWN_SERVERS = dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1")
"""Variables of a run that may have its own servers: requests to them do not go to the proxy."""


async def receive_listener(channel: socket.socket) -> socket.socket:
    """Return the listening socket. Raise BrokenSetup if the other end has closed or sends other data, Busy if this
    process may open no more descriptors.
    """
    channel.setblocking(False)
    loop = asyncio.get_running_loop()
    while True:
        try:
            received = receive(channel, 1)
        except BlockingIOError:
            await readable(loop, channel)
            continue
        if received is not None and received.cut:
            received.close()
            raise Busy("no descriptor is free for the network of a run: raise the limit of open files (ulimit -n)")
        if received is None or not received.descriptors:
            raise BrokenSetup("the sandbox ended before it had a way to the network")
        listener = socket.socket(fileno=received.descriptors[0])
        listener.setblocking(False)
        return listener


async def readable(loop: asyncio.AbstractEventLoop, end: socket.socket) -> None:
    arrived: asyncio.Future[None] = loop.create_future()

    def arrive() -> None:
        if not arrived.done():
            arrived.set_result(None)

    loop.add_reader(end.fileno(), arrive)
    try:
        await arrived
    finally:
        loop.remove_reader(end.fileno())
