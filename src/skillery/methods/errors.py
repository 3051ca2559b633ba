"""The JSON-RPC code and the HTTP status of each kind of error. Only this module assigns them, and says which errors the
audit trail records as refusals."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec

from skillery.context.request import current_id
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
from skillery.formats.tokens import PREFIX

log = logging.getLogger(__name__)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_FOUND = -32003

# kind -> (JSON-RPC code, HTTP status of all endpoints except /rpc)
CODES: dict[type[SkilleryError], tuple[int, int]] = {
    InvalidParams: (INVALID_PARAMS, 400),
    NotAuthenticated: (-32001, 401),
    NotAllowed: (-32002, 403),
    NotFound: (NOT_FOUND, 404),
    Conflict: (-32004, 409),
    TooLarge: (-32005, 413),
    Busy: (-32006, 503),
    Refused: (-32007, 422),
    Unavailable: (INTERNAL_ERROR, 503),
}


def codes_of(error: Exception) -> tuple[int, int]:
    return next((codes for kind, codes in CODES.items() if isinstance(error, kind)), (INTERNAL_ERROR, 500))


def error_object(error: SkilleryError) -> dict[str, Any]:
    """Return the error object of an answer. Its members are code, message and data: the type, a hint and further
    fields of the error.
    """
    data = {"type": error.type, **({"hint": error.hint} if error.hint else {}), **error.data}
    code = codes_of(error)[0]
    return {"code": code, "message": error.message, "data": _traceable(data) if code == INTERNAL_ERROR else data}


def plain_error(code: int, message: str, kind: str, hint: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "data": {"type": kind, **({"hint": hint} if hint else {})}}


def unexpected(error: BaseException) -> dict[str, Any]:
    """Log an unexpected exception, and return the error object for the client. The error object does not contain the
    exception.
    """
    log.error("unexpected %s", type(error).__name__, exc_info=error)
    shown = plain_error(
        INTERNAL_ERROR,
        "internal error",
        "internal_error",
        "The reason is in the server's log. If it happens again, tell an admin.",
    )
    return shown | {"data": _traceable(shown["data"])}


def _traceable(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an error object with the id of the current request. An admin finds the request in the log
    by this id.
    """
    request_id = current_id()
    return data | {"request_id": request_id} if request_id else data


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


# -- Refused calls in the audit trail: which errors count as refusals, and which subject a refused call has ------------


OF_CHANGES = (NotAllowed, NotFound, Conflict, Refused)
"""Errors that count as the refusal of a change. Errors of malformed, too large or too frequent calls do not count."""
MOST_BYTES = 256 * 1024
"""Limit of the bytes of params that are searched for a subject."""
OTHERWISE_NAMED_BY = ("name", "run_id", "blob_id")
"""Params that name the subject of a call if the method does not say which param does. The first present param
counts.
"""
_WHAT_FOLLOWS_AN_ID = re.compile(rf"({PREFIX}[0-9A-Za-z]{{0,12}})\w{{16,}}")
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


def is_refusal(error: SkilleryError, audits: str | None) -> bool:
    """Return whether the audit trail records the error of a call.

    `audits` is `Method.audits`. If `audits` is "" (a method without audited changes), only NotAllowed is recorded.
    Otherwise, NotFound, Conflict and Refused are recorded too.
    """
    return isinstance(error, OF_CHANGES if audits != "" else NotAllowed)


def subject_of(params: bytes | msgspec.Raw, named_by: str) -> str:
    """Return the subject of a call for the audit trail: `name@version`, `name`, an id, or "" if the params name no
    subject.

    `named_by` is the param that names the subject, or "". Of a URL, the subject is the origin. The secret part of
    anything that looks like a token is removed, because callers may pass a whole token in place of its id.
    """
    subject = _subject(params, named_by) if len(params) <= MOST_BYTES else ""
    return _WHAT_FOLLOWS_AN_ID.sub(r"\1", subject)


def _subject(params: bytes | msgspec.Raw, named_by: str) -> str:
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
