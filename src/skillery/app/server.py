"""`skillery serve`: start a server, serve requests, and shut down in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import uvicorn
from litestar import Litestar
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from skillery.app.background_jobs import sweep_periodically
from skillery.app.builders import Counts, counts_of_one_process
from skillery.app.composition import note_settings, open_server
from skillery.app.connection_admission import ConnectionAdmission, ConnectionCount
from skillery.app.connection_protocol import Connection
from skillery.app.connection_transport import Bounds
from skillery.app.home import Home
from skillery.app.routes import HttpParts, create_app
from skillery.backends import Authenticator, KeepsTokens
from skillery.database import without_password
from skillery.errors import StartupError
from skillery.methods.core import Core
from skillery.plugins import Plugins
from skillery.settings.load import Settings

# -- Limit of the open files of the server process, and the number of connections that this limit allows ---------------


DEFAULT_LIMIT = 16_384
"""The limit of open files that the server requests if the settings need no higher limit. An idle connection takes 9
KB of memory.
"""
RESERVE = 128
"""File descriptors for the database, the listening socket, pipes of sandboxes, health checks and connections that
are closing.
"""
RESERVE_PER_RUN = 8
PER_CONNECTION = 2
"""File descriptors of a connection: the socket, and a file of the storage that is uploaded or downloaded."""
MIN_CONNECTIONS = 16


class Descriptors(NamedTuple):
    """The file descriptors of this process: the limit, and the number that is reserved for other uses than
    connections.
    """

    limit: int
    reserve: int

    @property
    def connections(self) -> int:
        """The limit of connections: at least MIN_CONNECTIONS, even if that takes reserved file descriptors."""
        return max(MIN_CONNECTIONS, (self.limit - self.reserve) // PER_CONNECTION)


def allot_descriptors(runs_at_once: int, max_connections: int) -> Descriptors:
    """Raise this process's soft limit of open files to the needed number, at most to the hard limit.

    Return the resulting limit, or the needed number if that is lower, and the number of reserved file descriptors. Runs
    are not affected, because a sandbox sets the limit of each run.
    """
    reserve = RESERVE + RESERVE_PER_RUN * runs_at_once
    needed_limit = max(DEFAULT_LIMIT, reserve + PER_CONNECTION * max_connections)
    return Descriptors(min(needed_limit, _raise_limit(needed_limit)), reserve)


def _raise_limit(needed_limit: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        needed_limit = min(needed_limit, hard)
    if soft != resource.RLIM_INFINITY and soft < needed_limit:
        # Some systems have a lower ceiling than the hard limit.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed_limit, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return needed_limit if soft == resource.RLIM_INFINITY else soft


log = logging.getLogger(__name__)
KEEP_ALIVE_SECONDS = 150
"""Time after which the server closes an idle connection, in seconds.

