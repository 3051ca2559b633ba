"""Execute a method: check the scope, decode the params, call the function, encode the result, and record refusals."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import islice
from typing import Any

import msgspec

from skillery.backends import Identity
from skillery.context.budget import held_answer
from skillery.context.request import current
from skillery.context.threads import BIG_TEXT, JSON, without_collecting
from skillery.context.tracing import span, tool_call
from skillery.errors import InvalidParams, SkilleryError, Unavailable
from skillery.formats.json_pieces import JsonPieces, is_exactly
from skillery.formats.wording import nearest
from skillery.identity import access
from skillery.identity.idempotency import canonical, digest_of
from skillery.method import Handler, Json, Method, Params
from skillery.methods.core import Core
from skillery.methods.errors import (
    METHOD_NOT_FOUND,
    codes_of,
    encode,
    error_object,
    is_refusal,
    plain_error,
    subject_of,
    unexpected,
)
from skillery.methods.table import METHODS, TOOLS
from skillery.runs.limits import ASKABLE

# -- Error messages for params that cannot be decoded ------------------------------------------------------------------


_MISSING = re.compile(r"missing required field `(\w+)`")
MOST_SHOWN = 40
"""Limit of the bytes of a value that an error message repeats."""
_STEP = re.compile(r"\w+|\[\d+\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


@cache
def known_params(params: type[Params]) -> msgspec.json.Decoder[Any]:
    """Return a decoder that decodes only the top level: each known parameter as raw JSON.

    The decoder raises ValidationError at the first unknown parameter, because a body may contain a million of them.
    """
    fields = [
        (field.encode_name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for field in msgspec.structs.fields(params)
    ]
    return msgspec.json.Decoder(msgspec.defstruct(f"Known{params.__name__}", fields, forbid_unknown_fields=True))


def explain(error: Exception, params: type[Params], text: msgspec.Raw) -> InvalidParams:
    """Return the error for params that the decoder refused with `error`.

    The error names the parameter, its type, and its value if the value is short. For an unknown parameter, the error
    suggests the most similar known parameter.
    """
    known = [field.encode_name for field in msgspec.structs.fields(params)]
    try:
        given = msgspec.structs.asdict(known_params(params).decode(text))
    except msgspec.ValidationError as refused:
        unknown = _UNKNOWN.match(str(refused))
        if unknown is None:
            return InvalidParams(
                "params must be an object",
                hint=f"The params are {', '.join(known)}." if known else "The method has no params.",
            )
        return _unknown(unknown[1], known)
    reason, _, where = str(error).partition(" - at `$")
    where = where.removesuffix("`").lstrip(".")
    missing = _MISSING.search(reason)
    if missing:
        path = f"{where}.{missing[1]}" if where else missing[1]
        return InvalidParams(f"the parameter '{path}' is missing", hint=_takes(params, path), param=path)
    value = given.get(where, msgspec.UNSET)
    value = b"" if value is msgspec.UNSET or len(value) > MOST_SHOWN else bytes(value)
    shown = f"{value.decode()}, which is not valid" if value else "not valid"
    message = f"the parameter '{where}' is {shown}: {reason[:1].lower()}{reason[1:]}"
    return InvalidParams(message, hint=_takes(params, where), param=where)


def _unknown(key: str, known: list[str]) -> InvalidParams:
    if key in ASKABLE and "limits" in known:
        return InvalidParams(
            f"there is no parameter {key!r}", hint=f"'{key}' is a limit: write 'limits': {{'{key}': …}}.", param=key
        )
    near = nearest(key, known, cutoff=0.0)
    hint = f"Did you mean '{near}'? " if near else ""
    return InvalidParams(
        f"there is no parameter {key[:80]!r}",
        hint=f"{hint}The params are: {', '.join(known) or 'none'}.",
        param=key[:80],
    )


def _takes(params: type[Params], path: str) -> str:
    """Return a sentence about the valid values of the parameter at `path`, for example `limit` or
    `files[0].encoding`.
    """
    schema = schema_of(params, path)
    if "properties" in schema:
        return f"'{path}' takes {', '.join(schema['properties'])}."
    if "enum" in schema:
        return f"'{path}' is one of {', '.join(schema['enum'])}."
    kind = schema.get("type", "value")
    article = "an" if kind[0] in "aeiou" else "a"
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
    description = f": {schema['description']}" if "description" in schema else ""
    return f"'{path}' is {article} {kind}{bounds}{description}."


def schema_of(params: type[Params], path: str) -> dict[str, Any]:
    """Return the JSON Schema of the parameter at `path`. If it has no schema, return the schema of its nearest
    parent.
    """
    schemas = _schemas(params)
    schema: dict[str, Any] = schemas[params.__name__]
    for step in _STEP.findall(path):
        below = schema.get("items") if step.startswith("[") else schema.get("properties", {}).get(step)
        if below is None:
            break
        schema = schemas[below["$ref"].rpartition("/")[2]] if "$ref" in below else below
    return schema


@cache
def _schemas(params: type[Params]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.schema(params)["$defs"]
    return found


UNKNOWN = "unknown"
REDUCED = frozenset({"limit", "max_bytes", "wait_ms"})
"""Integer params whose values over the maximum are reduced to the maximum."""
SHOWN_METHODS = 9
"""Number of methods that the error of an unknown method names: those of the Skills Protocol."""
NULL = b"null"
BIG_PARAMS = 64 * 1024
Caller = Identity | Unavailable
"""An Identity, or the error Unavailable if the caller cannot be authenticated because the database is unavailable."""
RawParams = msgspec.Raw | msgspec.UnsetType
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
    """Call a method. Return the result as JSON and {}. If the call fails, return None and an error object.

    If `key` is given, a method that honours idempotency keys is executed at most once for this key. The bytes of the
    result are counted in `held_answer`.
    """
    failed: dict[str, Any]
    try:
        with _recorded(name if name in methods else UNKNOWN):
            return _kept(await _call_method(core, identity, name, params, key, methods)), {}
    except _Unknown as unknown:
        failed = unknown.error
    except SkilleryError as error:
        failed = error_object(error)
    except Exception as error:  # noqa: BLE001 - it is logged, and the caller gets an error
        failed = unexpected(error)
    return None, failed


async def execute(core: Core, identity: Caller, call: Handler, params: Params, key: str | None) -> Any:
    """Call a method of METHODS by its function, with the `key` of `perform`. Return its result. Raise its errors."""
    name = call.__name__
    with _recorded(name):
        # msgspec checks the bounds of params only while it decodes them.
        result = await _call_method(core, identity, name, msgspec.Raw(encode(params)), key, METHODS)
        if isinstance(result, Json):
            return _decoder(METHODS[name].result).decode(b"".join(_kept(result)))
        return result


@contextmanager
def _recorded(name: str) -> Iterator[None]:
    """Context manager for a call: add it to the metrics and the trace of the request. If the call fails, release the
    bytes that are reserved for its result.
    """
    begun, code = time.perf_counter(), None
    request = current.get()
    if request is not None:
        request.method = name
    try:
        with span("rpc", **{"rpc.method": name}) as traced, tool_call(traced, name, is_tool=name in TOOLS):
            try:
                yield
                code = 0
            except Exception as error:
                code = METHOD_NOT_FOUND if isinstance(error, _Unknown) else codes_of(error)[0]
                if traced is not None:
                    traced.set_attribute("rpc.jsonrpc.error_code", code)
                held = held_answer.get()
                if held is not None:
                    held.drop()
                raise
    finally:
        if request is not None and code is not None:  # None: the call is cancelled
            request.calls.append((name, code, time.perf_counter() - begun))


def _kept(result: Any) -> Parts:
    """Return a result as JSON, and count its bytes in the budget. Raise the errors of `HeldAnswer.keep`."""
    parts = encoded_parts(result)
    held = held_answer.get()
    if held is not None:
        held.keep(sum(map(len, parts)))
    return parts


def encoded_parts(result: Any) -> Parts:
    """Return a result as JSON. A result that is JSON already is not copied."""
    if not isinstance(result, Json):
        return [encode(result)]
    return result.text if isinstance(result.text, JsonPieces) else [memoryview(result.text)]


class _Unknown(Exception):
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
    if isinstance(identity, Unavailable):
        raise identity
    method = methods.get(name)
    if method is None:
        near = nearest(name, methods)
        first = ", ".join(islice(methods, SHOWN_METHODS))
        hint = f"Did you mean '{near}'?" if near else f"There are {first} and others: rpc.discover lists all methods."
        raise _Unknown(plain_error(METHOD_NOT_FOUND, f"there is no method {name[:80]!r}", "method_not_found", hint))
    try:
        if method.needs is not None:
            access.require(identity, method.needs)
        _begin(name, method)
        params = decode_params(method, raw)
        if method.develops:
            identity = core.developer.overlays.of(identity)
        if key is None or not method.once:
            return await method.call(core.parts[method.part], identity, params)
        return await _call_once(core, identity, name, method, params, key)
    except SkilleryError as error:
        if is_refusal(error, method.audits):
            given = b"" if raw is msgspec.UNSET else raw
            _note_refusal(core, identity, name, subject_of(given, method.audits or ""), error)
        raise


def _note_refusal(core: Core, identity: Identity, action: str, subject: str, error: SkilleryError) -> None:
    core.refusals.note(identity, action, subject, code=codes_of(error)[0], error_type=error.type)


def _begin(name: str, method: Method) -> None:
    """Reserve room for the result of a method.

    Raise Busy if there is no room and the method changes something: after the change, its result must not be refused.
    """
    held = held_answer.get()
    if held is not None:
        held.begin(name, is_refusable=not (method.once or method.audits))


async def _call_once(core: Core, identity: Identity, name: str, method: Method, params: Any, key: str) -> Json[Any]:
    async def work() -> bytes:
        return b"".join(encoded_parts(await method.call(core.parts[method.part], identity, params)))

    asked = await _digest_of(name, params)
    return Json(msgspec.Raw(await core.once.call(identity, key, asked, work)))


async def _digest_of(method: str, params: Any) -> str:
    """Return the digest of a call, by which a repeated call is recognised. The formatting of the JSON and explicit
    defaults do not matter.
    """
    text = encode(params)
    if len(text) > BIG_TEXT:
        text = await JSON.run(canonical, text)
        return await asyncio.to_thread(digest_of, method.encode(), text)
    return digest_of(method.encode(), canonical(text))


def decode_params(method: Method, raw: RawParams) -> Any:
    """Return the struct of the params. Raise InvalidParams if the params are not valid.

    The error names the parameter, and for an unknown parameter also the most similar known one. An empty array counts
    as no params.
    """
    text = msgspec.Raw(b"{}") if raw is msgspec.UNSET or is_exactly(raw, NULL) or _is_empty_array(raw) else raw
    if bytes(memoryview(text)[:1]) == b"[":
        raise InvalidParams(
            "params must be an object: positional params are not supported", hint='Write "params": {"name": value, …}.'
        )
    try:
        with without_collecting() if len(text) > BIG_PARAMS else nullcontext():
            return _decoder(method.params).decode(text)
    except (msgspec.ValidationError, RecursionError):
        try:
            text = _mended(method.params, text)
            return _decoder(method.params).decode(text)
        except (msgspec.ValidationError, RecursionError) as error:
            raise explain(error, method.params, text) from None


def _is_empty_array(text: msgspec.Raw) -> bool:
    return len(text) <= MOST_SHOWN and bytes(text).translate(None, b" \t\r\n") == b"[]"


def _mended(params: type[Params], text: msgspec.Raw) -> msgspec.Raw:
    """Return the params in the form that the decoder accepts. Unknown params raise ValidationError.

    A member that is null counts as omitted. A float without a fraction is an integer, as in JSON Schema. Values over
    the maximum of `limit`, `max_bytes` and `wait_ms` are reduced to the maximum.
    """
    given = msgspec.structs.asdict(known_params(params).decode(text))
    kept = {name: value for name, value in given.items() if value is not msgspec.UNSET and not is_exactly(value, NULL)}
    for name, most in _integers(params).items():
        if name in kept and len(kept[name]) <= MOST_SHOWN:
            number = msgspec.json.decode(kept[name])
            if isinstance(number, float) and number.is_integer():
                number = int(number)
            if isinstance(number, int) and not isinstance(number, bool):
                kept[name] = number if most is None else min(number, most)
    return msgspec.Raw(encode(kept))


@cache
def _integers(params: type[Params]) -> dict[str, int | None]:
    """Return the names of the integer params, with the maximum to which a greater value is reduced, or None."""
    schemas = {name: schema_of(params, name) for name in params.__struct_encode_fields__}
    return {
        name: schema.get("maximum") if name in REDUCED else None
        for name, schema in schemas.items()
        if schema.get("type") == "integer"
    }


@cache
def _decoder(struct: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(struct)
