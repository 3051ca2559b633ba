"""The JSON-RPC code and the HTTP status of each kind of error. Only this module assigns them."""

from __future__ import annotations

import logging
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


def codes_of(error: SkilleryError) -> tuple[int, int]:
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
