"""The JSON-RPC code and the HTTP status of each kind of error. Only this module assigns them.

It also says which errors the audit trail records as refusals, and explains invalid params.
"""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import msgspec

from skillery.context.request import current_id
from skillery.context.threads import without_collecting
from skillery.errors import (
    Busy,
    Conflict,
    InvalidParams,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Refused,
    SkilleryError,
    TooLarge,
    Unavailable,
)
from skillery.formats.json_pieces import is_exactly
from skillery.formats.tokens import PREFIX
from skillery.formats.wording import nearest
from skillery.method import Method, Params, annotated_params
from skillery.runs.limits import ASKABLE

log = logging.getLogger(__name__)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_FOUND = -32003


class Codes(NamedTuple):
    """The JSON-RPC code of an error, and the HTTP status of all endpoints except /rpc."""

    rpc: int
    http: int


CODES: dict[type[SkilleryError], Codes] = {
    InvalidParams: Codes(INVALID_PARAMS, 400),
    NotAuthenticated: Codes(-32001, 401),
    NotAllowed: Codes(-32002, 403),
    NotFound: Codes(NOT_FOUND, 404),
    Conflict: Codes(-32004, 409),
    TooLarge: Codes(-32005, 413),
    Busy: Codes(-32006, 503),
    Refused: Codes(-32007, 422),
    Unavailable: Codes(INTERNAL_ERROR, 503),
}


def codes_of(error: Exception) -> Codes:
    """Return the codes of an error. Unexpected errors are internal errors."""
    return next((codes for kind, codes in CODES.items() if isinstance(error, kind)), Codes(INTERNAL_ERROR, 500))


def error_object(error: SkilleryError) -> dict[str, Any]:
    """Return the error object of an answer: code, message and data.

    The data has the type, a hint, and further fields of the error.
    """
    data = {"type": error.type, **({"hint": error.hint} if error.hint else {}), **error.data}
    code = codes_of(error).rpc
    return {"code": code, "message": error.message, "data": _traceable(data) if code == INTERNAL_ERROR else data}


def plain_error(code: int, message: str, kind: str, hint: str | None = None) -> dict[str, Any]:
    """Return an error object. `kind` is the type of the error."""
    return {"code": code, "message": message, "data": {"type": kind, **({"hint": hint} if hint else {})}}


def unexpected(error: BaseException) -> dict[str, Any]:
    """Log an unexpected exception. Return the error object for the client, which says nothing about the exception."""
    log.error("unexpected %s", type(error).__name__, exc_info=error)
    error_for_client = plain_error(
        INTERNAL_ERROR,
        "internal error",
        "internal_error",
        "The reason is in the server's log. If it happens again, tell an admin.",
    )
    return error_for_client | {"data": _traceable(error_for_client["data"])}


