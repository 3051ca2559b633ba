"""The doors, as ASGI routes: they decode once, and nothing stands between them and the core."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from litestar import asgi
from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.types import ASGIApp

from skillery.api import api_documents, blobs, health, imports, run_events
from skillery.api.answers import HeldAnswer
from skillery.api.downloads import DOWNLOADS, Download, routed
from skillery.api.errors import INVALID_PARAMS, NOT_FOUND, encode, error_object, plain_error, unexpected
from skillery.api.exchanges import ClientGone, Exchange, log_request
from skillery.api.http import (
    FORBIDDEN,
    JSON,
    HttpRefusal,
    Part,
    authenticate,
    check_browser,
    check_json,
    disconnected,
    headers_of,
    only,
    read_body,
    send_bytes,
    send_error,
    send_parts,
    send_refusal,
)
from skillery.api.operations import Answer, Body, Operation, in_query
from skillery.api.prompt import prompt_for
from skillery.api.refusals import note_knock
from skillery.api.rpc.dispatch import Caller
from skillery.api.rpc.envelope import answer
from skillery.api.rpc.environment_params import shown_properties
from skillery.api.rpc.methods import METHODS
from skillery.api.rpc.schemas import FORMATS, tool
from skillery.api.services import Services
from skillery.api.v1.endpoints import V1_ENDPOINTS, V1Endpoint
from skillery.context.queue import until_client_gone
from skillery.context.tracing import starting
from skillery.errors import Busy, SkilleryError, Unavailable

Door = Callable[[Services, Any, Any, Any, dict[str, str]], Awaitable[None]]

Object = dict[str, Any]
EVENTS = "text/event-stream"
TEXT = "text/plain"
_RPC = (
    Operation(
        "POST",
        "/rpc",
        "JSON-RPC 2.0",
        {
            200: Answer("The answer, or those of a batch, errors too.", Any),
            204: Answer("To notifications.", kinds=()),
        },
        (408, 413, 415),
        description="/openrpc.json tells of its methods, and rpc.discover.",
        body=Body(JSON, Schema(type=[OpenAPIType.OBJECT, OpenAPIType.ARRAY]), "A call, or a batch of calls."),
        tag="JSON-RPC",
    ),
)


async def _rpc(services: Services, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    only(scope, "POST")
    check_json(headers)
    identity = await _caller(services, scope, headers)
    with services.bodies.hold() as held:
        try:
            body = await read_body(receive, headers, services.max_body_bytes, held)
        except Busy as busy:
            # As any error of a method, but for the id, which is in the body.
            raise HttpRefusal(200, error_object(busy)) from None
        until_client_gone.set(partial(disconnected, receive))
        with services.answers.hold() as room:
            reply = await answer(services, identity, body, room, headers.get("idempotency-key"))
            # The answer may be read slowly, and the body is needed no more.
            del body
            held.give_back()
            await _send_reply(send, reply, room)


async def _send_reply(send: Any, reply: deque[Part] | None, room: HeldAnswer) -> None:
    if reply is None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    await send_parts(send, reply, room)


async def _caller(services: Services, scope: Any, headers: dict[str, str]) -> Caller:
    """A database that is away is an answer to each call, as it is everywhere else."""
    try:
        return await authenticate(services, scope, headers)
    except Unavailable as error:
        return error


_MCP = (
    Operation(
        "POST",
        "/mcp",
        "The Model Context Protocol over streamable HTTP",
        {
            200: Answer("A message of MCP, or a stream of them.", Any, (JSON, EVENTS)),
            202: Answer("To notifications.", kinds=()),
            400: Answer("An error of MCP: what came is no message of it.", Any),
            404: Answer("An error of MCP: there is no such method.", Any),
        },
        (408, 413, 415),
        description="Described by MCP itself; `?tools=` names methods and skills whose tools are offered besides.",
        parameters=(in_query("tools", "search_skills, create_skill and names of skills, with commas between."),),
        body=Body(JSON, Schema(type=[OpenAPIType.OBJECT, OpenAPIType.ARRAY]), "A message of MCP."),
        tag="MCP",
    ),
)
_TOOLS = (
    Operation(
        "GET",
        "/tools",
        "The tools that a model is shown",
        {200: Answer("A schema for each.", list[Object])},
        (400,),
        parameters=(
            in_query("format", "In whose shape; openai where it is left out.", enum=FORMATS),
            in_query("include", "Further methods, with commas between: search_skills, create_skill."),
        ),
    ),
)


async def _tools(services: Services, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """`GET /tools?format=openai|anthropic|mcp|jsonschema[&include=search_skills,create_skill]`."""
    only(scope, "GET", "HEAD")
    await authenticate(services, scope, headers)
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    form = query.get("format", ["openai"])[-1]
    if form not in FORMATS:
        message = f"there is no format {form[:40]!r}"
        hint = f"There are {', '.join(FORMATS)}."
        raise HttpRefusal(400, plain_error(INVALID_PARAMS, message, "invalid_params", hint))
    asked_for = {name for part in query.get("include", []) for name in part.split(",") if name}
    unknown = sorted(asked_for - METHODS.keys())
    if unknown:
        raise HttpRefusal(
            400, plain_error(INVALID_PARAMS, f"there is no method {unknown[0][:40]!r} to include", "invalid_params")
        )
    more = shown_properties(services.named.defined)
    shown = [tool(name, one.params, form, more) for name, one in METHODS.items() if one.is_tool or name in asked_for]
    await send_bytes(send, 200, encode(shown))


_PROMPT = (
    Operation("GET", "/prompt", "The system prompt for a model with the tools", {200: Answer("Text.", kinds=(TEXT,))}),
)


async def _prompt(services: Services, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    only(scope, "GET", "HEAD")
    identity = await authenticate(services, scope, headers)
    await send_bytes(send, 200, (await prompt_for(services, identity)).encode(), "text/plain; charset=utf-8")


async def _blobs(services: Services, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    """`/blobs` and all below it: Litestar's ASGI routes take no path parameters."""
    address = scope["raw_path"].partition(b"?")[0]
    if address != b"/blobs" and not address.startswith(b"/blobs/"):
        # A mount takes every address that begins like it.
        raise HttpRefusal(404, plain_error(NOT_FOUND, "there is nothing at this address", "not_found"))
    blob_id = scope["path"].strip("/")
    if blob_id:
        await blobs.send_blob(services, scope, send, headers, blob_id)
    else:
        await blobs.receive_blob(services, scope, receive, send, headers)


