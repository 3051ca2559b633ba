"""The execution of a method: check the scope, decode the params, call the function, encode the result, record
refusals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec

from skillery.backends import Identity
from skillery.context.budget import answer_room
from skillery.context.request import current, span, tool_call
from skillery.context.threads import BIG_TEXT, JSON
from skillery.errors import Busy, SkilleryError, Unavailable
from skillery.evaluations.tools import Refusal
from skillery.formats.json_pieces import JsonPieces
from skillery.formats.wording import nearest
from skillery.identity import access
from skillery.identity.idempotency import canonical, digest_of
from skillery.method import Handler, Json, Method, Params
from skillery.methods.core import Core
from skillery.methods.errors import (
    METHOD_NOT_FOUND,
    RawParams,
    _decoder,
    changed,
    codes_of,
    decode_params,
    encode,
    error_object,
    is_refusal,
    plain_error,
    subject_of,
    unexpected,
)
from skillery.methods.table import METHODS, TOOLS

UNKNOWN = "unknown"
SHOWN_METHODS = 9
"""The number of methods that the error for an unknown method names: those of the Skills Protocol."""
Caller = Identity | Unavailable
"""The identity of the caller, or the error Unavailable if the database cannot authenticate the caller now."""
Parts = Sequence[bytes | memoryview]
"""The parts of a JSON text, in order."""


async def perform(
    core: Core,
    identity: Caller,
    name: str,
    params: RawParams,
    key: str | None,
    methods: Mapping[str, Method] = METHODS,
) -> tuple[Parts | None, dict[str, Any]]:
    """Call a method. Return its result as JSON and {}. If the call fails, return None and an error object.

    If `key` is given, a method that honours idempotency keys is executed at most once for this key. The bytes of the
    result are counted in `answer_room`.
    """
    failed: dict[str, Any]
    try:
        with _recorded(name if name in methods else UNKNOWN):
            return _counted(await _call_method(core, identity, name, params, key, methods)), {}
    except _Unknown as unknown:
        failed = unknown.error
    except SkilleryError as error:
        failed = error_object(error)
    except Exception as error:  # noqa: BLE001 - it is logged, and the caller gets an error
        failed = unexpected(error)
    return None, failed


async def call_directly(core: Core, identity: Identity, name: str, params: Mapping[str, Any]) -> Any:
    """Call a method for a part of the server, which has checked the rights of the identity. Return its result as JSON
    values. Raise Refusal if it refuses the params, and the errors of methods that do not work now.
    """
    method = METHODS[name]
    try:
        decoded = decode_params(method, msgspec.Raw(encode(params)))
        result = await method.call(core.parts[method.part], identity, decoded)
    except (Busy, Unavailable):
        raise
    except SkilleryError as error:
        raise Refusal(error.message) from None
    return msgspec.json.decode(b"".join(encoded_parts(result)))


async def execute(core: Core, identity: Caller, call: Handler, params: Params, key: str | None) -> Any:
    """Call a method of METHODS by its function. Return its result. Raise its errors. `key` is an idempotency key or
    None.
    """
    name = call.__name__
    with _recorded(name):
        # msgspec checks the bounds of params only while it decodes them.
        result = await _call_method(core, identity, name, msgspec.Raw(encode(changed(params))), key, METHODS)
        text = _counted(result)
        decoded = _decoder(METHODS[name].result).decode(b"".join(text)) if isinstance(result, Json) else result
        answer_room.get().release(sum(map(len, text)))
        return decoded


@contextmanager
def _recorded(name: str) -> Iterator[None]:
    """Add the call in the `with` block to the metrics and the trace of the request.

    If the call fails, release the bytes that are reserved for its result.
    """
    started_at, code = time.perf_counter(), None
    request = current.get()
    if request is not None:
        request.method = name
    try:
        with span("rpc", **{"rpc.method": name}) as traced, tool_call(traced, name, is_tool=name in TOOLS):
            try:
                yield
                code = 0
            except Exception as error:
                code = METHOD_NOT_FOUND if isinstance(error, _Unknown) else codes_of(error).rpc
                if traced is not None:
                    traced.set_attribute("rpc.jsonrpc.error_code", code)
                answer_room.get().drop()
                raise
    finally:
        if request is not None and code is not None:  # None: the call is cancelled
            request.calls.append((name, code, time.perf_counter() - started_at))


def _counted(result: Any) -> Parts:
    """Return a result as JSON, and count its bytes in the budget. Raise the errors of `Room.keep`."""
    parts = encoded_parts(result)
    answer_room.get().keep(sum(map(len, parts)))
    return parts


def encoded_parts(result: Any) -> Parts:
    """Return a result as JSON, in parts. A result that is JSON already is not copied."""
    if not isinstance(result, Json):
        return [encode(result)]
    return result.text if isinstance(result.text, JsonPieces) else [memoryview(result.text)]


class _Unknown(Exception):
    """Raised for an unknown method. `error` is the error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.error = error


async def _call_method(
    core: Core,
    identity: Caller,
    name: str,
    raw: RawParams,
    key: str | None,
    methods: Mapping[str, Method],
) -> Any:
    """Return the result of a method. Raise its errors, _Unknown, or Unavailable if the caller is that error."""
    if isinstance(identity, Unavailable):
        raise identity
    method = methods.get(name)
    if method is None:
        near = nearest(name, methods)
        first = ", ".join(islice(methods, SHOWN_METHODS))
        hint = f"Did you mean '{near}'?" if near else f"There are {first} and others: rpc.discover lists all methods."
        raise _Unknown(plain_error(METHOD_NOT_FOUND, f"there is no method {name[:80]!r}", "method_not_found", hint))
    try:
        if method.needs is not None and not (method.for_auditors and access.is_auditor(identity)):
            access.require(identity, method.needs)
        # After a change, its result must not be refused.
        answer_room.get().begin(name, is_refusable=not (method.once or method.audits))
        params = decode_params(method, raw)
        if method.develops:
            identity = core.developer.overlays.of(identity)
        if key is None or not method.once:
            return await method.call(core.parts[method.part], identity, params)
        return await _call_once(core, identity, name, method, params, key)
    except SkilleryError as error:
        if is_refusal(error, method.audits):
            text = b"" if raw is msgspec.UNSET else raw
            _note_refusal(core, identity, name, subject_of(text, method.audits or ""), error)
        raise


def _note_refusal(core: Core, identity: Identity, action: str, subject: str, error: SkilleryError) -> None:
    core.refusals.note(identity, action, subject, code=codes_of(error).rpc, error_type=error.type)


async def _call_once(core: Core, identity: Identity, name: str, method: Method, params: Any, key: str) -> Json[Any]:
    """Call a method at most once for an idempotency key. Return its first result."""

    async def work() -> bytes:
        return b"".join(encoded_parts(await method.call(core.parts[method.part], identity, params)))

    digest = await _digest_of(name, params)
    return Json(msgspec.Raw(await core.once.call(identity, key, digest, work)))


async def _digest_of(method: str, params: Any) -> str:
    """Return the digest of a call, by which a repeated call is recognised.

    The format of the JSON and explicit defaults do not change the digest.
    """
    text = encode(params)
    if len(text) > BIG_TEXT:
        text = await JSON.run(canonical, text)
        return await asyncio.to_thread(digest_of, method.encode(), text)
    return digest_of(method.encode(), canonical(text))
