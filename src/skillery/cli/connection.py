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
from urllib.parse import urlsplit

import httpx

from skillery.cli.failures import run_async
from skillery.cli.options import Target, without_user
from skillery.cli.output import show_log
from skillery.client import AsyncClient, LoginError, Retries, kept_token
from skillery.client.logins import KeptToken
from skillery.errors import NotAuthenticated, SkilleryError, StartupError, Unavailable

if TYPE_CHECKING:
    from skillery.app.home import Holder, Home
    from skillery.settings.load import Settings


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

    Without `target.url`, the client uses the running server of the home. If none runs, this process opens the home.
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
        server_or_home = await _server_or_home(settings)
        if isinstance(server_or_home, Holder):
            target.check_token((server_or_home.auth or "").split(","))
            yield await stack.enter_async_context(client_of(server_or_home.url or "", target.token))
            return
        target.check_token(settings.authenticators)
        stack.callback(server_or_home.close)
        in_process = _in_process(
            settings,
            server_or_home,
            target.token,
            sandbox=sandbox,
            environments=environments,
            bundled=bundled,
        )
        yield await stack.enter_async_context(in_process)


@asynccontextmanager
async def _in_process(
    settings: Settings, home: Home, token: str | None, *, sandbox: bool, environments: bool, bundled: bool
) -> AsyncIterator[AsyncClient]:
    """Context manager: open the server parts in this process, and yield a client that calls them without a network."""
    import msgspec

    from skillery.app.composition import open_server
    from skillery.app.routes import create_app
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


# HTTP transport to an application in this process. The same client can then use a server, or a home without a
# server.


BASE_URL = "http://localhost"
MAX_QUEUED_MESSAGES = 4


class InProcessTransport(httpx.AsyncBaseTransport):
    """Calls an ASGI application and streams its response.

    The ASGI transport of httpx collects the whole body first, but a blob may be larger than the memory.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(request)
        exchange.start(self._app)
        start = await exchange.next_message()
        return httpx.Response(start["status"], headers=start["headers"], stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and the stream of its response."""

    def __init__(self, request: httpx.Request) -> None:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self._request = request
        self._chunks = aiter(request.stream)
        self._all_sent = False
        self._messages: asyncio.Queue[Any] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._task: asyncio.Task[None] | None = None

    def start(self, app: Callable[..., Any]) -> None:
        self._task = asyncio.create_task(self._run(app))

    async def next_message(self) -> Any:
        """Return the next ASGI message of the application.

        If the application ends without a complete response, raise the exception of the application, or ReadError if
        it raised none.
        """
        message = await self._messages.get()
        if message is None:
            assert self._task is not None
            await self._task
            raise httpx.ReadError("the response is incomplete", request=self._request)
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self.next_message()
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def aclose(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, app: Callable[..., Any]) -> None:
        try:
            await app(_scope(self._request), self._receive, self._messages.put)
        except Exception:
            await self._messages.put(None)
            raise
        await self._messages.put(None)

    async def _receive(self) -> dict[str, Any]:
        if self._all_sent:
            # The client in this process never disconnects before the response, so wait forever.
            await asyncio.Event().wait()
        async for chunk in self._chunks:
            return {"type": "http.request", "body": chunk, "more_body": True}
        self._all_sent = True
        return {"type": "http.request", "body": b"", "more_body": False}


def _scope(request: httpx.Request) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        # The caller is the user of this command line, without a network address.
        "client": None,
        "root_path": "",
    }


# -- Requests of commands to addresses that answer one JSON object -----------------------------------------------------


SECONDS = 30.0
MOST_BYTES = 1024 * 1024


def json_answer(method: str, address: str, **request: Any) -> dict[str, Any]:
    """Return the JSON object of an answer. The errors name the host only: the address may contain a secret.

    Raise NotAuthenticated if the server refuses the caller, Unavailable for each other failure.
    """
    from skillery.client.errors import StrangeAnswer
    from skillery.client.limits import bounded

    host = urlsplit(address).netloc
    try:
        with httpx.Client(timeout=SECONDS, event_hooks=bounded(MOST_BYTES)) as http:
            http.headers["accept-encoding"] = "identity"
            answer = http.request(method, address, **request)
        body = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, StrangeAnswer, ValueError) as error:
        raise Unavailable(f"{host} gives no usable answer ({type(error).__name__})", hint="Try again.") from None
    if not isinstance(body, dict):
        raise Unavailable(f"{host} does not answer with a JSON object", hint="Try again.")
    if answer.status_code != 200:
        raise _error(host, answer.status_code, body)
    return body


def _error(host: str, status: int, answer: dict[str, Any]) -> SkilleryError:
    error = answer.get("error")
    if not isinstance(error, dict):
        return Unavailable(f"{host} answers with status {status}", hint="Try again.")
    data = error.get("data")
    hint = data.get("hint") if isinstance(data, dict) else None
    kind = NotAuthenticated if status in {401, 429} else Unavailable
    return kind(str(error.get("message", status))[:1000], hint=str(hint)[:1000] if hint else None)