def make_routes(services: Services) -> list[Any]:
    """Every route of the API for Litestar."""

    def opened(path: str, door: Door, *, rpc: bool = False, guarded: bool = True) -> ASGIApp:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            headers = headers_of(scope)
            exchange = Exchange(scope, headers, receive, send, services.answer_seconds)
            if services.tracing is not None:
                starting.set(services.tracing.start)
            begun = time.perf_counter()
            try:
                if guarded:
                    check_browser(services, scope, headers)
                await door(services, scope, exchange.receive, exchange.send, headers)
            except HttpRefusal as refusal:
                if refusal.status == FORBIDDEN:
                    note_knock(services, refusal.error)
                await send_refusal(exchange.send, refusal, rpc=rpc)
            except SkilleryError as error:
                await send_error(exchange.send, error)
            except ClientGone:
                return
            except Exception as error:
                if exchange.started:
                    # Half an answer is out: breaking the connection is the only way left to say so.
                    raise
                await send_refusal(exchange.send, HttpRefusal(500, unexpected(error)), rpc=rpc)
            finally:
                if services.metrics is not None:
                    services.metrics.note(path, exchange)
                if services.log_requests:
                    log_request(path, scope["method"], exchange, time.perf_counter() - begun)

        return app

    told: list[Operation] = []

    def route(
        path: str,
        door: Door,
        operations: Sequence[Operation],
        *,
        rpc: bool = False,
        guarded: bool = True,
        with_all_below: bool = False,
    ) -> Any:
        told.extend(operations)
        app = opened(path, door, rpc=rpc, guarded=guarded)

        @asgi(path, is_mount=with_all_below, copy_scope=False)
        async def handler(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        return handler

    def downloads(one: Download) -> Any:
        told.extend(one.operations)
        return routed(one.paths, ("GET", "HEAD"), opened(one.group, one.door))

    def v1(one: V1Endpoint) -> Any:
        told.extend(one.operations)
        return routed(one.paths, one.methods, opened("/v1/skills", one.door))

    def events() -> Any:
        told.extend(run_events.OPERATIONS)
        return routed(["/v1/runs/{run_id:str}/events"], ("GET", "HEAD"), opened("/v1/runs", run_events.run_events))

    metrics = services.metrics
    return [
        *([route("/metrics", metrics.answer, metrics.operations)] if metrics is not None else []),
        route("/rpc", _rpc, _RPC, rpc=True),
        route("/openrpc.json", api_documents.send_openrpc, api_documents.OPENRPC),
        route("/mcp", services.mcp.answer, _MCP, rpc=True),
        route("/tools", _tools, _TOOLS),
        route("/prompt", _prompt, _PROMPT),
        route("/blobs", _blobs, blobs.OPERATIONS, with_all_below=True),
        route("/import", imports.receive_archive, imports.OPERATIONS),
        *(downloads(one) for one in DOWNLOADS),
        *(v1(one) for one in V1_ENDPOINTS),
        events(),
        route("/healthz", health.healthz, health.HEALTHZ, guarded=False),
        route("/readyz", health.readyz, health.READYZ, guarded=False),
        route("/v1/openapi.json", api_documents.openapi_endpoint(told), api_documents.OPENAPI),
    ]
