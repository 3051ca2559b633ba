"""Connection of a command: from --url, --home and --config to a client of a server, or of this process if no server
holds the home."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from skillery.cli.log_lines import show_log
from skillery.cli.options import Target
from skillery.client import AsyncClient, Retries
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.app.home import Home
    from skillery.settings import Settings

T = TypeVar("T")
WAIT_SECONDS = 15.0
SENT_ONCE = Retries(attempts=1)
"""A command reports a busy server or a lost connection at once: the user decides about a second attempt."""


class HomeClient(AsyncClient):
    """Client of a home that this process holds. Work in the background ends with the process."""


def with_client(
    target: Target,
    work: Callable[[AsyncClient], Coroutine[Any, Any, T]],
    *,
    sandbox: bool = False,
    environments: bool = False,
) -> T:
    """Call `work` with a client and return its result.

    The flags only matter for a home without a server. `sandbox` starts its sandbox, for commands that run code.
    `environments` starts the installation of the named environments.
    """

    async def connected() -> T:
        async with connect(target, sandbox=sandbox, environments=environments) as client:
            return await work(client)

    return asyncio.run(connected())


def client_of(url: str, token: str | None) -> AsyncClient:
    """Return a client of the server at `url`. Raises StartupError if `url` is not an address."""
    try:
        # The option --token already has the value of SKILLERY_TOKEN.
        return AsyncClient(url, token or "", retries=SENT_ONCE)
    except (ValueError, httpx.InvalidURL) as error:
        raise StartupError(f"'{url}' is not an address of a server: {error}") from None


@asynccontextmanager
async def connect(target: Target, *, sandbox: bool = False, environments: bool = False) -> AsyncIterator[AsyncClient]:
    """Connect to the target. Raises StartupError if no server is reachable and the home cannot be opened."""
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
    """Return the address of the server that holds the home, or else the home, locked by this process.

    The function waits up to WAIT_SECONDS for a server that is starting and for another command that holds the home.
    """
    from skillery.app.home import Home, holder_of

    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        holder = holder_of(settings.home)
        if holder is not None and holder.url:
            return holder.url
        try:
            return Home(settings.home)
        except StartupError:
            if holder_of(settings.home) is None or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)
