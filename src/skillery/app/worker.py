"""A worker process: a server without the listening socket and the lock of the home."""

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
from skillery.app.server import Process, announce_at, listening, serve_on
from skillery.app.supervisor import Supervisor, check_workers, import_all
from skillery.app.worker_links import SharedCounts, WorkerLink
from skillery.errors import StartupError
from skillery.plugins import Plugins
from skillery.settings.load import Settings

# -- Accepts connections so that all workers get about equally many ----------------------------------------------------
# The kernel wakes all workers for a new connection. If each accepted all that wait, the worker that wakes first would
# get most of them, and clients keep their connections for long.


log = logging.getLogger(__name__)
PAUSE_SECONDS = 0.001
"""How long a worker with more than its share leaves a new connection to the others."""
FULL_PAUSE_SECONDS = 0.1
"""Pause if the process can open no further file."""


class Acceptor:
    """Accepts connections of the shared socket, one after the other."""

    def __init__(
        self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol], is_ahead: Callable[[], bool]
    ) -> None:
        """is_ahead: returns whether this worker has more than its share of the connections."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._is_ahead = is_ahead
        self._connecting: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_patient = True
        """Whether the worker still leaves the next connection to others. It does so once."""
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self) -> None:
        """Accept one connection. If this worker has more than its share, let the other workers accept first."""
        if self._is_patient and self._is_ahead():
            self._is_patient = False
            self._rest(PAUSE_SECONDS)
            return
        self._is_patient = True
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client has gone
        except OSError as error:
            log.warning("no connection can be accepted: %s", error.strerror)
            self._rest(FULL_PAUSE_SECONDS)
            return
        task: asyncio.Task[object] = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            log.debug("a new connection ended at once: %s", error)
            connection.close()

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, self._loop.add_reader, self._listener.fileno(), self._accept)


LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


class Common(NamedTuple):
    """The values that all workers inherit from the supervisor when they are forked."""

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
        logging.shutdown()
        # The command that forked this process continues in the supervisor only.
        os._exit(code)


async def _work(common: Common, settings: Settings, part: int, end: socket.socket) -> int:
    """Serve requests in a forked process. Return its exit code: 1 if the server cannot start."""
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
        await link.failed(error)
        return 1
    finally:
        link.close()
    return 0


def _accept(common: Common, part: int, make_protocol: Callable[[], asyncio.Protocol]) -> Acceptor:
    return Acceptor(common.listener, make_protocol, partial(common.counts.is_ahead, part))


# -- Start a server with several worker processes ----------------------------------------------------------------------


BACKLOG = 2048
"""Connections that wait in the kernel until a worker accepts them, as with one process."""


def serve_with_workers(
    settings: Settings,
    load: Callable[[], Settings],
    plugins: Plugins,
    loop_factory: LoopFactory,
    announce: Callable[[str, str | None], None],
) -> None:
    """Serve requests in `settings.workers` processes until SIGTERM or SIGINT. Raise StartupError if one cannot start.

    `load` reads the settings again for SIGHUP. `announce` is called as by `serve`.
    """
    check_workers(settings)
    home = Home(settings.home)
    try:
        (home.path / "workers").mkdir(mode=0o700, exist_ok=True)
        with listening(settings) as listener:
            listener.listen(BACKLOG)
            counts = SharedCounts(settings.workers, home.path / "workers" / "slots")
            import_all()
            Supervisor(
                settings,
                counts,
                partial(become_worker, Common(plugins, listener, counts, loop_factory)),
                load,
                partial(announce_at, home, settings, listener, announce),
            ).run()
    finally:
        home.close()
