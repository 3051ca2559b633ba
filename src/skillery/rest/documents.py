"""The descriptions of the API: `GET /openrpc.json` for methods, `GET /v1/openapi.json` for endpoints, and `GET
/schemas/NAME.json` for the files of skills.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from litestar.openapi.spec import (
    Components,
    Info,
    License,
    OpenAPI,
    PathItem,
    Reference,
    Schema,
    SecurityScheme,
    Server,
)
from litestar.openapi.spec.enums import OpenAPIType

from skillery import __version__
from skillery.client_source.openrpc import document
from skillery.formats.file_schemas import schema_of_file
from skillery.http.gate import Gate
from skillery.http.operations import SCHEME, TEMPLATE, Operation, Response, described, types_of
from skillery.http.requests import only, send_bytes
from skillery.methods.errors import encode

Object = dict[str, Any]
OPENRPC = (Operation("GET", "/openrpc.json", "All methods, as OpenRPC", {200: Response("The document.", Object)}),)
OPENAPI = (Operation("GET", "/v1/openapi.json", "All endpoints, as OpenAPI", {200: Response("The document.", Object)}),)


def schema_operations(name: str) -> tuple[Operation, ...]:
    """Return the description of the endpoint for a schema."""
    return (
        Operation("GET", schema_address(name), f"The JSON Schema of {name}", {200: Response("The schema.", Object)}),
    )


def schema_address(name: str) -> str:
    return f"/schemas/{name}.json"


async def send_schema(name: str, scope: Any, _receive: Any, send: Any, _headers: dict[str, str]) -> None:
    """Send the JSON Schema of a file of skills. Callers need no token, because editors send none."""
    only(scope, "GET", "HEAD")
    await send_bytes(send, 200, _encoded_schema(name))


@cache
def _encoded_schema(name: str) -> bytes:
    return encode(schema_of_file(name))


async def send_openrpc(gate: Gate, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send the OpenRPC document of all methods."""
    only(scope, "GET", "HEAD")
    await gate.authenticate(scope, headers)
    # The gate has checked that the Host is a name of this server.
    server = {"name": "this server", "url": f"{scope['scheme']}://{headers['host']}/rpc"}
    await send_bytes(send, 200, encode(document() | {"servers": [server]}))


def openapi_endpoint(gate: Gate, operations: list[Operation]) -> Callable[..., Any]:
    """Return the endpoint that sends the OpenAPI document of `operations`."""

    @cache
    def made() -> bytes:
        return encode(openapi_document(operations))

    async def send_openapi(scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
        only(scope, "GET", "HEAD")
        await gate.authenticate(scope, headers)
        await send_bytes(send, 200, made())

    return send_openapi


def openapi_document(operations: list[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document of `operations`, with the schemas of their results."""
    types = types_of(operations)
    schemas, components = msgspec.json.schema_components(types, ref_template=TEMPLATE)
    schema_of = {id(kind): _shown(schema) for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, PathItem] = {}
    for operation in operations:
        item = paths.setdefault(operation.path, PathItem())
        setattr(item, operation.method.lower(), described(operation, schema_of))
    document = OpenAPI(
        info=Info(
            title="Skillery",
            version=__version__,
            description="The HTTP endpoints. /openrpc.json describes the methods of JSON-RPC.",
            license=License(name="Apache-2.0", identifier="Apache-2.0"),
        ),
        servers=[Server(url="/")],
        paths=paths,
        components=Components(
            security_schemes={SCHEME: SecurityScheme(type="http", scheme="bearer", description="With auth = tokens.")}
        ),
    ).to_schema()
    document["components"]["schemas"] = components
    return document


def _shown(schema: Object) -> Schema | Reference:
    """Return a JSON Schema as an object of Litestar. If it refers to a component, return a reference."""
    if "$ref" in schema:
        return Reference(schema["$ref"])
    items = _shown(schema["items"]) if "items" in schema else None
    return Schema(type=OpenAPIType(schema["type"]) if schema else None, items=items)
