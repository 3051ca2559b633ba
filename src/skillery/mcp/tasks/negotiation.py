"""The checks of requests about tasks: the protocol version, the capability of the client, and the routing header."""

from __future__ import annotations

from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.jsonrpc import HEADER_MISMATCH, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Context = ServerRequestContext[Any, Any]
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
REQUIRED: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}


def declares_tasks(context: Context) -> bool:
    """Return whether this request declares the extension. Only requests of version 2026-07-28 or later can."""
    declared = context.session.client_capabilities
    extensions = (declared.extensions or {}) if declared is not None else {}
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS_EXTENSION in extensions


def require_tasks(context: Context) -> None:
    """Raise MCPError if the protocol version has no tasks, or if the request does not declare the extension."""
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        hint = f"The extension {TASKS_EXTENSION} needs version {MODERN_PROTOCOL_VERSIONS[0]} of the protocol."
        message = f"there is no method {context.method!r} in version {context.protocol_version}"
        raise MCPError(METHOD_NOT_FOUND, message, {"type": "method_not_found", "hint": hint})
    if not declares_tasks(context):
        message = f"{context.method} needs the extension {TASKS_EXTENSION}, which the request does not declare"
        hint = "Declare it in _meta of the request: io.modelcontextprotocol/clientCapabilities.extensions."
        data = {"type": "missing_capability", "hint": hint, "requiredCapabilities": REQUIRED}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, data)


def check_name_header(context: Context, task_id: str) -> None:
    """Raise MCPError if the header `Mcp-Name` is not the id of the task. Load balancers may route by this header."""
    value = context.request.headers.get(MCP_NAME_HEADER) if context.request is not None else None
    if decode_header_value(value) != task_id:
        message = f"the header Mcp-Name is not the taskId of {context.method}"
        hint = "Send the taskId as Mcp-Name too."
        raise MCPError(HEADER_MISMATCH, message, {"type": "header_mismatch", "hint": hint})
