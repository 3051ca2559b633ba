"""`skillery serve`: start a server, serve requests, and shut down in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from litestar import Litestar
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from skillery.app.composition import create_app, open_server
from skillery.app.connections import Bounds, Connection, ConnectionAdmission, ConnectionCount
from skillery.app.descriptors import allot_descriptors
from skillery.app.home import Home
from skillery.app.sweeps import sweep_periodically
from skillery.backends import Authenticator, KeepsTokens, UsesService
from skillery.database import without_password
from skillery.errors import StartupError
from skillery.plugins import Plugins
from skillery.settings import Settings

log = logging.getLogger(__name__)
ANSWER_SECONDS = 3
"""Time after the grace period, in seconds. In this time, the server answers the calls with runs that it has killed."""


class _Server(uvicorn.Server):
    """A uvicorn server that does not handle signals.

    uvicorn would end the process with the received signal, but a server that was asked to stop must exit with code 0.
    """

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()


async def serve(settings: Settings, plugins: Plugins, announce: Callable[[str, str | None], None]) -> None:
    """Serve requests until the process receives SIGTERM or SIGINT. Raise StartupError if the server cannot start.

    `announce(url, token)` is called when the server accepts requests. `token` is the bootstrap token at the first start
    with an authenticator that keeps tokens, otherwise None.
    """
    home = Home(settings.home)
    ceiling = allot_descriptors(settings.runs_at_once, settings.max_connections).connections
    try:
        with _listening(settings) as listener:
            url = _url(settings.host, listener.getsockname()[1])

            def on_start() -> None:
                home.announce(url, ",".join(settings.authenticators), without_password(settings.database_url))
                announce(url, token)

            async with open_server(settings, plugins, home) as (core, edge):
                await _start_authenticator(core.authenticator)
                await core.sandbox.start()
                core.environments.named.start()
                await core.webhooks.deliveries.start()
                # Last, so that a failed start does not use up the bootstrap token.
                token = await _first_token(core.authenticator)
                server = _Server(_config(settings, create_app(core, edge), _admission(settings, ceiling)), on_start)
                ending: list[asyncio.Task[None]] = []
                loop = asyncio.get_running_loop()
                sweeping = loop.create_task(sweep_periodically(core.collector, settings.gc.interval_minutes))

                def stop() -> None:
                    # The second signal does not wait for open connections.
                    if not server.should_exit:
                        log.info(
                            "stopping: runs may finish for %g s; a second signal ends them", settings.grace_seconds
                        )
                    server.force_exit = server.should_exit
                    server.should_exit = True
                    grace = 0.0 if server.force_exit else settings.grace_seconds
                    ending.append(loop.create_task(core.runner.close(grace)))

                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, stop)
                try:
                    await server.serve(sockets=[listener])
                    await asyncio.gather(*ending)
                finally:
                    sweeping.cancel()
    finally:
        home.close()


async def _start_authenticator(authenticator: Authenticator) -> None:
    if isinstance(authenticator, UsesService):
        await authenticator.start()


async def _first_token(authenticator: Authenticator) -> str | None:
    if not isinstance(authenticator, KeepsTokens):
        return None
    return await asyncio.to_thread(authenticator.first_token)


def _admission(settings: Settings, ceiling: int) -> ConnectionAdmission:
    proxies = ProxyHeadersMiddleware(_nothing, list(settings.trusted_proxies)).trusted_hosts
    return ConnectionAdmission(
        ConnectionCount(),
        most=settings.max_connections,
        most_of_address=settings.max_connections_per_address,
        ceiling=ceiling,
        # Exactly the proxies whose X-Forwarded-For is trusted.
        is_exempt=lambda host: host in proxies,
    )


async def _nothing(*_: Any) -> None:
    """Do nothing. ProxyHeadersMiddleware requires an ASGI application, but never calls it here."""


def _config(settings: Settings, app: Litestar, admission: ConnectionAdmission) -> uvicorn.Config:
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
        timeout_graceful_shutdown=math.ceil(settings.grace_seconds) + ANSWER_SECONDS,
    )


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
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
