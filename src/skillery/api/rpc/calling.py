"""One call of a method, whichever door it came in by: decode, authorise, call; what came of it is noted."""

from __future__ import annotations

import asyncio
import difflib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import msgspec

from skillery import access
from skillery.api.errors import METHOD_NOT_FOUND, encode, error_object, plain_error, unexpected
from skillery.api.refusing import is_refusal, note_refusal, subject_of
from skillery.api.rpc.explaining import explain
from skillery.api.rpc.methods import CALLABLE, Method
from skillery.api.rpc.params import Params
from skillery.api.services import Services
from skillery.backends import Identity
from skillery.errors import InvalidParams, SkilleryError, Unavailable
from skillery.idempotency import canonical, digest_of
from skillery.request import current
from skillery.threads import BIG_TEXT, JSON
from skillery.tracing import span

UNKNOWN = "unknown"
BIG_PARAMS = 1024 * 1024
Caller = Identity | Unavailable
"""Unavailable where it cannot be found out now who calls: every call is answered with it."""
RawParams = msgspec.Raw | msgspec.UnsetType
T = TypeVar("T")
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def perform(
    services: Services,
    identity: Caller,
    name: str,
    params: RawParams,
    key: str | None,
    finish: Callable[[Any], T],
    methods: Mapping[str, Method] = CALLABLE,
) -> tuple[T | None, dict[str, Any]]:
    """What `finish` makes of the method's result and {}, or None and an error object. With a key, a call of a method
    that heeds one is made once, however often it comes."""
    failed: dict[str, Any] = {}
    finished: T | None = None
    begun = time.perf_counter()
    known = name if name in methods else UNKNOWN  # another is somebody's text, of which there is no end
    with span("rpc", **{"rpc.method": known}) as traced:
        try:
            finished = finish(await _call_method(services, identity, name, params, key, methods))
        except _Unknown as unknown:
            failed = unknown.error
        except SkilleryError as error:
            failed = error_object(error)
        except Exception as error:  # noqa: BLE001 - the last resort: it is logged, and the caller gets an answer
            failed = unexpected(error)
        if failed and traced is not None:
            traced.set_attribute("rpc.jsonrpc.error_code", failed["code"])
    request = current.get()
    if request is not None:
        request.calls.append((known, failed["code"] if failed else 0, time.perf_counter() - begun))
    return finished, failed


class _Unknown(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        self.error = error


async def _call_method(
    services: Services,
    identity: Caller,
    name: str,
    raw: RawParams,
    key: str | None,
    methods: Mapping[str, Method],
) -> Any:
    if isinstance(identity, Unavailable):
        raise identity
    method = methods.get(name)
    if method is None:
        near = difflib.get_close_matches(name[:80], methods, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(methods)}."
        raise _Unknown(plain_error(METHOD_NOT_FOUND, f"there is no method {name[:80]!r}", "method_not_found", hint))
    try:
        if method.needs is not None:
            access.require(identity, method.needs)
        params = decode_params(method, raw)
        if key is None or not method.once:
            return await method.call(services, identity, params)
        return await _call_once(services, identity, name, method, params, key)
    except SkilleryError as error:
        if is_refusal(error, method.audits):
            given = b"" if raw is msgspec.UNSET else bytes(raw)
            note_refusal(services, identity, name, subject_of(given, method.audits or ""), error)
        raise


async def _call_once(
    services: Services, identity: Identity, name: str, method: Method, params: Any, key: str
) -> msgspec.Raw:
    async def work() -> bytes:
        return encode(await method.call(services, identity, params))

    asked = await _digest_of(name, params)
    return msgspec.Raw(await services.once.call(identity, key, asked, work))


async def _digest_of(method: str, params: Any) -> str:
    """What a call asks, however its JSON was written, with or without what is the default."""
    text = encode(params)
    if len(text) > BIG_TEXT:
        text = await JSON.run(canonical, text)
        return await asyncio.to_thread(digest_of, method.encode(), text)
    return digest_of(method.encode(), canonical(text))


def decode_params(method: Method, raw: RawParams) -> Any:
    """Raises InvalidParams that names the parameter and, for an unknown one, the nearest that there is."""
    text = b"{}" if raw is msgspec.UNSET else bytes(raw)
    if text.startswith(b"["):
        raise InvalidParams("params go by name here", hint='Write "params": {"name": value, …}.')
    if b"null" in text:
        text = _without_nulls(method, text)
    try:
        with _without_collecting(text):
            return _decoder(method.params).decode(text)
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


@cache
def _decoder(params: type[Params]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(params)
