"""Large messages of MCP: the arguments of a tool are removed before the SDK reads the message.

The SDK decodes a message to Python objects and validates each value on the event loop, which takes a second for 10 MiB.
The removed arguments are decoded once, by the method that gets them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from skillery.formats.json_pieces import is_exactly
from skillery.http.exchanges import ClientGone
from skillery.http.json_texts import TextRefusal, check_text
from skillery.http.requests import HttpRefusal, Part
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


# Large results of MCP: the SDK gets a placeholder for each large value. In the response of the SDK, each placeholder
# is replaced by the JSON of the value.
#
# The SDK copies a result several times and validates each value, all on the event loop. A placeholder is a random word,
# so no content of a response can be equal to a placeholder.


Pieces = Sequence[Part]


class Splices:
    """The large values of one response. When the socket has taken a piece of a value, `given_back` is called with
    its size.
    """

    def __init__(self, given_back: Callable[[int], None]) -> None:
        self._given_back = given_back
        self._pieces: dict[bytes, Pieces] = {}
        self._start: Any = None
        self._is_gone = False

    def text(self, pieces: Pieces) -> str:
        """Store a large JSON string, and return its placeholder. `pieces` is the JSON text with the quotes."""
        word = secrets.token_hex(16)
        self._pieces[b'"%s"' % word.encode()] = pieces
        return word

    def object(self, pieces: Pieces) -> dict[str, Any]:
        """Store a large JSON object, and return its placeholder. `pieces` is the JSON text."""
        word = secrets.token_hex(16)
        self._pieces[b'{"%s":0}' % word.encode()] = pieces
        return {word: 0}

    def into(self, send: Any) -> Any:
        """Return an ASGI `send` that replaces the placeholders by the stored values, and passes the messages to `send`.

        After the client has disconnected, the returned function does nothing. It raises no ClientGone, because the SDK
        would log the exception. The SDK notices the disconnection from `receive`.
        """

        async def send_spliced(message: Any) -> None:
            if self._is_gone:
                return
            try:
                await self._send(send, message)
            except ClientGone:
                self._is_gone = True

        return send_spliced

    async def _send(self, send: Any, message: Any) -> None:
        if not self._pieces:
            await send(message)
        elif message["type"] == "http.response.start":
            # The Content-Length depends on the body.
            self._start = message
        else:
            await self._send_body(send, message)

    async def _send_body(self, send: Any, message: Any) -> None:
        parts = self._split(message.get("body", b""))
        if self._start is not None:
            await send(_with_length(self._start, sum(len(part) for part, _ in parts)))
            self._start = None
        for part, is_value in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if is_value:
                self._given_back(len(part))
        await send({"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)})

    def _split(self, body: bytes) -> list[tuple[Part, bool]]:
        """Return the parts of a body with the stored values in place of placeholders. The second element says
        whether a part is a stored value.
        """
        places = sorted((place, mark) for mark in self._pieces if (place := body.find(mark)) >= 0)
        parts: list[tuple[Part, bool]] = []
        end = 0
        for place, mark in places:
            parts.append((body[end:place], False))
            parts += [(piece, True) for piece in self._pieces.pop(mark)]
            end = place + len(mark)
        return [*parts, (body[end:], False)]


def _with_length(start: Any, size: int) -> Any:
    headers = [
        (name, str(size).encode() if name.lower() == b"content-length" else value) for name, value in start["headers"]
    ]
    return {**start, "headers": headers}
