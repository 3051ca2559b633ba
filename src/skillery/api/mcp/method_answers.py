"""Calls of the methods of MCP_METHODS, with the error codes of MCP."""

from __future__ import annotations

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from skillery.api.mcp.methods import MCP_METHODS
from skillery.api.mcp.requests import Visit
from skillery.methods.errors import NOT_FOUND, encode
from skillery.methods.execution import Parts, perform


async def answer_of(visit: Visit, method: str, **params: str | None) -> Parts:
    """Return the result of a method of MCP_METHODS as JSON. Omit params that are None.

    Raise MCPError if the method fails. If a thing does not exist, the error code is that of invalid params.
    """
    raw = msgspec.Raw(encoded({name: value for name, value in params.items() if value is not None}))
    answer, error = await perform(visit.core, visit.identity, method, raw, None, MCP_METHODS)
    if answer is None:
        code = INVALID_PARAMS if error["code"] == NOT_FOUND else error["code"]
        raise MCPError(code, error["message"], error["data"])
    return answer


def encoded(value: object) -> bytes:
    """Return the value as JSON. Raise MCPError if JSON does not allow the value, although the SDK has accepted it."""
    try:
        return encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        message = "a text in this call contains a lone surrogate, or a number has too many digits"
        raise MCPError(INVALID_PARAMS, message, {"type": "invalid_params", "hint": "Send valid Unicode."}) from None
