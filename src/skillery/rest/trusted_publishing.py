"""`POST /auth/exchange`: a CI job exchanges the token of its CI service for a token of the registry."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.backends import Identity
from skillery.errors import ExchangeRefused, InvalidParams, NotAuthenticated
from skillery.formats.tokens import CI_PREFIX
from skillery.http.gate import Gate
from skillery.http.operations import Body, Operation, Response
from skillery.http.requests import JSON, HttpRefusal, check_json, only, read_body, send_bytes
from skillery.methods.errors import encode
from skillery.trust.matching import Exchange, ExchangedToken

ADDRESS = "/auth/exchange"
ACTION = "exchange_token"
"""The action in the audit trail for a refused exchange."""
MOST_BYTES = 64 * 1024
_TEXT = Schema(type=OpenAPIType.STRING)
OPERATIONS = (
    Operation(
        "POST",
        ADDRESS,
        "Exchange the token of a CI job for a token of the registry",
        {200: Response("The token, which is valid for 15 minutes.", ExchangedToken)},
        (400, 401, 408, 409, 413, 415, 429),
        description="Trust rules say which jobs may publish which skills. Each token of a job is exchanged once.",
        is_open=True,
        body=Body(
            JSON,
            Schema(type=OpenAPIType.OBJECT, properties={"token": _TEXT, "target": _TEXT}, required=["token"]),
            "The token of the job, and the skill or namespace (`sales.*`) that it publishes. Without a target, the "
            "target of the trust rule counts.",
        ),
    ),
)


class ExchangeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request. See `Exchange.exchange`."""

    token: str
    target: str = ""


class TrustParts(NamedTuple):
    """The parts of the server that the endpoint for exchanges uses."""

    gate: Gate
    exchange: Exchange


async def exchange_token(parts: TrustParts, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Exchange the token in the body, and send the token of the registry."""
    only(scope, "POST")
    check_json(headers)
    request = _exchange_request(await read_body(receive, headers, MOST_BYTES))
    try:
        exchanged = await parts.exchange.exchange(request.token, request.target)
    except NotAuthenticated as error:
        raise _refusal(parts.gate, scope, headers, error) from None
    await send_bytes(send, 200, encode(exchanged), headers=[("cache-control", "no-store")])


def _refusal(gate: Gate, scope: Any, headers: dict[str, str], error: NotAuthenticated) -> HttpRefusal:
    """Return the refusal of an exchange, and record it in the audit trail."""
    reason, issuer = (error.reason, error.issuer) if isinstance(error, ExchangeRefused) else (error.message, "")
    # All jobs of an issuer are one actor: anyone may sign up at a public CI service, and fill the audit trail.
    actor = Identity(f"{CI_PREFIX}{urlsplit(issuer).netloc}", "agent") if issuer else None
    return gate.refused_login(scope, headers, error, action=ACTION, reason=reason, actor=actor)


def _exchange_request(body: bytes) -> ExchangeRequest:
    try:
        return msgspec.json.decode(body, type=ExchangeRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The error of the decoder could contain a part of the token.
        raise InvalidParams(
            "the body is not a request for an exchange", hint='Send {"token": "…", "target": "sales.report"}.'
        ) from None