Clients and proxies must close first: a connection that ends while a request arrives fails the request. HTTP clients
keep idle connections for 5 s or less, nginx for 60 s, Traefik for 90 s, Caddy for 120 s.
"""
ANSWER_SECONDS = 3
"""Time after the grace period, in seconds. In this time, the server answers the calls with runs that it has killed."""


class Acceptor(Protocol):
    """Accepts connections until it is closed."""

    def close(self) -> None: ...


Accept = Callable[[Callable[[], asyncio.Protocol]], Acceptor]
"""Starts to accept connections on the event loop. The argument makes the protocol of a connection."""


class _Server(uvicorn.Server):
    """A uvicorn server that does not handle signals.

    uvicorn would end the process with the received signal, but a server that was asked to stop must exit with code 0.
    """

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None], accept: Accept | None = None) -> None:
        super().__init__(config)
        self._on_start = on_start
        self._accept = accept
        self._acceptor: Acceptor | None = None
        self.ending: list[asyncio.Task[None]] = []
        """Tasks that end the runs of this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accept is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            self._acceptor = self._accept(self._make_connection)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        await super().shutdown(sockets)

    def _make_connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn makes it."""
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


class Process(NamedTuple):
    """The parts of a process that serves requests."""

    settings: Settings
    plugins: Plugins
    home: Home
    """The folder of this process. A worker has one inside the home of the server."""
    counts: Counts
    is_first: bool = True
    """Whether the process publishes the bundled skills."""
    accept: Accept | None = None
    """How a worker accepts connections. None if the process is alone, and uvicorn accepts them."""


async def serve(settings: Settings, plugins: Plugins, announce: Callable[[str, str | None], None]) -> None:
    """Serve requests until the process receives SIGTERM or SIGINT. Raise StartupError if the server cannot start.

    `announce(url, token)` is called when the server accepts requests. `token` is the bootstrap token at the first start
    with an authenticator that keeps tokens, otherwise None.
    """
    home = Home(settings.home)
    try:
        with listening(settings) as listener:
            process = Process(settings, plugins, home, counts_of_one_process(settings))
            await serve_on(listener, process, partial(announce_at, home, settings, listener, announce))
    finally:
        home.close()


def announce_at(
    home: Home,
    settings: Settings,
    listener: socket.socket,
    announce: Callable[[str, str | None], None],
    token: str | None,
) -> None:
    """Record the address of the server in its home, and call `announce` and systemd with it."""
    url = _url(settings.host, listener.getsockname()[1])
    home.announce(url, ",".join(settings.authenticators), without_password(settings.database_url))
    announce(url, token)
    _notify_systemd(f"READY=1\nSTATUS=Serving at {url}")


async def serve_on(
    listener: socket.socket,
    process: Process,
    ready: Callable[[str | None], None],
    until: Coroutine[Any, Any, None] | None = None,
) -> None:
    """Serve the requests that arrive at `listener`, until SIGTERM, SIGINT or the end of `until`.

    `ready` is called when requests are served, with the bootstrap token at the first start with an authenticator that
    keeps tokens, otherwise with None. Raise StartupError if the process cannot start.
    """
    settings = process.settings
    ceiling = allot_descriptors(settings.runs_at_once, settings.max_connections).connections
    following = asyncio.create_task(until) if until is not None else None
    async with _opened(process) as (core, edge):
        await core.registry.write(partial(note_settings, settings=settings))
        # Last, so that a failed start does not use up the bootstrap token.
        token = await _first_token(core.identities.authenticator)
        admission = _admission(settings, process.counts.connections, ceiling)
        config = _config(settings, create_app(core, edge), admission)
        server = _Server(config, partial(ready, token), process.accept)
        _stop_at_signals(server, core, settings, following)
        sweeping = asyncio.create_task(sweep_periodically(core.collector, settings.gc.interval_minutes))
        try:
            with edge.silences.watching():
                await server.serve(sockets=[listener])
                await asyncio.gather(*server.ending)
        finally:
            sweeping.cancel()
            if following is not None:
                following.cancel()


@contextlib.asynccontextmanager
async def _opened(process: Process) -> AsyncIterator[tuple[Core, HttpParts]]:
    """Context manager: open the server and start its parts."""
    settings, plugins, home, counts, is_first, _ = process
    async with open_server(settings, plugins, home, bundled=is_first, counts=counts) as (core, edge):
        await core.identities.authenticator.start()
        await core.sandbox.start()
        core.environments.named.start()
        await core.deliveries.start()
        yield core, edge


def _stop_at_signals(server: _Server, core: Core, settings: Settings, following: asyncio.Task[None] | None) -> None:
    """Stop the server at SIGTERM, at SIGINT, and when `following` ends."""
    loop = asyncio.get_running_loop()

    def stop(*_: Any) -> None:
        # The second signal does not wait for open connections. In a worker, the supervisor writes the line.
        if not server.should_exit and following is None:
            log.info("stopping: runs may finish for %g s; a second signal ends them", settings.grace_seconds)
        server.force_exit = server.should_exit
        server.should_exit = True
        grace = 0.0 if server.force_exit else settings.grace_seconds
        server.ending.append(loop.create_task(core.runner.close(grace)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if following is None:
        # The end of a terminal sends SIGHUP too.
        loop.add_signal_handler(signal.SIGHUP, stop if os.isatty(0) else _keep_settings)
    else:
        following.add_done_callback(lambda task: None if task.cancelled() else stop())


def _keep_settings() -> None:
    log.warning(
        "SIGHUP: the settings stay as they are, because a single process would end its runs: restart the server, or "
        "set workers to 2 or more with Postgres, and send SIGHUP after later changes"
    )


async def _first_token(authenticator: Authenticator) -> str | None:
    if not isinstance(authenticator, KeepsTokens):
        return None
    return await asyncio.to_thread(authenticator.first_token)


def _admission(settings: Settings, count: ConnectionCount, ceiling: int) -> ConnectionAdmission:
    proxies = ProxyHeadersMiddleware(_nothing, list(settings.trusted_proxies)).trusted_hosts
    return ConnectionAdmission(
        count,
        most=settings.max_connections,
        most_of_address=settings.max_connections_per_address,
        ceiling=ceiling,
        # Exactly the proxies whose X-Forwarded-For is trusted.
        is_exempt=lambda host: host in proxies,
    )


async def _nothing(*_: Any) -> None:
    """Do nothing. ProxyHeadersMiddleware requires an ASGI application, but never calls it here."""


def _config(settings: Settings, app: Litestar, admission: ConnectionAdmission) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    connection: Any = partial(Connection, admission=admission, bounds=Bounds())
    return uvicorn.Config(
        app,
        http=connection,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        # By default, uvicorn trusts every caller from this machine.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.grace_seconds) + ANSWER_SECONDS,
    )


def _notify_systemd(state: str) -> None:
    """Send a state to systemd, if it has started this server (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            # An address that begins with @ has no file.
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sender.sendall(state.encode())
        except OSError as error:
            log.warning("systemd was not notified at NOTIFY_SOCKET=%s: %s", address, error.strerror)


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[socket.socket]:
    """Context manager that yields a socket at the address of the settings. Raise StartupError if binding fails."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host.strip("[]"), settings.port))
        except OSError as error:
            raise StartupError(
                f"cannot bind {settings.host}:{settings.port}: {error.strerror or error}; "
                "choose another address with --host and --port"
            ) from None
        yield listener
    finally:
        listener.close()


def _url(host: str, port: int) -> str:
    return f"http://[{host.strip('[]')}]:{port}" if ":" in host else f"http://{host}:{port}"
