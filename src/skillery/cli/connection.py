"""Connections of commands: --url, --home and --config decide between a server and a home that this process opens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from skillery.cli.options import Target
from skillery.client import AsyncClient, Retries
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.app.home import Home
    from skillery.settings import Settings

T = TypeVar("T")
WAIT_SECONDS = 15.0
SENT_ONCE = Retries(attempts=1)
"""Commands report a busy server or a lost connection without a retry. The user decides about another attempt."""


class HomeClient(AsyncClient):
    """Client of a home that this process holds. Runs in the background end with the process."""


def with_client(
    target: Target,
    work: Callable[[AsyncClient], Coroutine[Any, Any, T]],
    *,
    sandbox: bool = False,
    environments: bool = False,
) -> T:
    """Call `work` with a client and return its result.

    The flags matter only for a home without a server. `sandbox` starts the sandbox, for commands that run code.
    `environments` starts the installation of the named environments.
    """

    async def connected() -> T:
        async with connect(target, sandbox=sandbox, environments=environments) as client:
            return await work(client)

    return asyncio.run(connected())


def client_of(url: str, token: str | None) -> AsyncClient:
    """Return a client of the server at `url`. Raise StartupError if `url` is not an address."""
    try:
        # The option --token already has the value of SKILLERY_TOKEN.
        return AsyncClient(url, token or "", retries=SENT_ONCE)
    except (ValueError, httpx.InvalidURL) as error:
        raise StartupError(f"'{url}' is not an address of a server: {error}") from None


@asynccontextmanager
async def connect(target: Target, *, sandbox: bool = False, environments: bool = False) -> AsyncIterator[AsyncClient]:
    """Context manager: a client of the target. Raise StartupError if the home is unusable or another command holds
    it.
    """
    async with AsyncExitStack() as stack:
        if target.url:
            yield await stack.enter_async_context(client_of(target.url, target.token))
            return
        settings = target.load().settings
        show_log(settings)
        found = await _server_or_home(settings)
        if isinstance(found, str):
            yield await stack.enter_async_context(client_of(found, target.token))
            return
        stack.callback(found.close)
        yield await stack.enter_async_context(_in_process(settings, found, target.token, sandbox, environments))


@asynccontextmanager
async def _in_process(
    settings: Settings, home: Home, token: str | None, sandbox: bool, environments: bool
) -> AsyncIterator[AsyncClient]:
    import msgspec

    from skillery.app.composition import create_app, open_server
    from skillery.cli.in_process import BASE_URL, InProcessTransport
    from skillery.plugins import load_plugins

    # A command that is interrupted ends immediately, without a grace period.
    settings = msgspec.structs.replace(settings, grace_seconds=0.0)
    plugins = load_plugins(settings.plugins_folder)
    async with open_server(settings, plugins, home) as (core, edge):
        if sandbox:
            await core.sandbox.start()
        if environments:
            core.environments.named.start()
        transport = InProcessTransport(create_app(core, edge))
        async with HomeClient(BASE_URL, token or "", retries=SENT_ONCE, transport=transport) as client:
            yield client


async def _server_or_home(settings: Settings) -> str | Home:
    """Return the address of the server that holds the home. If no server holds it, lock the home and return it.

    The function waits up to WAIT_SECONDS for a server that is starting, and for another command that holds the home.
    """
    from skillery.app.home import Home, HomeInUse, holder_of

    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        holder = holder_of(settings.home)
        if holder is not None and holder.url:
            return holder.url
        try:
            return Home(settings.home)
        except HomeInUse:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)


def show_log(settings: Settings) -> None:
    """Log warnings to stderr, one line each. With log level debug, log everything."""
    debug = settings.log_level == "debug"
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("%(levelname)s: %(message)s") if not debug else logging.Formatter())
    logging.basicConfig(level="DEBUG" if debug else "WARNING", handlers=[handler], force=True)


class _Lines(logging.Formatter):
    """Formatter that omits tracebacks, unless the log level is `debug`."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging calls
        return f"{ei[0].__name__}: {ei[1]}"
