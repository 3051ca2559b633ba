"""Endpoints: their addresses, their descriptions for OpenAPI, and the metadata about tokens.

Each module with an endpoint declares its operations.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Parameter, Reference, RequestBody, Schema
from litestar.openapi.spec import Operation as OpenApiOperation
from litestar.openapi.spec.enums import OpenAPIFormat, OpenAPIType

from skillery.backends import Resource, Scope
from skillery.http.requests import HttpRefusal, only, send_bytes
from skillery.methods.errors import encode

JSON = "application/json"
TEMPLATE = "#/components/schemas/{name}"
SCHEME = "bearer"
_NAMES = re.compile(r"\{(\w+)\}")
_ERRORS = {
    400: "A parameter, a name or the body is not valid.",
    401: "The token is missing or not valid.",
    403: "The scopes or namespace grants of the token do not suffice, or the Host or Origin is not allowed.",
    404: "The thing does not exist, or the caller may not see it.",
    405: "The address does not support this HTTP method.",
    408: "No byte of the body arrived for too long.",
    409: "The current state does not allow the change.",
    413: "The body is too large, or a quota is used up.",
    415: "The endpoint does not accept this Content-Type.",
    416: "The Range has no byte of the content.",
    422: "A policy refused the change; data.findings has the reasons.",
    429: "Too many logins from this address failed.",
    503: "The server is busy, or the database or the storage is unavailable. Retry-After says when to try again.",
}


class Fault(msgspec.Struct):
    """The error object of a failed request."""

    code: int
    """The JSON-RPC code of the error."""
    message: str
    data: dict[str, Any]
    """`type` is a stable word for the error. `hint`, if present, is the remedy. Errors have further members."""


class ErrorAnswer(msgspec.Struct):
    """The response of an endpoint to a failed request."""

    error: Fault


class Response(NamedTuple):
    """A response to a successful request."""

    description: str
    type: Any = None
    """Type of the JSON body. None if the body is not JSON or there is no body."""
    kinds: tuple[str, ...] = (JSON,)
    """Media types of the body. Empty if there is no body."""


ELSEWHERE = Response(
    "The content is in the storage, at the address in Location. The address is valid for the time of the setting "
    "signed_downloads_seconds, and needs no token.",
    kinds=(),
)


class Body(NamedTuple):
    """The body of a request."""

    kind: str
    schema: Schema
    description: str


class Operation(NamedTuple):
    """One HTTP method of one address. `path` is in the notation of OpenAPI: `/blobs/{blob_id}`."""

    method: str
    path: str
    summary: str
    responses: dict[int, Response]
    errors: tuple[int, ...] = ()
    """HTTP statuses of errors, in addition to the statuses that all endpoints have."""
    needs: Scope | None = None
    """The required scope. None: any authenticated caller, or any caller if `is_open`."""
    is_open: bool = False
    """Whether callers need no credentials."""
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    tag: str = "endpoints"


def in_query(name: str, description: str, kind: OpenAPIType = OpenAPIType.STRING, **schema: Any) -> Parameter:
    return Parameter(name, "query", schema=Schema(type=kind, **schema), description=description)


BINARY = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)


def types_of(operations: list[Operation]) -> list[Any]:
    """Return the types of all JSON responses, for the components of the OpenAPI document."""
    answers = [
        answer.type for operation in operations for answer in operation.responses.values() if answer.type is not None
    ]
    return [ErrorAnswer, *answers]


def described(operation: Operation, schema_of: Mapping[int, Schema | Reference]) -> OpenApiOperation:
    """Return an operation as an object of Litestar. `schema_of` maps the `id()` of each response type to its schema."""
    responses: dict[str, OpenAPIResponse | Reference] = {}
    for status, answer in operation.responses.items():
        schema = BINARY if answer.type is None else schema_of[id(answer.type)]
        content = {kind: OpenAPIMediaType(schema=schema) for kind in answer.kinds} or None
        responses[str(status)] = OpenAPIResponse(answer.description, content=content)
    always = (503,) if operation.is_open else (401, 403, 429, 503)
    for status in sorted({*operation.errors, *always} - operation.responses.keys()):
        error = {JSON: OpenAPIMediaType(schema=schema_of[id(ErrorAnswer)])}
        responses[str(status)] = OpenAPIResponse(_ERRORS[status], content=error)
    in_path = [
        Parameter(name, "path", schema=Schema(type=OpenAPIType.STRING, min_length=1), required=True)
        for name in _NAMES.findall(operation.path)
    ]
    body = operation.body
    return OpenApiOperation(
        tags=[operation.tag],
        summary=operation.summary,
        description=" ".join(part for part in (operation.description, _access(operation)) if part),
        operation_id=f"{operation.method.lower()}{re.sub(r'[^0-9A-Za-z]+', '_', operation.path).rstrip('_')}",
        parameters=[*in_path, *operation.parameters] or None,
        request_body=RequestBody({body.kind: OpenAPIMediaType(schema=body.schema)}, body.description, required=True)
        if body
        else None,
        responses=responses,
        security=[] if operation.is_open else [{SCHEME: []}],
    )


def _access(operation: Operation) -> str:
    if operation.is_open:
        return ""
    return f"Requires the scope `{operation.needs}`." if operation.needs else "Any valid token is accepted."


# -- An endpoint and its addresses -------------------------------------------------------------------------------------


Endpoint = Callable[[Any, Any, Any, dict[str, str]], Awaitable[None]]
"""Function that answers one request. The arguments are the ASGI scope, `receive`, `send`, and the headers by
lower-case name.
"""

SendFailure = Callable[[Any, Any, dict[str, str], HttpRefusal], Awaitable[None]]
"""Function that answers a failed request. The arguments are the ASGI scope, `send`, the headers and the refusal."""


class Route(NamedTuple):
    """An endpoint and its addresses."""

    name: str
    """Name of the endpoint in metrics and in the server's log."""
    endpoint: Endpoint
    operations: Sequence[Operation]
    """The descriptions of the endpoint for OpenAPI."""
    paths: tuple[str, ...] = ()
    """Addresses with parameters, in the notation of Litestar. If empty, `name` is the only address."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    """The HTTP methods of the addresses in `paths`. Without `paths`, the endpoint itself checks the HTTP method."""
    is_rpc: bool = False
    """Whether refused requests are answered with a JSON-RPC message."""
    is_guarded: bool = True
    """Whether Host and Origin of requests are checked."""
    is_mount: bool = False
    """Whether the endpoint also answers all addresses below `name`."""
    fail: SendFailure | None = None
    """How a request is answered that fails. None: with an error object as JSON."""


# -- How clients get a token for this server: protected resource metadata, and the challenge of a 401 (RFC 9728) -------


METADATA = "/.well-known/oauth-protected-resource"
MCP = "/mcp"
NAME = "Skillery"
METADATA_OPERATIONS = tuple(
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
