"""A worker process of a server: everything of a server except the listening socket and the lock of its home."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, NoReturn

from skillery.app.home import Home
from skillery.app.server import Process, serve_on
from skillery.app.workers.acceptor import Acceptor
from skillery.app.workers.links import WorkerLink
from skillery.app.workers.shared_counts import SharedCounts
from skillery.errors import StartupError
from skillery.plugins import Plugins
from skillery.settings import Settings

log = logging.getLogger(__name__)
LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


class Common(NamedTuple):
    """What all workers inherit from the supervisor."""

    plugins: Plugins
    listener: socket.socket
    counts: SharedCounts
    loop_factory: LoopFactory


def become_worker(common: Common, settings: Settings, part: int, end: socket.socket) -> NoReturn:
    """Serve requests until SIGTERM or until the supervisor ends, and end the process.

    The supervisor learns the reason of a start that fails.
    """
    # Ctrl-C reaches all processes of a terminal. The supervisor passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    code = 1
    try:
        with asyncio.Runner(loop_factory=common.loop_factory) as runner:
            code = runner.run(_work(common, settings, part, end))
    except Exception:
        log.exception("the worker process failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # The command that forked this process continues in the supervisor only.
        os._exit(code)


async def _work(common: Common, settings: Settings, part: int, end: socket.socket) -> int:
    link = await WorkerLink.open(end)
    try:
        home = Home(settings.home / "workers" / str(part))
        try:
            counts = common.counts.of(part, settings.runs_at_once, link)
            accept = partial(_accept, common, part)
            process = Process(settings, common.plugins, home, counts, is_first=part == 0, accept=accept)
            await serve_on(common.listener, process, link.ready, until=link.follow())
        finally:
            home.close()
    except StartupError as error:
        await link.failed(str(error))
        return 1
    finally:
        link.close()
    return 0


def _accept(common: Common, part: int, make_protocol: Callable[[], asyncio.Protocol]) -> Acceptor:
    return Acceptor(common.listener, make_protocol, partial(common.counts.is_ahead, part))
