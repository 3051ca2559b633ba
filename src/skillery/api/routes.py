"""The routes of all endpoints. This module gives each endpoint the parts that it uses."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from litestar import asgi
from litestar.types import ASGIApp

from skillery.api import (
    api_documents,
    blobs,
    health,
    imports,
    model_tools,
    resource_metadata,
    run_events,
    trusted_publishing,
    workspaces,
)
from skillery.api.core import Core
from skillery.api.downloads import DOWNLOADS, routed
from skillery.api.edge import Edge
from skillery.api.errors import unexpected
from skillery.api.exchanges import ClientGone, Exchange, log_request
from skillery.api.exports import DownloadParts
from skillery.api.gate import FORBIDDEN
from skillery.api.http import HttpRefusal, headers_of, send_error, send_refusal
from skillery.api.mcp import endpoint as mcp
from skillery.api.operations import Operation
from skillery.api.plugin_routes import PREFIX
from skillery.api.rpc import endpoint as rpc
from skillery.api.v1.endpoints import V1_ENDPOINTS
from skillery.api.v1.parts import V1Parts
from skillery.api.web import login, provider_login
from skillery.api.web.visits import Visits
from skillery.context.tracing import starting
from skillery.errors import SkilleryError

Endpoint = Callable[[Any, Any, Any, dict[str, str]], Awaitable[None]]
"""Function that answers one request. The arguments are the ASGI scope, `receive`, `send`, and the headers by
lower-case name.
"""


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


def make_routes(core: Core, edge: Edge) -> list[Any]:
    """Return all routes of the server as route handlers of Litestar."""
    routes = [*_plain_routes(core, edge), *_download_routes(core, edge)]
    operations = [operation for route in routes for operation in route.operations] + list(api_documents.OPENAPI)
    document = api_documents.openapi_endpoint(edge.gate, operations)
    return [_for_litestar(edge, route) for route in (*routes, Route("/v1/openapi.json", document, ()))]


def _plain_routes(core: Core, edge: Edge) -> list[Route]:
    gate, bodies, answers = edge.gate, edge.bodies, edge.answers
    tools = model_tools.ToolsEndpoint(gate, core.environments.named)
    prompt = model_tools.PromptEndpoint(gate, core.registry)
    blob_parts = blobs.BlobParts(gate, core.blobs, core.signed, core.once, answers)
    import_parts = imports.ImportParts(gate, core.importer)
    events = run_events.RunEvents(gate, core.runner, edge.streams)
    workspace_parts = workspaces.WorkspaceParts(gate, core.workspaces, answers)
    rpc_endpoint = rpc.RpcEndpoint(gate, core, bodies, answers, edge.max_body_bytes)
    trust = trusted_publishing.TrustParts(gate, core.trust, bodies)
    metrics = edge.metrics
    return [
        *([Route("/metrics", metrics.answer, metrics.operations)] if metrics is not None else []),
        *_metadata_routes(edge),
        *_plugin_routes(edge),
        *_login_routes(core, edge),
        Route(
            trusted_publishing.ADDRESS, partial(trusted_publishing.exchange_token, trust), trusted_publishing.OPERATIONS
        ),
        Route("/rpc", rpc_endpoint.answer, rpc.OPERATIONS, is_rpc=True),
        Route("/openrpc.json", partial(api_documents.send_openrpc, gate), api_documents.OPENRPC),
        Route("/mcp", edge.mcp.answer, mcp.OPERATIONS, is_rpc=True),
        Route("/tools", tools.answer, model_tools.TOOLS_OPERATIONS),
        Route("/prompt", prompt.answer, model_tools.PROMPT_OPERATIONS),
        Route("/blobs", partial(blobs.blobs_endpoint, blob_parts), blobs.OPERATIONS, is_mount=True),
        Route("/import", partial(imports.receive_archive, import_parts), imports.OPERATIONS),
        Route("/v1/runs", events.answer, run_events.OPERATIONS, paths=run_events.PATHS),
        Route(
            "/v1/workspaces",
            partial(workspaces.file_endpoint, workspace_parts),
            workspaces.FILE_OPERATIONS,
            workspaces.FILE_PATHS,
            ("GET", "HEAD", "PUT"),
        ),
        Route(
            "/v1/workspaces",
            partial(workspaces.archive_endpoint, workspace_parts),
            workspaces.ARCHIVE_OPERATIONS,
            workspaces.ARCHIVE_PATHS,
        ),
        Route("/healthz", health.healthz, health.HEALTHZ, is_guarded=False),
        Route("/readyz", partial(health.readyz, edge.readiness), health.READYZ, is_guarded=False),
    ]


def _plugin_routes(edge: Edge) -> list[Route]:
    found = edge.plugin_routes
    return [] if found is None else [Route(PREFIX, found.answer, found.operations, is_mount=True)]


def _metadata_routes(edge: Edge) -> list[Route]:
    if edge.resource is None:
        return []
    metadata = resource_metadata.ResourceMetadata(edge.resource)
    of_server, of_mcp = resource_metadata.OPERATIONS
    return [
        Route(of_server.path, metadata.send_of_server, (of_server,)),
        Route(of_mcp.path, metadata.send_of_mcp, (of_mcp,)),
    ]


def _login_routes(core: Core, edge: Edge) -> list[Route]:
    visits = Visits(edge.gate, core.sessions, core.signer, edge.bodies)
    pages, elsewhere = login.LoginPages(visits), provider_login.ProviderLogin(visits)
    return [
        Route("/login", pages.answer, login.LOGIN_OPERATIONS),
        Route("/logout", pages.sign_out, login.LOGOUT_OPERATIONS),
        Route("/login/{name}", elsewhere.begin, provider_login.BEGIN, provider_login.BEGIN_PATHS, ("GET",)),
        Route("/login/{name}/callback", elsewhere.finish, provider_login.FINISH, provider_login.FINISH_PATHS, ("GET",)),
    ]


def _download_routes(core: Core, edge: Edge) -> list[Route]:
    parts = DownloadParts(edge.gate, core.exports, core.signed, edge.answers, edge.public_downloads)
    v1_parts = V1Parts(edge.gate, core.registry, core.importer, parts)
    downloads = [Route(one.group, partial(one.endpoint, parts), one.operations, one.paths) for one in DOWNLOADS]
    v1 = [
        Route("/v1/skills", partial(one.endpoint, v1_parts), one.operations, one.paths, one.methods)
        for one in V1_ENDPOINTS
    ]
    return [*downloads, *v1]


def _for_litestar(edge: Edge, route: Route) -> Any:
    app = _app(edge, route)
    if route.paths:
        return routed(route.paths, route.methods, app)

    @asgi(route.name, is_mount=route.is_mount, copy_scope=False)
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return handler


def _app(edge: Edge, route: Route) -> ASGIApp:
    """Return the ASGI app of a route. The app calls the endpoint, turns exceptions into responses, and counts and
    logs the request.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = headers_of(scope)
        exchange = Exchange(scope, headers, receive, send, edge.answer_seconds)
        if edge.tracing is not None:
            starting.set(edge.tracing.start)
        begun = time.perf_counter()
        try:
            if route.is_guarded:
                edge.gate.check_browser(scope, headers)
            await route.endpoint(scope, exchange.receive, exchange.send, headers)
        except HttpRefusal as refusal:
            if refusal.status == FORBIDDEN:
                edge.gate.note_knock(refusal.error)
            await send_refusal(exchange.send, refusal, rpc=route.is_rpc)
        except SkilleryError as error:
            await send_error(exchange.send, error)
        except ClientGone:
            return
        except Exception as error:
            if exchange.started:
                # A part of the answer has been sent, so only a broken connection can show the error.
                raise
            await send_refusal(exchange.send, HttpRefusal(500, unexpected(error)), rpc=route.is_rpc)
        finally:
            if edge.metrics is not None:
                edge.metrics.note(route.name, exchange)
            if edge.log_requests:
                log_request(route.name, scope["method"], exchange, time.perf_counter() - begun)

    return app
