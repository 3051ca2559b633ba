"""Large messages of MCP: the arguments of a tool are removed before the SDK reads the message.

The SDK decodes a message to Python objects and validates each value on the event loop, which takes a second for 10 MiB.
The removed arguments are decoded once, by the method that gets them.
"""

from __future__ import annotations

import msgspec

from skillery.api.json_texts import TextRefusal, check_text
from skillery.edge.http import HttpRefusal
from skillery.formats.json_pieces import is_exactly
from skillery.methods.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, encode, plain_error

MOST_OF_SDK = 64 * 1024
"""Limit of the bytes of a message that the SDK gets."""
NULL = b"null"
CALL = b'"tools/call"'
Raw = msgspec.Raw | msgspec.UnsetType


class _Message(msgspec.Struct, omit_defaults=True):
    """The members of a tool call that the SDK needs. Other members of a large message are dropped."""

    jsonrpc: Raw = msgspec.UNSET
    id: Raw = msgspec.UNSET
    method: Raw = msgspec.UNSET
    params: Raw = msgspec.UNSET


class _Params(msgspec.Struct, omit_defaults=True):
    name: Raw = msgspec.UNSET
    meta: Raw = msgspec.field(name="_meta", default=msgspec.UNSET)
    arguments: Raw = msgspec.UNSET


_message = msgspec.json.Decoder(_Message)
_params = msgspec.json.Decoder(_Params)


async def without_arguments(body: bytes) -> tuple[bytes, msgspec.Raw | None]:
    """Return the message for the SDK, and the removed arguments of the tool. The arguments are None for a small
    message.

    A large message is encoded again, so that the SDK and this module cannot interpret it differently. Raise HttpRefusal
    400 if a large message is not valid, and 413 if it has too many values or is large even without the arguments of a
    tool.
    """
    if len(body) <= MOST_OF_SDK:
        return body, None
    try:
        await check_text(body)
        message = _message.decode(body)
        is_call = is_exactly(message.method, CALL)
        params = _params.decode(message.params) if is_call and message.params is not msgspec.UNSET else _Params()
    except TextRefusal as refusal:
        raise HttpRefusal(413 if refusal.error["code"] != PARSE_ERROR else 400, refusal.error) from None
    except msgspec.ValidationError:
        no_message = plain_error(INVALID_REQUEST, "a message is an object, and so are its params", "invalid_request")
        raise HttpRefusal(400, no_message) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise HttpRefusal(400, plain_error(PARSE_ERROR, f"the body is not JSON: {error}", "parse_error")) from None
    arguments = params.arguments
    if arguments is msgspec.UNSET:
        raise _too_large()
    if is_exactly(arguments, NULL):
        arguments = msgspec.Raw(b"{}")
    if bytes(memoryview(arguments)[:1]) != b"{":
        raise HttpRefusal(400, plain_error(INVALID_PARAMS, "'arguments' must be an object", "invalid_params"))
    params.arguments = msgspec.Raw(b"{}")
    message.params = msgspec.Raw(encode(params))
    small = encode(message)
    if len(small) > MOST_OF_SDK:
        raise _too_large()
    return small, arguments


def _too_large() -> HttpRefusal:
    message = f"a message of MCP has at most {MOST_OF_SDK} bytes apart from the arguments of a tool"
    return HttpRefusal(413, plain_error(-32005, message, "body_too_large", "Send large content to POST /blobs."))
