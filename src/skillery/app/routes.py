"""The routes of all endpoints with the parts that they share, and the Litestar app that serves them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from litestar import Litestar, Response, asgi
from litestar.config.app import AppConfig
from litestar.exceptions import HTTPException
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ASGIApp

from skillery.app.logs import Tracing
from skillery.backends import Resource
from skillery.client_source import model_tools
from skillery.context.budget import Budget, open_rooms
from skillery.context.request import Silences, begin, current, starting
from skillery.context.worker_pool import WorkerPool
from skillery.errors import SkilleryError
from skillery.formats.file_schemas import FILES
from skillery.http import health, run_streams
from skillery.http.exchanges import ID_HEADER, ClientGone, Exchange, headers_of_all_answers, log_request
from skillery.http.gate import FORBIDDEN, Gate
from skillery.http.health import Readiness, ServerState
from skillery.http.operations import METADATA_OPERATIONS, ResourceMetadata, Route
from skillery.http.requests import HttpRefusal, headers_of, refusal_of, send_refusal
from skillery.http.run_streams import OpenStreams
from skillery.mcp import endpoint as mcp
from skillery.mcp.endpoint import McpEndpoint
from skillery.methods.core import Core
from skillery.methods.errors import INVALID_REQUEST, NOT_FOUND, plain_error, unexpected
from skillery.rest import blobs, documents, imports, proofs, trusted_publishing, workspaces
from skillery.rest.downloads import DOWNLOADS, routed
from skillery.rest.exports import DownloadParts
from skillery.rest.plugin_routes import PREFIX, PluginRoutes
from skillery.rest.skill_endpoints import V1_ENDPOINTS
from skillery.rest.skill_requests import SkillParts
from skillery.rpc import endpoint as rpc

if TYPE_CHECKING:
    from skillery.rest.metrics import Metrics


class HttpParts(NamedTuple):
    """The parts of the HTTP side. Each endpoint gets only the parts that it needs."""

    gate: Gate
    bodies: Budget
    max_body_bytes: int
    answers: Budget
    answer_seconds: float
    """Seconds that a client may read nothing of its answer."""
    streams: OpenStreams
    public_downloads: bool
    """Whether public skills can be downloaded without credentials."""
    web: bool
    """Whether the server has pages for browsers."""
    git: bool
    """Whether the server has repositories for git."""
    public_url: str
    """The setting `public_url`."""
    log_requests: bool
    readiness: Readiness
    page_workers: WorkerPool
    """Worker processes that render foreign texts for pages."""
    silences: Silences
    mcp: McpEndpoint
    metrics: Metrics | None
    """None if the setting `metrics` is off."""
    tracing: Tracing | None
    plugin_routes: PluginRoutes | None
    """None if no plugin has routes."""
    state: ServerState
    resource: Resource | None
    """How clients get a token. None if no authenticator describes it."""


# -- The routes of all endpoints. This module gives each endpoint the parts that it uses -------------------------------


def make_routes(core: Core, edge: HttpParts, pages: Sequence[Route] = ()) -> list[Route]:
    """Return all routes of the server. `pages` are the routes of web pages and of git."""
    routes = [*_server_routes(core, edge), *_skill_routes(core, edge), *pages]
    operations = [operation for route in routes for operation in route.operations] + list(documents.OPENAPI)
    document = documents.openapi_endpoint(edge.gate, operations)
    return [*routes, Route("/v1/openapi.json", document, ())]


def _server_routes(core: Core, edge: HttpParts) -> list[Route]:
    gate = edge.gate
    tools = model_tools.ToolsEndpoint(gate, core.environments.named)
    prompt = model_tools.PromptEndpoint(gate, core)
    blob_parts = blobs.BlobParts(gate, core.blobs, core.signed, core.once)
    import_parts = imports.ImportParts(gate, core.importer)
    events = run_streams.RunEvents(gate, core.following, edge.streams)
    workspace_parts = workspaces.WorkspaceParts(gate, core.workspaces)
    rpc_endpoint = rpc.RpcEndpoint(gate, core, edge.max_body_bytes)
    trust = trusted_publishing.TrustParts(gate, core.exchange)
    metrics = edge.metrics
    return [
        *([Route("/metrics", metrics.answer, metrics.operations)] if metrics is not None else []),
        *_metadata_routes(edge),
        *_plugin_routes(edge),
        Route(
            trusted_publishing.ADDRESS, partial(trusted_publishing.exchange_token, trust), trusted_publishing.OPERATIONS
        ),
        Route("/rpc", rpc_endpoint.answer, rpc.OPERATIONS, is_rpc=True),
        Route("/openrpc.json", partial(documents.send_openrpc, gate), documents.OPENRPC),
        *(
            Route(
                documents.schema_address(name),
                partial(documents.send_schema, name),
                documents.schema_operations(name),
                is_guarded=False,
            )
            for name in FILES
        ),
        Route("/mcp", edge.mcp.answer, mcp.OPERATIONS, is_rpc=True),
        Route("/tools", tools.answer, model_tools.TOOLS_OPERATIONS),
        Route("/prompt", prompt.answer, model_tools.PROMPT_OPERATIONS),
        Route("/blobs", partial(blobs.blobs_endpoint, blob_parts), blobs.OPERATIONS, is_mount=True),
        Route("/import", partial(imports.receive_archive, import_parts), imports.OPERATIONS),
        Route("/v1/runs", events.answer, run_streams.OPERATIONS, paths=run_streams.PATHS),
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


def _plugin_routes(edge: HttpParts) -> list[Route]:
    plugin_routes = edge.plugin_routes
    return (
        [] if plugin_routes is None else [Route(PREFIX, plugin_routes.answer, plugin_routes.operations, is_mount=True)]
    )


def _metadata_routes(edge: HttpParts) -> list[Route]:
    if edge.resource is None:
        return []
    metadata = ResourceMetadata(edge.resource)
    of_server, of_mcp = METADATA_OPERATIONS
    return [
        Route(of_server.path, metadata.send_of_server, (of_server,)),
        Route(of_mcp.path, metadata.send_of_mcp, (of_mcp,)),
    ]


def _skill_routes(core: Core, edge: HttpParts) -> list[Route]:
    parts = DownloadParts(
        edge.gate,
        core.exports,
        core.contents.uses,
        core.signed,
        edge.public_downloads,
        core.marketplaces,
        edge.git,
        edge.public_url,
        core.registry,
        core.environments.queries,
        core.run_statements,
    )
    skill_parts = SkillParts(edge.gate, core.registry, core.importer, parts)
    downloads = [Route(row.group, partial(row.endpoint, parts), row.operations, row.paths) for row in DOWNLOADS]
    v1 = [
        Route("/v1/skills", partial(row.endpoint, skill_parts), row.operations, row.paths, row.methods)
        for row in V1_ENDPOINTS
    ]
    proof = [Route(row.group, partial(row.endpoint, parts), (row.operation,), row.paths) for row in proofs.ENDPOINTS]
    return [*downloads, *proof, *v1]


def _for_litestar(edge: HttpParts, route: Route) -> Any:
    app = _app(edge, route)
    if route.paths:
        return routed(route.paths, route.methods, app)

    @asgi(route.name, is_mount=route.is_mount, copy_scope=False)
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return handler


def _app(edge: HttpParts, route: Route) -> ASGIApp:
    """Return the ASGI app of a route. The app calls the endpoint, turns exceptions into responses, and counts and
    logs the request.
    """
    refuse = route.fail or partial(_refuse, is_rpc=route.is_rpc)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = headers_of(scope)
        exchange = Exchange(scope, headers, receive, send, edge.answer_seconds)
        exchange.request.method = f"{scope['method']} {route.name}"
        if edge.tracing is not None:
            starting.set(edge.tracing.start)
        started_at = time.perf_counter()
        with open_rooms(edge.bodies, edge.answers):
            try:
                if route.is_guarded:
                    edge.gate.check_browser(scope, headers)
                await route.endpoint(scope, exchange.receive, exchange.send, headers)
            except HttpRefusal as refusal:
                if refusal.status == FORBIDDEN:
                    edge.gate.note_foreign_origin(refusal.error)
                await refuse(scope, exchange.send, headers, refusal)
            except SkilleryError as error:
                await refuse(scope, exchange.send, headers, refusal_of(error))
            except ClientGone:
                return
            except Exception as error:
                if exchange.started:
                    # A part of the answer has been sent, so only a broken connection can show the error.
                    raise
                await refuse(scope, exchange.send, headers, HttpRefusal(500, unexpected(error)))
            finally:
                seconds = time.perf_counter() - started_at
                if edge.metrics is not None:
                    edge.metrics.note(route.name, exchange, seconds)
                if edge.log_requests:
                    log_request(route.name, scope["method"], exchange, seconds)

    return app


async def _refuse(_scope: Any, send: Any, _headers: dict[str, str], refusal: HttpRefusal, *, is_rpc: bool) -> None:
    await send_refusal(send, refusal, rpc=is_rpc)


class LeanApp(Litestar):
    """Litestar without its automatic plugins for pydantic, attrs and OpenTelemetry.

    No endpoint needs these plugins, and their imports take 0.4 s at each start. Both methods are private in Litestar.
    If a release of Litestar renames the methods, starts become slower again, and nothing else changes.

    `direct` has the apps of JSON-RPC and MCP by path. They need nothing of Litestar, whose router and middleware take a
    tenth of the time of a listing (measured).
    """

    direct: Mapping[str, ASGIApp] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self.direct.get(scope.get("path", ""))
        await (app or super().__call__)(scope, receive, send)

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]

    @staticmethod
    def _patch_opentelemetry_middleware(config: AppConfig) -> AppConfig:
        return config


def create_app(core: Core, edge: HttpParts, *, for_browsers: bool = True) -> Litestar:
    """Return the Litestar app of an open server. Without `for_browsers`, the app has no pages: templates take time to
    load, and commands in the process of a home open none.
    """
    pages: list[Route] = []
    fail = None
    if for_browsers:
        from skillery.web import login, pages_table
        from skillery.web.failures import send_failure
        from skillery.web.site import open_site

        site = open_site(core, edge.gate, edge.streams, edge.state, edge.page_workers, edge.public_downloads)
        pages = pages_table.make_pages(site) if edge.web else login.login_routes(site)
        fail = partial(send_failure, site) if edge.web else None
    if edge.git:
        from skillery.git.endpoint import GitParts, git_routes

        pages = [*pages, *git_routes(GitParts(edge.gate, core.repositories))]
    routes = make_routes(core, edge, pages)
    kind = Litestar if edge.tracing is not None else LeanApp
    app = kind(
        [_for_litestar(edge, route) for route in routes],
        openapi_config=None,
        plugins=[edge.tracing.plugin()] if edge.tracing is not None else [],
        logging_config=None,
        exception_handlers={HTTPException: partial(_http_error, fail), Exception: _unexpected},
    )
    if isinstance(app, LeanApp):
        app.direct = {route.name: _app(edge, route) for route in routes if route.is_rpc}
    return app


def _http_error(fail: Any, request: Any, error: HTTPException) -> Any:
    """Return the answer to an HTTP error of Litestar: a page for a browser, else JSON. `fail` sends pages; None without
    pages.
    """
    status = error.status_code
    kind = "not_found" if status == 404 else "method_not_allowed" if status == 405 else "http_error"
    if status == 404:
        body = plain_error(NOT_FOUND, "this path does not exist", kind, "JSON-RPC is at POST /rpc.")
    else:
        body = plain_error(INVALID_REQUEST, error.detail, kind)
    fixed = _fixed_headers(request)
    headers = headers_of(request.scope)
    if fail is not None and "text/html" in headers.get("accept", ""):
        return _FailurePage(partial(fail, request.scope, headers=headers, refusal=HttpRefusal(status, body)), fixed)
    return Response({"error": body}, status_code=status, headers=dict(error.headers or {}) | fixed)


class _FailurePage(Response[Any]):
    """The answer to a browser that opens an address without an endpoint."""

    def __init__(self, send_page: Any, fixed: dict[str, str]) -> None:
        super().__init__(None)
        self._send_page = send_page
        self._fixed = [(name.encode(), value.encode()) for name, value in fixed.items()]

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            async def with_fixed(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *self._fixed]
                await send(message)

            await self._send_page(with_fixed)

        return answer


def _unexpected(request: Any, error: Exception) -> Response[Any]:
    # The request id is set first, so that the logged error has the id of the answer.
    headers = _fixed_headers(request)
    return Response({"error": unexpected(error)}, status_code=500, headers=headers)


def _fixed_headers(request: Any) -> dict[str, str]:
    """Return the headers of all answers. A request that no endpoint handled gets its id here."""
    begun = current.get() or begin(
        headers_of(request.scope).get(ID_HEADER), request.client.host if request.client else ""
    )
    return headers_of_all_answers(begun.id)