def _traceable(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an error object with the id of the current request, by which an admin finds it in the log."""
    request_id = current_id()
    return data | {"request_id": request_id} if request_id else data


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


# -- Refused calls in the audit trail: which errors count as refusals, and which subject a refused call has ------------


OF_CHANGES = (NotAllowed, NotFound, Conflict, Refused)
"""Errors that count as a refused change. Errors of malformed, too large or too frequent calls do not count."""
MOST_BYTES = 256 * 1024
"""Params over this size are not searched for the subject of a call."""
OTHERWISE_NAMED_BY = ("name", "run_id", "blob_id")
"""If a method does not say which param is the subject of its calls, it is the first of these params in the call."""
_SECRET_OF_TOKEN = re.compile(rf"({PREFIX}[0-9A-Za-z]{{0,12}})\w{{16,}}")
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


def is_refusal(error: SkilleryError, audits: str | None) -> bool:
    """Return whether the audit trail records the error of a call.

    `audits` is `Method.audits`. If it is "" (a method without audited changes), only NotAllowed is recorded, else
    NotFound, Conflict and Refused too.
    """
    return isinstance(error, OF_CHANGES if audits != "" else NotAllowed)


def subject_of(params: bytes | msgspec.Raw, named_by: str) -> str:
    """Return the subject of a call for the audit trail: `name@version`, `name`, an id, or "" if it has none.

    `named_by` is the param that names the subject, or "". The subject of a URL is its origin. The secret part of a text
    that looks like a token is removed, because callers may pass a whole token in place of its id.
    """
    subject = _subject(params, named_by) if len(params) <= MOST_BYTES else ""
    return _SECRET_OF_TOKEN.sub(r"\1", subject)


def _subject(params: bytes | msgspec.Raw, named_by: str) -> str:
    """Return the subject of a call, possibly with the secret part of a token. See `subject_of`."""
    try:
        values = _names.decode(params)
        if not named_by:
            named_by = next((name for name in OTHERWISE_NAMED_BY if name in values), "")
        if named_by == "manifest":
            values, named_by = _names.decode(values.get("manifest", b"{}")), "name"
    except (msgspec.DecodeError, RecursionError):
        return ""
    if named_by == "url":
        from skillery.webhooks.sending import origin_of  # imports httpx

        return origin_of(_text_of(values, named_by))
    subject, version = _text_of(values, named_by), _text_of(values, "version")
    return f"{subject}@{version}" if version else subject


def _text_of(values: dict[str, msgspec.Raw], key: str) -> str:
    try:
        return _text.decode(values.get(key, b'""'))
    except msgspec.DecodeError:
        return ""


# -- The params of a call: decode them, and explain the errors of params that cannot be decoded ------------------------


_MISSING = re.compile(r"missing required field `(\w+)`")
MOST_SHOWN = 40
"""A value with more bytes is not repeated in an error message."""
_STEP = re.compile(r"\w+|\[\d+\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


@cache
def known_params(params: type[Params]) -> msgspec.json.Decoder[Any]:
    """Return a decoder for the top level of params: each known param as raw JSON.

    The decoder raises ValidationError at the first unknown param, because a body may contain a million of them.
    """
    fields = [
        (field.encode_name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for field in msgspec.structs.fields(params)
    ]
    return msgspec.json.Decoder(msgspec.defstruct(f"Known{params.__name__}", fields, forbid_unknown_fields=True))


def changed(params: Params) -> dict[str, Any]:
    """Return the params that differ from their defaults. Params with default values are left out, because a default
    may be outside the bounds of its param (e.g., "").
    """
    defaults = _defaults(type(params))
    return {name: value for name in defaults if (value := getattr(params, name)) != defaults[name]}


@cache
def _defaults(params: type[Params]) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(params)
    }


def explain(error: Exception, params: type[Params], text: msgspec.Raw) -> InvalidParams:
    """Return the error for params that the decoder has refused with `error`.

    The message names the param, its type, and its value if the value is short. For an unknown param, the hint suggests
    the most similar known one.
    """
    known = [field.encode_name for field, _ in annotated_params(params)]
    try:
        values = msgspec.structs.asdict(known_params(params).decode(text))
    except msgspec.ValidationError as refused:
        unknown = _UNKNOWN.match(str(refused))
        if unknown is None:
            return InvalidParams(
                "params must be an object",
                hint=f"The params are {', '.join(known)}." if known else "The method has no params.",
            )
        return _unknown(unknown[1], known)
    reason, _, param_path = str(error).partition(" - at `$")
    param_path = param_path.removesuffix("`").lstrip(".")
    missing = _MISSING.search(reason)
    if missing:
        path = f"{param_path}.{missing[1]}" if param_path else missing[1]
        return InvalidParams(f"the parameter '{path}' is missing", hint=_takes(params, path), param=path)
    value = values.get(param_path, msgspec.UNSET)
    value = b"" if value is msgspec.UNSET or len(value) > MOST_SHOWN else bytes(value)
    value_text = f"{value.decode()}, which is not valid" if value else "not valid"
    message = f"the parameter '{param_path}' is {value_text}: {reason[:1].lower()}{reason[1:]}"
    return InvalidParams(message, hint=_takes(params, param_path), param=param_path)


def _unknown(key: str, known: list[str]) -> InvalidParams:
    """Return the error for an unknown param, with the most similar known one."""
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
    """Return a sentence about the valid values of the param at `path`, for example `limit` or `files[0].encoding`."""
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
    """Return the JSON Schema of the param at `path`, or of its nearest parent that has a schema."""
    schemas = _schemas(params)
    schema: dict[str, Any] = schemas[params.__name__]
    for step in _STEP.findall(path):
        child_schema = schema.get("items") if step.startswith("[") else schema.get("properties", {}).get(step)
        if child_schema is None:
            break
        schema = schemas[child_schema["$ref"].rpartition("/")[2]] if "$ref" in child_schema else child_schema
    return schema


@cache
def _schemas(params: type[Params]) -> dict[str, Any]:
    schemas: dict[str, Any] = msgspec.json.schema(params)["$defs"]
    return schemas


REDUCED = frozenset({"limit", "max_bytes", "wait_ms"})
"""Integer params. A value over the maximum of one is reduced to the maximum."""
NULL = b"null"
BIG_PARAMS = 64 * 1024
RawParams = msgspec.Raw | msgspec.UnsetType


def decode_params(method: Method, raw: RawParams) -> Any:
    """Return the struct of the params. Raise InvalidParams if the params are invalid.

    The error names the param, and for an unknown param also the most similar known one. An empty array counts as no
    params.
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
        # Decode again, with small deviations corrected.
        try:
            text = _mended(method.params, text)
            return _decoder(method.params).decode(text)
        except (msgspec.ValidationError, RecursionError) as error:
            raise explain(error, method.params, text) from None


def _is_empty_array(text: msgspec.Raw) -> bool:
    return len(text) <= MOST_SHOWN and bytes(text).translate(None, b" \t\r\n") == b"[]"


def _mended(params: type[Params], text: msgspec.Raw) -> msgspec.Raw:
    """Return the params with small deviations corrected. Raise ValidationError if a param is unknown.

    A member that is null counts as omitted. A float without a fraction is an integer, as in JSON Schema. Values over
    the maximum of `limit`, `max_bytes` and `wait_ms` are reduced to the maximum.
    """
    values = msgspec.structs.asdict(known_params(params).decode(text))
    present = {
        name: value for name, value in values.items() if value is not msgspec.UNSET and not is_exactly(value, NULL)
    }
    for name, most in _integers(params).items():
        if name in present and len(present[name]) <= MOST_SHOWN:
            number = msgspec.json.decode(present[name])
            if isinstance(number, float) and number.is_integer():
                number = int(number)
            if isinstance(number, int) and not isinstance(number, bool):
                present[name] = number if most is None else min(number, most)
    return msgspec.Raw(encode(present))


@cache
def _integers(params: type[Params]) -> dict[str, int | None]:
    """Return the maximum of each integer param in REDUCED, and None for other integer params, by name."""
    schemas = {name: schema_of(params, name) for name in params.__struct_encode_fields__}
    return {
        name: schema.get("maximum") if name in REDUCED else None
        for name, schema in schemas.items()
        if schema.get("type") == "integer"
    }


@cache
def _decoder(struct: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(struct)
