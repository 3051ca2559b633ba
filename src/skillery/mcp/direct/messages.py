"""The messages that are answered directly: well-formed calls without anything unusual. All others go to the SDK."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from skillery.http.requests import JSON

Scalar = str | int | bool | None
MOST_BYTES = 16 * 1024
"""Limit of the bytes of a direct message."""
MOST_OF_META = 4 * 1024
"""Limit of the bytes of `_meta`, because forms are stored under it."""
_KNOWN = {b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-session-id"}
# Ids whose text is the same in every JSON encoder: integers of up to 15 digits, and strings without escapes.
_PLAIN_ID = re.compile(rb'(?:0|-?[1-9][0-9]{0,14}|"[ !#-\[\]-~]{0,128}")')


class Kind(NamedTuple):
    """Everything in a message on which the form of its answer depends, apart from the called tool."""

    method: Literal["tools/list", "tools/call"]
    version: str | None
    """The header MCP-Protocol-Version."""
    accept: str
    meta: bytes
    """The JSON text of `_meta`, or b"" without `_meta`."""

    @property
    def is_modern(self) -> bool:
        return self.version in MODERN_PROTOCOL_VERSIONS


class DirectMessage(NamedTuple):
    kind: Kind
    id: bytes
    """The JSON text of the id."""
    tool: str
    """The called tool. "" for tools/list."""
    arguments: dict[str, Scalar]


class _Params(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    arguments: dict[str, Scalar] | msgspec.UnsetType = msgspec.UNSET
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b""))


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    jsonrpc: Literal["2.0"]
    id: msgspec.Raw
    method: Literal["tools/list", "tools/call"]
    params: _Params = msgspec.field(default_factory=_Params)


_message = msgspec.json.Decoder(_Message)


def direct_message(scope: Any, headers: Mapping[str, str], body: bytes) -> DirectMessage | None:
    """Return the message if it can be answered directly, else None.

    Escapes like `\\ud800` are left to the SDK, because the two JSON decoders treat lone surrogates differently.
    """
    if len(body) > MOST_BYTES or b"\\u" in body or not _are_plain(scope, headers):
        return None
    try:
        found = _message.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    params, call_id = found.params, bytes(found.id)
    kind = Kind(found.method, headers.get("mcp-protocol-version"), headers.get("accept", ""), bytes(params.meta))
    if not (_PLAIN_ID.fullmatch(call_id) and _is_routed(kind, params, headers) and _is_quiet(kind.meta)):
        return None
    arguments = {} if params.arguments is msgspec.UNSET else params.arguments
    return DirectMessage(kind, call_id, params.name, arguments)


def _are_plain(scope: Any, headers: Mapping[str, str]) -> bool:
    """Return whether no header is repeated, and the server knows each header of MCP."""
    names = [name for name, _ in scope["headers"]]
    is_known = all(name in _KNOWN for name in names if name.startswith(b"mcp-"))
    return is_known and len(set(names)) == len(names) and headers.get("content-type") == JSON


def _is_routed(kind: Kind, params: _Params, headers: Mapping[str, str]) -> bool:
    """Return whether the headers say the same as the message, and the params fit the method."""
    is_call = kind.method == "tools/call"
    if is_call != bool(params.name) or (not is_call and params.arguments is not msgspec.UNSET):
        return False
    if kind.is_modern:
        is_named = not is_call or headers.get("mcp-name") == params.name
        return is_named and headers.get("mcp-method") == kind.method
    return kind.version is None or kind.version in HANDSHAKE_PROTOCOL_VERSIONS


def _is_quiet(meta: bytes) -> bool:
    """Return whether the client asks for no progress notifications."""
    return len(meta) <= MOST_OF_META and b"progressToken" not in meta
