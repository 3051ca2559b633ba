"""JSON-RPC 2.0: decode, authorise, call, encode. Knows nothing of HTTP."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from skillery.api.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    encode,
    plain_error,
)
from skillery.api.rpc.calling import Caller, perform
from skillery.api.services import Services

MOST_CALLS = 100
_SURROGATE = re.compile("[\ud800-\udfff]")


class Call(msgspec.Struct, frozen=True):
    """One request as it came; `id` is unset in a notification."""

    jsonrpc: str
    method: str
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: str | int | float | msgspec.UnsetType | None = msgspec.UNSET


_call = msgspec.json.Decoder(Call)
_calls = msgspec.json.Decoder(list[msgspec.Raw])


async def answer(services: Services, identity: Caller, body: bytes, key: str | None = None) -> bytes | None:
    """The answer to a request body, None where there is none to give (notifications only). With a key, a call of a
    method that heeds one is made once, however often it comes."""
    if not _is_utf8(body):
        return _failure(None, plain_error(PARSE_ERROR, "the body is not JSON: it is not UTF-8", "parse_error"))
    start = body.lstrip(b" \t\r\n")[:1]
    if start != b"[":
        return await _answer_one(services, identity, body, key)
    if key is not None:
        message = "an Idempotency-Key goes with one call, not with a batch"
        hint = "Send the calls one by one, each with a key of its own."
        return _failure(None, plain_error(INVALID_REQUEST, message, "invalid_request", hint))
    return await _answer_batch(services, identity, body)


def _is_utf8(body: bytes) -> bool:
    """Asked once for all of it: what decoding skips over, it does not look at as text."""
    try:
        return body.isascii() or body.decode() is not None
    except UnicodeDecodeError:
        return False


async def _answer_batch(services: Services, identity: Caller, body: bytes) -> bytes | None:
    try:
        calls = _calls.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        lenient = _lenient(body)
        if not isinstance(lenient, list):
            return _failure(None, _parse_error(error))
        calls = [msgspec.Raw(json.dumps(one).encode()) for one in lenient]
    if not 1 <= len(calls) <= MOST_CALLS:
        message = f"a batch holds 1 to {MOST_CALLS} calls, not {len(calls)}"
        return _failure(None, plain_error(INVALID_REQUEST, message, "invalid_request"))
    answers = [await _answer_one(services, identity, bytes(call)) for call in calls]
    given = [one for one in answers if one is not None]
    return b"[" + b",".join(given) + b"]" if given else None


async def _answer_one(services: Services, identity: Caller, body: bytes, key: str | None = None) -> bytes | None:
    try:
        call = _call.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _refuse(body, error)
    reply_to = None if call.id is msgspec.UNSET else call.id
    if call.jsonrpc != "2.0":
        error_ = plain_error(INVALID_REQUEST, "'jsonrpc' must be \"2.0\"", "invalid_request")
        return _failure(reply_to, error_)

    def whole(result: Any) -> bytes:
        return encode({"jsonrpc": "2.0", "id": reply_to, "result": result})

    encoded, failed = await perform(services, identity, call.method, call.params, key, whole)
    if call.id is msgspec.UNSET:
        return None
    return _failure(reply_to, failed) if encoded is None else encoded


# -- what is not a request ---------------------------------------------------------------------------------------


def _refuse(body: bytes, error: Exception) -> bytes | None:
    """The answer to what could not be decoded as a Call: told apart as JSON-RPC 2.0 does."""
    value = _lenient(body)
    if value is _NOT_JSON:
        return _failure(None, _parse_error(error))
    if not isinstance(value, dict):
        return _failure(None, plain_error(INVALID_REQUEST, "a call is an object", "invalid_request"))
    reply_to = value.get("id")
    if isinstance(reply_to, bool) or not isinstance(reply_to, str | int | float | None) or _has_surrogate(reply_to):
        return _failure(
            None, plain_error(INVALID_REQUEST, "'id' must be a string, a number or null", "invalid_request")
        )
    if value.get("jsonrpc") == "2.0" and isinstance(value.get("method"), str) and _has_surrogate(value):
        message = "a text in this call holds a lone surrogate, which is no character"
        failure = _failure(reply_to, plain_error(INVALID_PARAMS, message, "invalid_params", "Send valid Unicode."))
        return failure if "id" in value else None
    message = "a call has 'jsonrpc': \"2.0\", a 'method', and may have 'params' and an 'id'"
    return _failure(reply_to, plain_error(INVALID_REQUEST, message, "invalid_request"))


_NOT_JSON = object()


def _lenient(body: bytes) -> Any:
    """The value of any JSON text that RFC 8259's grammar allows, lone surrogates and huge numbers included."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _has_surrogate(value: Any) -> bool:
    return bool(_SURROGATE.search(json.dumps(value, ensure_ascii=False)))


def _parse_error(error: Exception) -> dict[str, Any]:
    reason = (
        "it is nested too deeply"
        if isinstance(error, RecursionError)
        else str(error).removeprefix("JSON is malformed: ")
    )
    return plain_error(PARSE_ERROR, f"the body is not JSON: {reason}", "parse_error")


def _failure(reply_to: Any, error: dict[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "id": reply_to, "error": error})
