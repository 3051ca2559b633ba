"""`POST /mcp`: the Model Context Protocol. The endpoint authenticates the caller, and the MCP SDK reads most messages.

Requests are independent, so any server of a database can answer any request. Clients of protocol versions before
2026-07-28 get a session id. The session id serves only to cancel calls: the server keeps no other state of a session.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.backends import Identity
from skillery.client_source.model_tools import short_guide
from skillery.context.request import current
from skillery.errors import InvalidParams
from skillery.http.gate import Gate
from skillery.http.operations import Body, Operation, Response, in_query
from skillery.http.requests import JSON, HttpRefusal, check_json, only, read_body
from skillery.mcp.requests import EVENTS, SCOPE_KEY, ActiveCalls, TaskTerms, Visit, asked_tools, without_arguments
from skillery.methods.core import Core
from skillery.methods.errors import INVALID_PARAMS, plain_error

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

SESSION = b"mcp-session-id"
INITIALIZE, CANCELLED = "initialize", "notifications/cancelled"
GREETINGS = {INITIALIZE, "server/discover"}
"""The methods whose results contain instructions for the model."""


OPERATIONS = (
    Operation(
        "POST",
        "/mcp",
        "The Model Context Protocol over streamable HTTP",
        {
            200: Response("A message of MCP, or a stream of messages.", Any, (JSON, EVENTS)),
            202: Response("The answer to notifications.", kinds=()),
            400: Response("An error of MCP: the body is not a message of MCP.", Any),
            404: Response("An error of MCP: the method does not exist.", Any),
        },
        (408, 413, 415),
        description="MCP describes itself. `?tools=` names further methods, and skills whose tools are offered too.",
        parameters=(
            in_query("tools", "search_skills, create_skill, output_schemas, names of skills, with commas between."),
        ),
        body=Body(JSON, Schema(type=[OpenAPIType.OBJECT, OpenAPIType.ARRAY]), "A message of MCP."),
        tag="MCP",
    ),
)


class _Message(msgspec.Struct):
    """The members of an MCP message that the endpoint reads itself."""

    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _ClientInfo(msgspec.Struct):
    name: str = ""


class _Meta(msgspec.Struct):
    client: _ClientInfo = msgspec.field(name="io.modelcontextprotocol/clientInfo", default_factory=_ClientInfo)


class _ClientParams(msgspec.Struct):
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)


class _ClientMessage(msgspec.Struct):
    """The members of a message that name the client program. Messages have them since protocol version 2026-07-28."""

    params: _ClientParams = msgspec.field(default_factory=_ClientParams)


class _Cancelled(msgspec.Struct):
    """The params of `notifications/cancelled`."""

    request_id: str | int = msgspec.field(name="requestId")


_message = msgspec.json.Decoder(_Message)
_client = msgspec.json.Decoder(_ClientMessage)
_cancelled = msgspec.json.Decoder(_Cancelled)


class McpEndpoint:
    """Answers frequent messages with `respond`, and passes other messages to the MCP SDK.

    The SDK calls the handlers in `skillery.mcp.server`.
    """

    def __init__(self, gate: Gate, core: Core, max_body_bytes: int, terms: TaskTerms) -> None:
        """Store the parts. `max_body_bytes` limits the body of one request."""
        self._gate = gate
        self._core = core
        self._max_body_bytes = max_body_bytes
        self._terms = terms
        self._calls = ActiveCalls()
        self._opening: asyncio.Task[StreamableHTTPSessionManager] | None = None
        self._open: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Answer a request to `POST /mcp`. Raise HttpRefusal if the request is refused before the SDK reads it."""
        only(scope, "POST")
        check_json(headers)
        identity = await self._gate.authenticate(scope, headers)
        tools = _requested_tools(scope)
        manager = await self._sdk()
        from skillery.mcp.responder import respond  # imports the SDK, which the first request loads

        if isinstance(identity, Identity):
            identity = msgspec.structs.replace(identity, through_mcp=True)
        visit = Visit(self._core, identity, self._calls, headers, tools, self._terms)
        whole = await read_body(receive, headers, self._max_body_bytes)
        body, visit.arguments = await without_arguments(whole)
        del whole
        _note_client(body)
        if await respond(visit, scope, headers, body, send):
            return
        message = _peek(body)
        if message.method == CANCELLED:
            self._take_back(visit, message)
        if message.method in GREETINGS:
            await _set_instructions(visit)
        if message.method == INITIALIZE and visit.session is None:
            send = _with_session(send)
        await manager.handle_request(_scope_of(scope, visit), _again(body, receive), visit.splices.into(send))

    async def close(self) -> None:
        """Stop the MCP SDK. The server calls this when it stops."""
        self._closing.set()
        if self._open is not None:
            await asyncio.wait({self._open})

    async def _sdk(self) -> StreamableHTTPSessionManager:
        """Return the manager of the MCP SDK, which the first request makes."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._make())
        return self._opening.result() if self._opening.done() else await asyncio.shield(self._opening)

    async def _make(self) -> StreamableHTTPSessionManager:
        """Import the MCP SDK, and return its started manager."""
        # Import in a worker thread, because the import takes half a second.
        await asyncio.to_thread(_import_sdk)
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from skillery.mcp.server import make_server

        # The SDK does not check hosts and origins, because `Gate.check_browser` has done so.
        manager = StreamableHTTPSessionManager(
            make_server(), stateless=True, max_request_body_size=self._max_body_bytes
        )
        ready = asyncio.Event()
        self._open = asyncio.create_task(self._hold(manager, ready))
        await ready.wait()
        return manager

    async def _hold(self, manager: StreamableHTTPSessionManager, ready: asyncio.Event) -> None:
        """Keep the manager of the SDK open until `close`.

        The manager has an anyio task group, which must be entered and left by the same task.
        """
        async with manager.run():
            ready.set()
            await self._closing.wait()

    def _take_back(self, visit: Visit, message: _Message) -> None:
        """Cancel the runs of the call that a `notifications/cancelled` message names.

        Clients of protocol versions since 2026-07-28 send no such message: they close the response.
        """
        try:
            request_id = _cancelled.decode(message.params).request_id
        except msgspec.DecodeError:
            return
        if visit.session is not None:
            runs = self._calls.runs_of((visit.identity.name, visit.session, request_id))
            self._calls.take_back(visit.core, visit.identity, runs)


def _import_sdk() -> None:
    import skillery.mcp.responder
    import skillery.mcp.server  # noqa: F401


def _requested_tools(scope: Any) -> tuple[str, ...]:
    """Return the names in `?tools=`. Raise HttpRefusal 400 if they are invalid."""
    try:
        return asked_tools(scope.get("query_string", b""))
    except InvalidParams as error:
        refused = plain_error(INVALID_PARAMS, error.message, "invalid_params", error.hint)
        raise HttpRefusal(400, refused) from None


async def _set_instructions(visit: Visit) -> None:
    from skillery.mcp.server import INSTRUCTIONS, instructions

    instructions.set(f"{INSTRUCTIONS} {await short_guide(visit.core, visit.identity, visit.included)}")


def _peek(body: bytes) -> _Message:
    """Return the method and params of a message. They are empty if the message is invalid: the SDK then refuses it."""
    try:
        return _message.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Message()


def _note_client(body: bytes) -> None:
    """Record the client program for the log, if the message names it. The header User-Agent often names a library."""
    request = current.get()
    try:
        name = _client.decode(body).params.meta.client.name
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if name and request is not None:
        request.agent = name.replace(" ", "-")


def _scope_of(scope: Any, visit: Visit) -> dict[str, Any]:
    """Return the ASGI scope for the SDK: with `visit`, and without blanks around the values of headers.

    The SDK compares headers with the body, and uvicorn keeps trailing blanks.
    """
    return {**scope, "headers": [(name, value.strip()) for name, value in scope["headers"]], SCOPE_KEY: visit}


def _again(body: bytes, receive: Any) -> Any:
    """Return an ASGI `receive` for the SDK: its first result is `body`, later results come from `receive`.

    The endpoint has already read `body` from `receive`.
    """
    is_read = False

    async def receive_again() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _with_session(send: Any) -> Any:
    """Return an ASGI `send` that adds a new session id to the headers of a successful response."""

    async def send_with_session(message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            message = message | {"headers": [*message["headers"], (SESSION, secrets.token_hex(16).encode())]}
        await send(message)

    return send_with_session
