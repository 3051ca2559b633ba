"""`POST /rpc`: JSON-RPC 2.0 over HTTP."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.client_source.openrpc import CALLABLE
from skillery.context.budget import body_room
from skillery.context.queue import until_client_gone
from skillery.errors import Busy, Unavailable
from skillery.http.gate import Gate
from skillery.http.json_texts import TextRefusal, check_text
from skillery.http.operations import Body, Operation, Response
from skillery.http.requests import JSON, HttpRefusal, check_json, disconnected, only, read_body, send_parts
from skillery.methods.core import Core
from skillery.methods.errors import INVALID_REQUEST, error_object, plain_error
from skillery.methods.execution import Caller, perform
from skillery.rpc.envelope import (
    Refused,
    Reply,
    batch_reply,
    error_reply,
    is_batch,
    parse_batch,
    parse_call,
    result_reply,
)

OPERATIONS = (
    Operation(
        "POST",
        "/rpc",
        "JSON-RPC 2.0",
        {
            200: Response("The answer, or the answers to a batch. Errors are answers too.", Any),
            204: Response("The answer to notifications.", kinds=()),
        },
        (408, 413, 415),
        description="/openrpc.json and rpc.discover describe the methods.",
        body=Body(JSON, Schema(type=[OpenAPIType.OBJECT, OpenAPIType.ARRAY]), "A call, or a batch of calls."),
        tag="JSON-RPC",
    ),
)


class RpcEndpoint:
    """Reads the body of a request, executes its calls, and sends their answers."""

    def __init__(self, gate: Gate, core: Core, max_body_bytes: int) -> None:
        self._gate = gate
        self._core = core
        self._max_body_bytes = max_body_bytes

    async def answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Answer a request to `POST /rpc`. Raise HttpRefusal if the body cannot be read."""
        only(scope, "POST")
        check_json(headers)
        caller = await self._caller(scope, headers)
        try:
            body = await read_body(receive, headers, self._max_body_bytes)
        except Busy as busy:
            # Answer like an error of a method. The id is null, because the body with the id was not read.
            raise HttpRefusal(200, error_object(busy)) from None
        until_client_gone.set(partial(disconnected, receive))
        reply = await answer_body(self._core, caller, body, headers.get("idempotency-key"))
        # The client may read the answer slowly, and the body is no longer needed.
        del body
        body_room.get().release()
        await _send_reply(send, reply)

    async def _caller(self, scope: Any, headers: dict[str, str]) -> Caller:
        """Return the caller. If the database is unavailable, return the error Unavailable, which answers all calls."""
        try:
            return await self._gate.authenticate(scope, headers)
        except Unavailable as error:
            return error


async def _send_reply(send: Any, reply: Reply | None) -> None:
    if reply is None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    await send_parts(send, reply)


async def answer_body(core: Core, identity: Caller, body: bytes, key: str | None = None) -> Reply | None:
    """Execute the calls in the body of a request. Return the answer, or None if the body has only notifications.

    `key` is an idempotency key: a call of a method that honours idempotency keys is executed at most once.
    """
    try:
        await check_text(body)
    except TextRefusal as refusal:
        return error_reply(refusal.error)
    if not is_batch(body):
        return await _answer_call(core, identity, body, key)
    if key is not None:
        message = "an Idempotency-Key goes with one call, not with a batch"
        hint = "Send the calls one by one, each with a key of its own."
        return error_reply(plain_error(INVALID_REQUEST, message, "invalid_request", hint))
    return await _answer_batch(core, identity, body)


async def _answer_batch(core: Core, identity: Caller, body: bytes) -> Reply | None:
    """Execute the calls of a batch one after another. Return the answer, or None if all calls are notifications."""
    calls = parse_batch(body)
    if isinstance(calls, Refused):
        return calls.reply
    replies: list[Reply] = []
    for call in calls:
        # Let the server answer other requests between two calls, even if no call awaits anything.
        await asyncio.sleep(0)
        reply = await _answer_call(core, identity, call)
        if reply is not None:
            replies.append(reply)
    return batch_reply(replies)


async def _answer_call(core: Core, identity: Caller, body: bytes | msgspec.Raw, key: str | None = None) -> Reply | None:
    """Execute one call. Return the answer, or None if the call is a notification."""
    call = parse_call(body)
    if isinstance(call, Refused):
        return call.reply
    result, failed = await perform(core, identity, call.method, call.params, key, CALLABLE)
    if call.id is msgspec.UNSET:
        return None
    return error_reply(failed, call.reply_to) if result is None else result_reply(call.reply_to, result)
