"""From settings and plugins to services, and from services to the Litestar app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Litestar, Response
from litestar.exceptions import HTTPException

from skillery import migrate
from skillery.api.bodies import Bodies
from skillery.api.errors import INVALID_REQUEST, NOT_FOUND, plain_error, unexpected
from skillery.api.exchanges import ID_HEADER
from skillery.api.http import headers_of
from skillery.api.readiness import Readiness
from skillery.api.routes import make_routes
from skillery.api.services import Services
from skillery.api.tracing import Tracing, open_tracing
from skillery.app.bundled import publish_bundled
from skillery.app.home import Home
from skillery.app.presence import present
from skillery.backends import Authenticator, Limits, Sandbox, Secrets, Storage
from skillery.blobs import Blobs
from skillery.database import Database
from skillery.errors import StartupError
from skillery.formats.bundle import BundleLimits
from skillery.plugins import Plugins
from skillery.publishing import Publisher, PublishingRules
from skillery.registry import cursor_key
from skillery.request import begin, current
from skillery.runs import Runner
from skillery.runs.cache import Cache
from skillery.runs.granted_secrets import GrantedSecrets
from skillery.runs.limits import LimitRules
from skillery.runs.queueing import Queue
from skillery.runs.recording import close_left_over
from skillery.settings import Settings, is_loopback
from skillery.storage_marks import mark_storage

if TYPE_CHECKING:
    from skillery.api.metrics import Metrics

log = logging.getLogger(__name__)
MIB = 1024 * 1024


@asynccontextmanager
async def open_services(settings: Settings, plugins: Plugins, home: Home) -> AsyncIterator[Services]:
    """Everything that a server needs, migrated and ready; all of it closed at the end. Raises StartupError."""
    plugins.check_settings(settings)
    tracing = open_tracing(settings.traces)
    async with AsyncExitStack() as stack:
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        database = Database(settings.database_url)
        stack.callback(database.close)
        # Nothing connects before the settings are known to be good.
        authenticator: Authenticator = plugins.open("authenticator", settings, database)
        _check_address(settings, authenticator)
        migrate.upgrade(database)
        storage: Storage = plugins.open("storage", settings)
        mark_storage(database, storage, settings.storage)
        sandbox: Sandbox = plugins.open("sandbox", settings)
        stack.push_async_callback(sandbox.close)
        secrets: Secrets = plugins.open("secrets", settings, database)
        services = _services(settings, plugins, home, database, storage, sandbox, authenticator, secrets, tracing)
        stack.push_async_callback(services.runner.close, settings.grace_seconds)
        closed = await database.write(lambda connection: close_left_over(connection, home.server_id))
        if closed:
            log.warning("%d runs that the last server left open are recorded as failed", closed)
        await stack.enter_async_context(present(database, home.server_id))
        await publish_bundled(services.publisher, database)
        yield services


def _services(
    settings: Settings,
    plugins: Plugins,
    home: Home,
    database: Database,
    storage: Storage,
    sandbox: Sandbox,
    authenticator: Authenticator,
    secrets: Secrets,
    tracing: Tracing | None,
) -> Services:
    blobs = Blobs(database, storage)
    return Services(
        database=database,
        storage=storage,
        sandbox=sandbox,
        authenticator=authenticator,
        blobs=blobs,
        runner=Runner(
            database=database,
            blobs=blobs,
            cache=Cache(home.path / "cache", database, storage, blobs),
            sandbox=sandbox,
            sandbox_name=settings.sandbox,
            secrets=GrantedSecrets(database, secrets),
            moments=plugins.moments,
            limits=_limit_rules(settings),
            queue=Queue(settings.runs_at_once, settings.queued_runs, settings.queued_mb * MIB),
            server=home.server_id,
        ),
        publisher=Publisher(
            database,
            storage,
            plugins.moments,
            BundleLimits(max_bytes=settings.bundle_max_mb * MIB, max_files=settings.bundle_max_files),
            _publishing_rules(settings),
            msgspec.structs.asdict(settings.max_limits),
        ),
        cursor_key=database.write_now(cursor_key),
        readiness=Readiness(database, storage, sandbox),
        max_body_bytes=settings.max_body_mb * MIB,
        bodies=Bodies(settings.bodies_mb * MIB),
        allowed_hosts=frozenset(name.lower() for name in (*settings.allowed_hosts, settings.host)),
        allowed_origins=frozenset(origin.lower() for origin in settings.allowed_origins),
        log_requests=settings.log_requests,
        metrics=_metrics(settings),
        tracing=tracing,
    )


def _metrics(settings: Settings) -> Metrics | None:
    if settings.metrics == "off":
        return None
    from skillery.api.metrics import Metrics

    return Metrics(settings.metrics)


def _publishing_rules(settings: Settings) -> PublishingRules:
    if settings.auth == "open":
        # Whoever can connect could approve it as well.
        return PublishingRules(visibility=settings.default_visibility)
    return PublishingRules(settings.publishing.people, settings.publishing.agents, settings.default_visibility)


def _limit_rules(settings: Settings) -> LimitRules:
    defaults = Limits(**msgspec.structs.asdict(settings.limits))
    maximum = msgspec.structs.asdict(settings.max_limits)
    for name, most in maximum.items():
        if getattr(defaults, name) > most:
            raise StartupError(
                f"setting 'limits.{name}' is {getattr(defaults, name)}, above max_limits.{name} ({most})"
            )
    return LimitRules(defaults, maximum)


def _check_address(settings: Settings, authenticator: Authenticator) -> None:
    if authenticator.loopback_only and not is_loopback(settings.host):
        raise StartupError(
            f"host is '{settings.host}', but auth '{settings.auth}' lets in everybody who can connect: "
            "bind 127.0.0.1 and put a proxy with a login before it, or choose an authenticator with the setting 'auth'"
        )


def create_app(services: Services) -> Litestar:
    """The Litestar app over open services."""
    return Litestar(
        make_routes(services),
        openapi_config=None,
        plugins=[services.tracing.plugin()] if services.tracing is not None else [],
        logging_config=None,
        exception_handlers={HTTPException: _http_error, Exception: _unexpected},
    )


def _http_error(request: Any, error: HTTPException) -> Response[Any]:
    status = error.status_code
    kind = "not_found" if status == 404 else "method_not_allowed" if status == 405 else "http_error"
    if status == 404:
        body = plain_error(NOT_FOUND, "there is nothing at this address", kind, "JSON-RPC is at POST /rpc.")
    else:
        body = plain_error(INVALID_REQUEST, error.detail, kind)
    return Response({"error": body}, status_code=status, headers=dict(error.headers or {}) | _request_id(request))


def _unexpected(request: Any, error: Exception) -> Response[Any]:
    # First: the error is logged under the id that the answer shows.
    headers = _request_id(request)
    return Response({"error": unexpected(error)}, status_code=500, headers=headers)


def _request_id(request: Any) -> dict[str, str]:
    """For what no door has seen."""
    begun = current.get() or begin(
        headers_of(request.scope).get(ID_HEADER), request.client.host if request.client else ""
    )
    return {ID_HEADER: begun.id}
