"""`POST /rpc`: JSON-RPC 2.0 over HTTP."""

from __future__ import annotations

from functools import partial
from typing import Any

from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.api.rpc.dispatch import answer_body
from skillery.api.rpc.envelope import Reply
from skillery.context.queue import until_client_gone
from skillery.edge.gate import Gate
from skillery.edge.http import JSON, HttpRefusal, check_json, disconnected, only, read_body, send_parts
from skillery.edge.operations import Body, Operation, Response
from skillery.errors import Busy, Unavailable
from skillery.methods.answers import Answers, HeldAnswer
from skillery.methods.budgets import Bodies
from skillery.methods.core import Core
from skillery.methods.errors import error_object
from skillery.methods.execution import Caller

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
    """Reads the body of a request, passes it to `answer_body`, and sends the answer."""

    def __init__(self, gate: Gate, core: Core, bodies: Bodies, answers: Answers, max_body_bytes: int) -> None:
        self._gate = gate
        self._core = core
        self._bodies = bodies
        self._answers = answers
        self._max_body_bytes = max_body_bytes

    async def answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        only(scope, "POST")
        check_json(headers)
        caller = await self._caller(scope, headers)
        with self._bodies.hold() as held:
            try:
                body = await read_body(receive, headers, self._max_body_bytes, held)
            except Busy as busy:
                # Answer like an error of a method. The id is null, because the body with the id was not read.
                raise HttpRefusal(200, error_object(busy)) from None
            until_client_gone.set(partial(disconnected, receive))
            with self._answers.hold() as room:
                reply = await answer_body(self._core, caller, body, room, headers.get("idempotency-key"))
                # The client may read the answer slowly, and the body is no longer needed.
                del body
                held.give_back()
                await _send_reply(send, reply, room)

    async def _caller(self, scope: Any, headers: dict[str, str]) -> Caller:
        """Return the caller. If the database is unavailable, return the error Unavailable, which then answers each
        call.
        """
        try:
            return await self._gate.authenticate(scope, headers)
        except Unavailable as error:
            return error


async def _send_reply(send: Any, reply: Reply | None, room: HeldAnswer) -> None:
    if reply is None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    await send_parts(send, reply, room)
