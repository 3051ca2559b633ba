"""The client of a command.

The options --url, --home and --config select the client: a client of the server at --url, of the server that holds the
home, or of an application in this process if no server holds the home.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from skillery.cli.failures import run_async
from skillery.cli.log_lines import show_log
from skillery.cli.options import Target, without_user
from skillery.client import AsyncClient, LoginError, Retries, kept_token
from skillery.client.logins import KeptToken
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.app.home import Holder, Home
    from skillery.settings import Settings

T = TypeVar("T")
WAIT_SECONDS = 30.0
SENT_ONCE = Retries(attempts=1)
"""Commands do not repeat a request if the server is busy or the connection is lost: the user decides about a second
attempt.
"""


class HomeClient(AsyncClient):
    """Client of an application in this process, which holds the home. Runs in the background end with the process."""


def with_client(
    target: Target,
    work: Callable[[AsyncClient], Coroutine[Any, Any, T]],
    *,
    sandbox: bool = False,
    environments: bool = False,
    bundled: bool = True,
) -> T:
    """Call `work` with a client of the target, and return the result of `work`.

    Without `target.url`, the client uses the server that holds the home. If there is none, this process opens the home.
    The options have an effect only if this process opens the home: `sandbox` starts the sandbox, for commands that run
    code, `environments` begins to install the named environments, and `bundled` publishes the bundled skills.
    """

    async def connected() -> T:
        async with connect(target, sandbox=sandbox, environments=environments, bundled=bundled) as client:
            return await work(client)

    return run_async(connected())


def client_of(url: str, token: str | None) -> AsyncClient:
    """Return a client of the server at `url`. If `token` is None, the client uses the kept login for this server.

    Raise StartupError if `url` is not a valid address.
    """
    try:
        # The option --token already has the value of SKILLERY_TOKEN.
        return AsyncClient(url, _kept(url) if token is None else token, retries=SENT_ONCE)
    except (ValueError, httpx.InvalidURL) as error:
        raise StartupError(f"'{without_user(url)}' is not an address of a server: {error}") from None


def _kept(url: str) -> KeptToken | str:
    try:
        return kept_token(url)
    except LoginError:  # no login can be for such an address, for example with a password in it
        return ""


@asynccontextmanager
async def connect(
    target: Target, *, sandbox: bool = False, environments: bool = False, bundled: bool = True
) -> AsyncIterator[AsyncClient]:
    """Context manager: yield a client of the target. The options have the same meaning as in `with_client`.

    Raise StartupError if `target.url` is not a valid address, or if the home cannot be opened.
    """
    async with AsyncExitStack() as stack:
        if target.url:
            yield await stack.enter_async_context(client_of(target.url, target.token))
            return
        from skillery.app.home import Holder

        settings = target.load().settings
        show_log(settings)
        found = await _server_or_home(settings)
        if isinstance(found, Holder):
            target.check_token((found.auth or "").split(","))
            yield await stack.enter_async_context(client_of(found.url or "", target.token))
            return
        target.check_token(settings.authenticators)
        stack.callback(found.close)
        yield await stack.enter_async_context(
            _in_process(settings, found, target.token, sandbox, environments, bundled)
        )


@asynccontextmanager
async def _in_process(
    settings: Settings, home: Home, token: str | None, sandbox: bool, environments: bool, bundled: bool
) -> AsyncIterator[AsyncClient]:
    import msgspec

    from skillery.app.composition import create_app, open_server
    from skillery.cli.in_process import BASE_URL, InProcessTransport
    from skillery.plugins import load_plugins

    # A command that is interrupted ends immediately, without a grace period.
    settings = msgspec.structs.replace(settings, grace_seconds=0.0)
    plugins = load_plugins(settings.plugins_folder)
    async with open_server(settings, plugins, home, bundled=bundled) as (core, edge):
        if sandbox:
            await core.sandbox.start()
        if environments:
            core.environments.named.start()
        transport = InProcessTransport(create_app(core, edge, for_browsers=False))
        async with HomeClient(BASE_URL, token or "", retries=SENT_ONCE, transport=transport) as client:
            yield client


async def _server_or_home(settings: Settings) -> Holder | Home:
    """Return the server that holds the home. If no server holds the home, lock the home and return it.

    Wait for a server that is starting, and for other commands that hold the home: up to WAIT_SECONDS for each
    process. Raise StartupError if the home cannot be locked.
    """
    from skillery.app.home import Home, HomeInUse, holder_of

    deadline = time.monotonic() + WAIT_SECONDS
    awaited: Holder | None = None
    while True:
        holder = holder_of(settings.home)
        if holder is not None and holder.url:
            return holder
        if holder is not None and holder != awaited:
            awaited, deadline = holder, time.monotonic() + WAIT_SECONDS
        try:
            return Home(settings.home)
        except HomeInUse:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)
