"""JSON-RPC 2.0: decode, authorise, call, encode. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import difflib
import gc
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from skillery import access
from skillery.api.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    encode,
    error_object,
    plain_error,
    unexpected,
)
from skillery.api.refusing import is_refusal, note_refusal, subject_of
from skillery.api.rpc.explaining import explain
from skillery.api.rpc.methods import CALLABLE, Method
from skillery.api.services import Services
from skillery.backends import Identity
from skillery.errors import InvalidParams, SkilleryError, Unavailable
from skillery.idempotency import canonical, digest_of
from skillery.request import current
from skillery.threads import BIG_TEXT, JSON
from skillery.tracing import span

MOST_CALLS = 100
UNKNOWN = "unknown"
BIG_PARAMS = 1024 * 1024
Caller = Identity | Unavailable
"""Unavailable where it cannot be found out now who calls: every call is answered with it."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Call(msgspec.Struct, frozen=True):
    """One request as it came; `id` is unset in a notification."""

    jsonrpc: str
    method: str
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: str | int | float | msgspec.UnsetType | None = msgspec.UNSET


_call = msgspec.json.Decoder(Call)
_calls = msgspec.json.Decoder(list[msgspec.Raw])
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoders = {name: msgspec.json.Decoder(method.params) for name, method in CALLABLE.items()}


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
    failed: dict[str, Any] | None = None
    begun = time.perf_counter()
    method = call.method if call.method in CALLABLE else UNKNOWN  # another is somebody's text, of which there is no end
    with span("rpc", **{"rpc.method": method}) as traced:
        try:
            result = await _call_method(services, identity, call, key)
            encoded = encode({"jsonrpc": "2.0", "id": reply_to, "result": result})
        except _Unknown as unknown:
            failed = unknown.error
        except SkilleryError as error:
            failed = error_object(error)
        except Exception as error:  # noqa: BLE001 - the last resort: it is logged, and the caller gets an answer
            failed = unexpected(error)
        if failed is not None and traced is not None:
            traced.set_attribute("rpc.jsonrpc.error_code", failed["code"])
    if failed is not None:
        encoded = _failure(reply_to, failed)
    request = current.get()
    if request is not None:
        request.calls.append((method, failed["code"] if failed else 0, time.perf_counter() - begun))
    return None if call.id is msgspec.UNSET else encoded


class _Unknown(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        self.error = error


async def _call_method(services: Services, identity: Caller, call: Call, key: str | None) -> Any:
    if isinstance(identity, Unavailable):
        raise identity
    method = CALLABLE.get(call.method)
    if method is None:
        near = difflib.get_close_matches(call.method[:80], CALLABLE, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(CALLABLE)}."
        raise _Unknown(
            plain_error(METHOD_NOT_FOUND, f"there is no method {call.method[:80]!r}", "method_not_found", hint)
        )
    try:
        if method.needs is not None:
            access.require(identity, method.needs)
        params = decode_params(call.method, method, call.params)
        if key is None or not method.once:
            return await method.call(services, identity, params)
        return await _call_once(services, identity, call, method, params, key)
    except SkilleryError as error:
        if is_refusal(error, method.audits):
            given = b"" if call.params is msgspec.UNSET else bytes(call.params)
            note_refusal(services, identity, call.method, subject_of(given, method.audits or ""), error)
        raise


async def _call_once(
    services: Services, identity: Identity, call: Call, method: Method, params: Any, key: str
) -> msgspec.Raw:
    async def work() -> bytes:
        return encode(await method.call(services, identity, params))

    asked = await _digest_of(call.method, params)
    return msgspec.Raw(await services.once.call(identity, key, asked, work))


async def _digest_of(method: str, params: Any) -> str:
    """What a call asks, however its JSON was written, with or without what is the default."""
    text = encode(params)
    if len(text) > BIG_TEXT:
        text = await JSON.run(canonical, text)
        return await asyncio.to_thread(digest_of, method.encode(), text)
    return digest_of(method.encode(), canonical(text))


def decode_params(name: str, method: Method, raw: msgspec.Raw | msgspec.UnsetType) -> Any:
    """Raises InvalidParams that names the parameter and, for an unknown one, the nearest that there is."""
    text = b"{}" if raw is msgspec.UNSET else bytes(raw)
    if text.startswith(b"["):
        raise InvalidParams("params go by name here", hint='Write "params": {"name": value, …}.')
    if b"null" in text:
        text = _without_nulls(method, text)
    try:
        with _without_collecting(text):
            return _decoders[name].decode(text)
    except (msgspec.ValidationError, RecursionError) as error:
        raise explain(error, method.params, text) from None


@contextmanager
def _without_collecting(text: bytes) -> Iterator[None]:
    """Nothing that decoding makes is rubbish: looking through millions of new objects takes five times as long as
    making them, and nobody else is answered meanwhile."""
    if len(text) < BIG_PARAMS:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _without_nulls(method: Method, text: bytes) -> bytes:
    """An explicit null equals a parameter that was left out; an unknown one stays, to be refused."""
    if text == b"null":
        return b"{}"
    try:
        given = _names.decode(text)
    except msgspec.ValidationError:
        return text
    known = method.params.__struct_encode_fields__
    return encode({key: value for key, value in given.items() if key not in known or bytes(value) != b"null"})


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
