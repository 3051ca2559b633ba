"""How clients get a token for this server: protected resource metadata, and the challenge of a 401 (RFC 9728)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillery.backends import Resource
from skillery.edge.http import only, send_bytes
from skillery.edge.operations import Operation, Response
from skillery.methods.errors import encode

METADATA = "/.well-known/oauth-protected-resource"
MCP = "/mcp"
NAME = "Skillery"
OPERATIONS = tuple(
    Operation(
        "GET",
        address,
        summary,
        {200: Response("The metadata of RFC 9728.", dict[str, Any])},
        description="Answered if an authenticator accepts tokens of an authorization server.",
        is_open=True,
    )
    for address, summary in (
        (METADATA, "Where clients get a token for this server"),
        (METADATA + MCP, "Where clients of MCP get a token for this server"),
    )
)


class ResourceMetadata:
    """Endpoint for the metadata of this server, and of `/mcp`, which MCP clients take for a resource of its own."""

    def __init__(self, resource: Resource) -> None:
        self._of_server = encode(_metadata(resource, ""))
        self._of_mcp = encode(_metadata(resource, MCP))

    async def send_of_server(self, scope: Any, _receive: Any, send: Any, _headers: dict[str, str]) -> None:
        only(scope, "GET", "HEAD")
        await send_bytes(send, 200, self._of_server)

    async def send_of_mcp(self, scope: Any, _receive: Any, send: Any, _headers: dict[str, str]) -> None:
        only(scope, "GET", "HEAD")
        await send_bytes(send, 200, self._of_mcp)


def _metadata(resource: Resource, path: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "resource": resource.address + path,
        "authorization_servers": resource.authorization_servers,
        "bearer_methods_supported": ["header"],
        "resource_name": NAME,
    }
    if resource.scopes:
        metadata["scopes_supported"] = resource.scopes
    # RFC 9728 §2 permits further members. Clients ignore the members that they do not know.
    if resource.cli_client_id:
        metadata["skillery_cli_client_id"] = resource.cli_client_id
    return metadata


def challenge(resource: Resource | None, scope: Any, headers: Mapping[str, str]) -> str:
    """Return the value of `WWW-Authenticate` for a request that is not authenticated (RFC 6750 §3, RFC 9728 §5.1)."""
    if resource is None:
        return "Bearer"
    path = MCP if scope.get("path") == MCP else ""
    parameters = {"resource_metadata": f"{resource.address}{METADATA}{path}"}
    if resource.scopes:
        parameters["scope"] = " ".join(resource.scopes)
    # A request without credentials gets no error code (RFC 6750 §3.1).
    if "authorization" in headers:
        parameters["error"] = "invalid_token"
    return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())
