"""MCP over plain HTTP in both protocol versions, for requests that the SDK has no method for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import httpx

from tests.conftest import Rpc

MODERN, LEGACY = "2026-07-28", "2025-11-25"
NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
PREFIX = "io.modelcontextprotocol"


class McpError(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error


class Mcp:
    """An MCP client: `mcp("skills/list")` returns the result, `mcp.error(…)` the error, `mcp.tool("list_skills",
    limit=5)` calls a tool. The client declares the extensions `declared`.
    """

    def __init__(self, rpc: Rpc, era: str = MODERN, tools: str = "", declared: Sequence[str] = ()) -> None:
        self.http, self.era = rpc.http, era
        self._capabilities: dict[str, Any] = {"extensions": {name: {} for name in declared}} if declared else {}
        self.address = f"/mcp?tools={tools}" if tools else "/mcp"
        self._ids = itertools.count(1)

    def __call__(self, method: str, /, **params: Any) -> dict[str, Any]:
        said = message_of(self.send(method, params))
        if "error" in said:
            raise McpError(said["error"])
        result: dict[str, Any] = said["result"]
        return result

    def error(self, method: str, /, **params: Any) -> dict[str, Any]:
        said = message_of(self.send(method, params))
        assert "error" in said, said
        error: dict[str, Any] = said["error"]
        return error

    def tool(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        return self("tools/call", name=name, arguments=arguments)

    def all(self, method: str, key: str, **params: Any) -> list[dict[str, Any]]:
        """Return the entries of all pages of a listing."""
        found: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = self(method, **params, **cursor)
            found += page[key]
            if "nextCursor" not in page:
                return found
            cursor = {"cursor": page["nextCursor"]}

    def send(self, method: str, params: dict[str, Any], **headers: str) -> httpx.Response:
        body, own = self.request(method, params)
        return self.http.post(self.address, content=body, headers=own | headers)

    def request(self, method: str, params: dict[str, Any]) -> tuple[str, dict[str, str]]:
        """Return the body and the headers of a request."""
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        headers["mcp-protocol-version"] = self.era
        if self.era == MODERN:
            headers["mcp-method"] = method
            if method in NAMED_BY:
                headers["mcp-name"] = str(params[NAMED_BY[method]])
            meta = {f"{PREFIX}/protocolVersion": MODERN, f"{PREFIX}/clientCapabilities": self._capabilities}
            params = params | {"_meta": params.get("_meta", {}) | meta}
        return json.dumps({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}), headers


def message_of(response: httpx.Response) -> dict[str, Any]:
    """Return the response message, from a JSON body or from a stream."""
    return messages_of(response)[-1]


def messages_of(response: httpx.Response) -> list[dict[str, Any]]:
    if response.headers["content-type"].startswith("text/event-stream"):
        return [
            json.loads(line[5:]) for line in response.text.split("\n") if line.startswith("data:") and line[5:].strip()
        ]
    return [response.json()]
