"""Answers to the most frequent messages of MCP without the MCP SDK: tools/list, and calls of methods that only read.

The SDK builds a transport, a task group and several models for each message, which takes 1.3 to 3.5 ms. A message with
an unusual field or header goes to the SDK, which knows all rules of the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from skillery.http.requests import JSON
from skillery.mcp.requests import COMPLETE, EVENTS, FRESHNESS, SERVER, Visit
from skillery.mcp.tool_results import error_result, is_failed_run, is_large, large_result
from skillery.mcp.tools import listed_tools
from skillery.methods.errors import encode
from skillery.methods.execution import perform
from skillery.methods.table import FOR_MODELS, METHODS, TOOLS

VERSION = "mcp-protocol-version"
Scalar = str | int | bool | None
MOST_BYTES = 16 * 1024
"""The maximum size of a message that is answered here."""
READS = frozenset(name for name, row in METHODS.items() if row.needs == "read" and row.audits == "" and not row.once)
"""The methods that change nothing and start no run. Such tools need no notifications, no cancellation and no task."""
_SERVER_INFO = {SERVER_INFO_META_KEY: SERVER}
_EVENT_HEADERS = [
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"content-type", EVENTS.encode()),
    (b"x-accel-buffering", b"no"),
]
_KNOWN = {b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-session-id"}
# Ids whose text is the same in every JSON encoder: integers of up to 15 digits, and strings without escapes.
_PLAIN_ID = re.compile(rb'(?:0|-?[1-9][0-9]{0,14}|"[ !#-\[\]-~]{0,128}")')


class Message(NamedTuple):
    """A message that can be answered without the SDK."""

    id: bytes
    """The JSON text of the id."""
    tool: str
    """The called tool, or "" for tools/list."""
    arguments: dict[str, Scalar]
    is_modern: bool
    """Whether the protocol version of the message is 2026-07-28 or later."""


class _Client(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: str
    title: str | msgspec.UnsetType = msgspec.UNSET


class _Meta(msgspec.Struct, forbid_unknown_fields=True):
    version: str = msgspec.field(name=PROTOCOL_VERSION_META_KEY)
    capabilities: dict[str, dict[str, dict[str, Any]]] = msgspec.field(name=CLIENT_CAPABILITIES_META_KEY)
    client: _Client | msgspec.UnsetType = msgspec.field(name=CLIENT_INFO_META_KEY, default=msgspec.UNSET)


class _Params(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    arguments: dict[str, Scalar] | msgspec.UnsetType = msgspec.UNSET
    meta: _Meta | msgspec.UnsetType = msgspec.field(name="_meta", default=msgspec.UNSET)


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    jsonrpc: Literal["2.0"]
    id: msgspec.Raw
    method: Literal["tools/list", "tools/call"]
    params: _Params = msgspec.field(default_factory=_Params)


_message = msgspec.json.Decoder(_Message)


async def respond(visit: Visit, scope: Any, headers: Mapping[str, str], body: bytes, send: Any) -> bool:
    """Answer the message if possible. Return False if the SDK has to answer it."""
    if visit.skills or visit.arguments is not None:
        return False
    message = plain_message(scope, headers, body)
    if message is None or not _is_offered(visit, message.tool):
        return False
    result = await _called(visit, message) if message.tool else {"tools": await listed_tools(visit)}
    if message.is_modern:
        result |= (COMPLETE if message.tool else FRESHNESS) | {"_meta": _SERVER_INFO}
    text = encode({"jsonrpc": "2.0", "id": msgspec.Raw(message.id), "result": result})
    start = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(text))]
    if not message.is_modern:
        start, text = _EVENT_HEADERS, b"event: message\r\ndata: %s\r\n\r\n" % text
    send = visit.splices.into(send)
    await send({"type": "http.response.start", "status": 200, "headers": start})
    await send({"type": "http.response.body", "body": text})
    return True


async def _called(visit: Visit, message: Message) -> dict[str, Any]:
    """Return the result of a tool call, as MCP shows it."""
    params = msgspec.Raw(encode(FOR_MODELS.get(message.tool, {}) | message.arguments))
    answer, error = await perform(visit.core, visit.identity, message.tool, params, visit.idempotency_key)
    if answer is None:
        return error_result(visit, error)
    if is_large(answer):
        return large_result(visit, answer)
    text = b"".join(answer)
    content = [{"type": "text", "text": text.decode()}]
    return {"content": content, "structuredContent": msgspec.Raw(text), "isError": is_failed_run([text])}


def plain_message(scope: Any, headers: Mapping[str, str], body: bytes) -> Message | None:
    """Return the message if it can be answered without the SDK, else None.

    Messages with escapes like `\\ud800` go to the SDK, because the two JSON decoders treat lone surrogates
    differently.
    """
    if len(body) > MOST_BYTES or b"\\u" in body or not _are_plain(scope, headers):
        return None
    try:
        message = _message.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    params, call_id = message.params, bytes(message.id)
    arguments = {} if params.arguments is msgspec.UNSET else params.arguments
    if message.method == "tools/call":
        has_form = bool(params.name)
    else:
        has_form = not params.name and params.arguments is msgspec.UNSET
    if not (has_form and _fits_headers(message, headers) and _PLAIN_ID.fullmatch(call_id)):
        return None
    return Message(call_id, params.name, arguments, headers.get(VERSION) in MODERN_PROTOCOL_VERSIONS)


def _fits_headers(message: _Message, headers: Mapping[str, str]) -> bool:
    """Return whether the message has the form of the protocol version in the headers. A modern message repeats its
    version, its method and its tool in the headers.
    """
    version, params = headers.get(VERSION), message.params
    if version not in MODERN_PROTOCOL_VERSIONS:
        return params.meta is msgspec.UNSET and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)
    is_same_version = params.meta is not msgspec.UNSET and params.meta.version == version
    is_same_tool = message.method == "tools/list" or headers.get("mcp-name") == params.name
    return is_same_version and is_same_tool and headers.get("mcp-method") == message.method


def _are_plain(scope: Any, headers: Mapping[str, str]) -> bool:
    """Return whether no header is repeated, each header of MCP is known, and the client accepts both content types."""
    names = [name for name, _ in scope["headers"]]
    is_known = all(name in _KNOWN for name in names if name.startswith(b"mcp-"))
    accepted = {kind.strip() for kind in headers.get("accept", "").split(",")}
    is_plain = is_known and len(set(names)) == len(names) and headers.get("content-type") == JSON
    return is_plain and accepted >= {JSON, EVENTS}


def _is_offered(visit: Visit, tool: str) -> bool:
    """Return whether the message is tools/list, or calls a tool of the connection that only reads."""
    return not tool or (tool in READS and (tool in TOOLS or tool in visit.methods))
