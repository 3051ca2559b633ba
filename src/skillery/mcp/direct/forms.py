"""Forms: responses of the SDK with gaps for the id of the request and for the result of the tool."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pydantic_core

from skillery.mcp.direct.messages import DirectMessage, Kind

# The tricky parts of JSON: characters that encoders escape differently, numbers that they write differently, null.
_TRICKY_TEXT = 'é€😀\x7f\x1f\u2028"\\/\n'
_TRICKY = {"text": _TRICKY_TEXT, "numbers": [0.1, 1e16, 1e-7, 2**60], "null": None, "nested": [{"a": None}]}
_compact = json.JSONEncoder(separators=(",", ":"))
FALSE, TRUE = b"false", b"true"


class Sample(NamedTuple):
    """A request whose response becomes a form: random words mark the gaps."""

    id: str
    text: str
    structured: dict[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        """The result of the called tool."""
        content = [{"type": "text", "text": self.text}]
        return {"content": content, "structuredContent": self.structured, "isError": False, "resultType": "complete"}

    def message(self, message: DirectMessage) -> bytes:
        """Return the body of a request like `message`, with the id of the sample."""
        params: dict[str, Any] = {"name": message.tool, "arguments": {}} if message.tool else {}
        if message.kind.meta:
            params["_meta"] = msgspec.Raw(message.kind.meta)
        body = {"jsonrpc": "2.0", "id": self.id, "method": message.kind.method, "params": params}
        return msgspec.json.encode(body)


def new_sample() -> Sample:
    tricky = {**_TRICKY, secrets.token_hex(16): 0}
    return Sample(secrets.token_hex(16), secrets.token_hex(16) + _TRICKY_TEXT, tricky)


def encoded(value: Any, *, is_modern: bool) -> bytes:
    """Return the value as JSON, like the SDK: for the newest version of the protocol with the encoder of Python, for
    older versions with the encoder of pydantic.
    """
    return _compact.encode(value).encode() if is_modern else pydantic_core.to_json(value)


class Form:
    """A response with gaps."""

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], parts: Sequence[bytes], gaps: Sequence[str]) -> None:
        """`parts` are the bytes around the gaps: one more than `gaps`, which are the names of the gaps in order."""
        self._headers = list(headers)
        self._parts = parts
        self._gaps = gaps
        self._has_length = any(name == b"content-length" for name, _ in headers)

    async def send(self, send: Any, values: Mapping[str, bytes]) -> None:
        """Send the response with the values in its gaps."""
        pieces = [self._parts[0]]
        for gap, after in zip(self._gaps, self._parts[1:], strict=True):
            pieces += (values[gap], after)
        body = b"".join(pieces)
        await send({"type": "http.response.start", "status": 200, "headers": self._sized(len(body))})
        await send({"type": "http.response.body", "body": body})

    def _sized(self, size: int) -> list[tuple[bytes, bytes]]:
        if not self._has_length:
            return self._headers
        length = str(size).encode()
        return [(name, length if name == b"content-length" else value) for name, value in self._headers]


def form_of(sample: Sample, kind: Kind, messages: Sequence[Any]) -> Form | None:
    """Return the form of a response to the sample. `messages` are the ASGI messages of the SDK.

    Return None if the response is an error, or does not contain the values of the sample as this module writes them.
    """
    if not messages or messages[0].get("status") != 200:
        return None
    body = b"".join(message.get("body", b"") for message in messages[1:])
    modern = kind.is_modern
    marks = {"id": encoded(sample.id, is_modern=modern)}
    if kind.method == "tools/call":
        marks["text"] = encoded(sample.text, is_modern=modern)
        marks["structured"] = encoded(sample.structured, is_modern=modern)
        marks["is_error"] = b'"isError":' + FALSE
    if any(body.count(mark) != 1 for mark in marks.values()):
        return None
    return _cut(messages[0]["headers"], body, marks)


def _cut(headers: Sequence[tuple[bytes, bytes]], body: bytes, marks: Mapping[str, bytes]) -> Form:
    places = sorted((body.index(mark), gap) for gap, mark in marks.items())
    parts, end = [], 0
    for place, gap in places:
        begin = place + len(marks[gap]) - len(FALSE) if gap == "is_error" else place
        parts.append(body[end:begin])
        end = place + len(marks[gap])
    return Form(headers, [*parts, body[end:]], [gap for _, gap in places])
