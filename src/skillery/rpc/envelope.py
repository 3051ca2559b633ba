"""The messages of JSON-RPC 2.0: parsing of calls, and writing of answers. This module calls no method."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from skillery.methods.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    encode,
    plain_error,
)

MOST_CALLS = 100
"""The maximum number of calls in a batch."""
MOST_ID = 1024
"""The maximum number of characters of an id. Answers repeat the id, and no memory budget counts the repeated ids."""
LARGE_TEXT = 64 * 1024
"""An invalid text with more bytes is not decoded a second time for a better error message."""
Part = bytes | memoryview
Reply = deque[Part]
"""The JSON of an answer, in parts."""
Id = str | int | float | None
_SURROGATE = re.compile("[\ud800-\udfff]")


class Call(msgspec.Struct, frozen=True):
    """One call in a request. In a notification, `id` is UNSET."""

    jsonrpc: str
    method: str
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: str | int | float | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def reply_to(self) -> Id:
        """The id that the answer to this call has."""
        return None if self.id is msgspec.UNSET else self.id


_call = msgspec.json.Decoder(Call)
_whole = msgspec.json.Decoder(msgspec.Raw)
_calls = msgspec.json.Decoder(
    msgspec.defstruct(
        "Calls",
        [(f"call_{number}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for number in range(MOST_CALLS)],
        array_like=True,
        forbid_unknown_fields=True,
    )
)
"""The decoder of a batch. It fails at call 101, because decoding millions of calls to count them would take a second
and a GiB.
"""


class Refused(msgspec.Struct, frozen=True):
    """The answer to a text that is not a valid call or batch."""

    reply: Reply | None
    """The answer, or None if the text is a notification."""


def is_batch(body: bytes) -> bool:
    """Return whether the body starts like a batch of calls."""
    return body[:1] != b"{" and body.lstrip(b" \t\r\n")[:1] == b"["


def parse_batch(body: bytes) -> list[bytes | msgspec.Raw] | Refused:
    """Return the JSON texts of the calls in a batch.

    Return Refused if the batch is invalid, is empty, or has more than MOST_CALLS calls.
    """
    calls: list[bytes | msgspec.Raw]
    try:
        decoded = msgspec.structs.astuple(_calls.decode(body))
        calls = [call for call in decoded if call is not msgspec.UNSET]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        lenient = _lenient(body) if len(body) <= LARGE_TEXT else _NOT_JSON
        if not isinstance(lenient, list):
            return Refused(error_reply(_no_batch(error)))
        calls = [json.dumps(call).encode() for call in lenient]
    return calls if 1 <= len(calls) <= MOST_CALLS else Refused(error_reply(_too_many_calls()))


def parse_call(body: bytes | msgspec.Raw) -> Call | Refused:
    """Return the call in a JSON text, or Refused if the text is not a valid call."""
    try:
        call = _call.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refused = _refuse(body, error)
        return Refused(None if refused is None else deque([refused]))
    if isinstance(call.id, str) and len(call.id) > MOST_ID:
        return Refused(error_reply(_long_id(len(call.id))))
    if call.jsonrpc != "2.0":
        error_object = plain_error(INVALID_REQUEST, "'jsonrpc' must be \"2.0\"", "invalid_request")
        return Refused(error_reply(error_object, call.reply_to))
    return call


def result_reply(reply_to: Id, result: Sequence[Part]) -> Reply:
    """Return the answer to a successful call. `result` is its JSON in parts, and `reply_to` the id of the call."""
    return deque([b'{"jsonrpc":"2.0","id":%s,"result":' % encode(reply_to), *result, b"}"])


def error_reply(error: dict[str, Any], reply_to: Id = None) -> Reply:
    """Return the answer with an error object. `reply_to` is the id of the call, or None if it is unknown."""
    return deque([_failure(reply_to, error)])


def batch_reply(replies: Sequence[Reply]) -> Reply | None:
    """Return the answer to a batch from the answers to its calls, or None if all calls are notifications."""
    parts: Reply = deque()
    for reply in replies:
        parts.append(b"," if parts else b"[")
        parts += reply
    if not parts:
        return None
    parts.append(b"]")
    return parts


def _no_batch(error: Exception) -> dict[str, Any]:
    """Return the error object for an invalid batch: it has too many calls, or is not JSON."""
    return _too_many_calls() if isinstance(error, msgspec.ValidationError) else _parse_error(error)


def _long_id(size: int) -> dict[str, Any]:
    message = f"the 'id' has {size} characters, and at most {MOST_ID} are allowed"
    return plain_error(INVALID_REQUEST, message, "invalid_request", "Send a shorter id, such as a number.")


def _too_many_calls() -> dict[str, Any]:
    return plain_error(INVALID_REQUEST, f"a batch contains 1 to {MOST_CALLS} calls", "invalid_request")


# -- texts that are no requests --------------------------------------------------------------------------------------


def _refuse(body: bytes | msgspec.Raw, error: Exception) -> bytes | None:
    """Return the answer to a text that is not a valid call, or None if the text is a notification.

    `error` is the error of the decoder.
    """
    if len(body) > LARGE_TEXT:
        return _failure(None, _refuse_large(body, error))
    value = _lenient(bytes(body))
    if value is _NOT_JSON:
        return _failure(None, _parse_error(error))
    if not isinstance(value, dict):
        return _failure(None, plain_error(INVALID_REQUEST, "a call is an object", "invalid_request"))
    reply_to = value.get("id")
    if isinstance(reply_to, str) and len(reply_to) > MOST_ID:
        return _failure(None, _long_id(len(reply_to)))
    if isinstance(reply_to, bool) or not isinstance(reply_to, str | int | float | None) or _has_surrogate(reply_to):
        return _failure(
            None, plain_error(INVALID_REQUEST, "'id' must be a string, a number or null", "invalid_request")
        )
    if value.get("jsonrpc") == "2.0" and isinstance(value.get("method"), str) and _has_surrogate(value):
        return _failure(reply_to, _lone_surrogate()) if "id" in value else None
    return _failure(reply_to, plain_error(INVALID_REQUEST, _CALL, "invalid_request"))


_CALL = "a call has 'jsonrpc': \"2.0\", a 'method', and may have 'params' and an 'id'"


def _refuse_large(body: bytes | msgspec.Raw, error: Exception) -> dict[str, Any]:
    """Return the error object for a large text that is not a valid call.

    Its id is null, because a large text is not decoded a second time to find the id.
    """
    try:
        _whole.decode(body)
    except (msgspec.DecodeError, RecursionError) as malformed:
        text = bytes(body)
        if b"\\ud" in text or b"\\uD" in text:
            return _lone_surrogate()
        return _parse_error(malformed)
    return plain_error(INVALID_REQUEST, f"{_CALL}: {str(error)[:200]}", "invalid_request")


_NOT_JSON = object()


def _lenient(body: bytes) -> Any:
    """Return the decoded JSON, or _NOT_JSON if the text does not follow the grammar of RFC 8259.

    Unlike the fast decoder, this one accepts lone surrogates and huge numbers.
    """
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _lone_surrogate() -> dict[str, Any]:
    message = "a text in this call contains a lone surrogate, which is not a character"
    return plain_error(INVALID_PARAMS, message, "invalid_params", "Send valid Unicode.")


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
