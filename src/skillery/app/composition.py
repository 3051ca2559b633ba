"""Composition: build the services from settings and plugins, and the Litestar app from the services."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Litestar, Response
from litestar.exceptions import HTTPException

from skillery.api.answers import Answers
from skillery.api.budgets import Bodies
from skillery.api.errors import INVALID_REQUEST, NOT_FOUND, plain_error, unexpected
from skillery.api.exchanges import ID_HEADER
from skillery.api.http import headers_of
from skillery.api.mcp.endpoint import McpEndpoint
from skillery.api.readiness import Readiness
from skillery.api.routes import make_routes
from skillery.api.rpc.methods import METHODS
from skillery.api.run_events import RunEvents, StreamLimits
from skillery.api.services import Services
from skillery.api.tracing import Tracing, open_tracing
from skillery.app.background_jobs import BackgroundJobs
from skillery.app.bundled import publish_bundled
from skillery.app.environments import packages_of
from skillery.app.events import PreparingEvents
from skillery.app.home import Home
from skillery.app.named_environments import defined_in, named_of
from skillery.app.quotas import quotas_of
from skillery.audit import Refusals
from skillery.backends import Authenticator, Capability, Limits, Sandbox, Secrets, Storage
from skillery.contents.blobs import Blobs, Lifetimes
from skillery.contents.deletions import finish_own_deletions
from skillery.contents.storage_marks import mark_storage
from skillery.context.queue import Queue
from skillery.context.request import begin, current
from skillery.database import Database, migrate
from skillery.environments import Environments
from skillery.errors import StartupError
from skillery.exports import Exports, FactsPreparation
from skillery.formats.bundle import BundleLimits
from skillery.identity.idempotency import Once
from skillery.importing import Importer, ImportLimits
from skillery.maintenance.garbage import (
    Collector,
    Step,
    cached_files,
    expired_blobs,
    leftovers,
    old_locks,
    old_runs,
    unused_contents,
    unused_environments,
)
from skillery.plugins import Plugins
from skillery.publishing import (
    BundleChecks,
    CompilePool,
    ExampleRuns,
    Publisher,
    PublishingRules,
    ToolMaker,
    Undeclared,
)
from skillery.registry import cursor_key
from skillery.runs import Runner
from skillery.runs.admission import Admission
from skillery.runs.cache import Cache
from skillery.runs.execution import Execution
from skillery.runs.granted_secrets import GrantedSecrets
from skillery.runs.limits import LimitRules
from skillery.runs.orphans import close_left_over
from skillery.runs.preparation import Preparer
from skillery.runs.records import Recorder
from skillery.settings import Settings, is_loopback

if TYPE_CHECKING:
    from skillery.api.metrics import Metrics

log = logging.getLogger(__name__)
MIB = 1024 * 1024


@asynccontextmanager
async def open_services(settings: Settings, plugins: Plugins, home: Home) -> AsyncIterator[Services]:
    """Open, migrate and start everything that a server needs, and close it at the end. Raises StartupError."""
    plugins.check_settings(settings)
    defined_in(settings)
    tracing = open_tracing(settings.traces)
    async with AsyncExitStack() as stack:
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        database = Database(settings.database_url, home.server_id)
        stack.callback(database.close)
        # No connection is opened before the settings are checked.
        authenticator: Authenticator = plugins.open("authenticator", settings, database)
        _check_address(settings, authenticator)
        migrate.upgrade(database)
        storage: Storage = plugins.open("storage", settings, database)
        mark_storage(database, storage, settings.storage)
        await asyncio.to_thread(finish_own_deletions, database, storage)
        sandbox: Sandbox = plugins.open("sandbox", settings, database)
        stack.push_async_callback(sandbox.close)
        secrets: Secrets = plugins.open("secrets", settings, database)
        compilers = CompilePool()
        stack.push_async_callback(compilers.close)
        services = _services(
            settings, plugins, home, database, storage, sandbox, authenticator, secrets, compilers, tracing
        )
        stack.push_async_callback(services.refusals.close)
        stack.push_async_callback(services.mcp.close)
        stack.callback(services.once.close)
        stack.push_async_callback(asyncio.to_thread, services.collector.close)
        stack.push_async_callback(services.environments.close)
        stack.push_async_callback(services.named.close)
        stack.push_async_callback(services.rebuilds.close)
        stack.push_async_callback(services.runner.close, settings.grace_seconds)
        closed = await database.write(lambda connection: close_left_over(connection, home.server_id))
        if closed:
            log.warning("%d runs that the last server left open are recorded as failed", closed)
        await services.environments.start()
        await services.rebuilds.start()
        await publish_bundled(services.publisher, database)
        background_jobs = BackgroundJobs(database, services.runner, home.server_id)
        stack.push_async_callback(background_jobs.close)
        background_jobs.start()
        stack.push_async_callback(services.preparing.close)
        services.preparing.start()
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
    compilers: CompilePool,
    tracing: Tracing | None,
) -> Services:
    quotas = quotas_of(settings)
    blobs = Blobs(database, storage, _lifetimes(settings), quotas)
    cache = Cache(home.path / "cache", database, storage, blobs)
    packages = packages_of(settings, home, database, sandbox)
    parts = named_of(settings, home, database, storage, packages)
    runner = Runner(
        database=database,
        server=home.server_id,
        blobs=blobs,
        preparer=Preparer(database, cache, _limit_rules(settings), packages.environments, parts.named),
        admission=Admission(database, _run_queue(settings), quotas),
        execution=Execution(sandbox, settings.sandbox, GrantedSecrets(database, secrets)),
        recorder=Recorder(database, blobs, plugins.events),
    )
    exports = Exports(database, storage, settings.index_skills)
    preparing = FactsPreparation(exports)
    bundles = BundleLimits(max_bytes=settings.bundle_max_mb * MIB, max_files=settings.bundle_max_files)
    events = PreparingEvents(plugins.events, preparing)
    checks = BundleChecks(
        database,
        storage,
        events,
        bundles,
        msgspec.structs.asdict(settings.max_limits),
        ExampleRuns(runner, cache, settings.publishing.examples_seconds),
        packages.locks,
        compilers,
        Undeclared(compilers, packages.locks, parts.named, settings.packages.infer),
    )
    rules = _publishing_rules(settings)
    publisher = Publisher(database, storage, events, checks, rules, quotas, packages.environments)
    return Services(
        database=database,
        storage=storage,
        sandbox=sandbox,
        authenticator=authenticator,
        blobs=blobs,
        runner=runner,
        publisher=publisher,
        importer=Importer(database, publisher, bundles, _import_limits(settings), settings.imports.at_once, home.path),
        tools=ToolMaker(
            database,
            publisher,
            compilers,
            partial(runner.has, Capability.JAVASCRIPT),
            quotas,
            timedelta(hours=settings.tools.session_hours),
            frozenset(METHODS),
        ),
        environments=packages.environments,
        named=parts.named,
        showing=parts.showing,
        rebuilds=parts.rebuilds,
        run_events=RunEvents(runner, _stream_limits(settings)),
        exports=exports,
        preparing=preparing,
        refusals=Refusals(database),
        once=Once(database, home.server_id),
        quotas=quotas,
        collector=Collector(database, _garbage_steps(settings, database, storage, cache, packages.environments)),
        cursor_key=database.write_now(cursor_key),
        readiness=Readiness(database, storage, sandbox),
        max_body_bytes=settings.max_body_mb * MIB,
        bodies=Bodies(settings.bodies_mb * MIB),
        max_mcp_body_bytes=_max_mcp_body(settings),
        answers=Answers(settings.answers_mb * MIB, settings.answer_max_mb * MIB),
        answer_seconds=settings.answer_seconds,
        allowed_hosts=frozenset(name.lower() for name in (*settings.allowed_hosts, settings.host)),
        allowed_origins=frozenset(origin.lower() for origin in settings.allowed_origins),
        public_downloads=settings.public_downloads,
        log_requests=settings.log_requests,
        mcp=McpEndpoint(),
        metrics=_metrics(settings),
        tracing=tracing,
    )


def _stream_limits(settings: Settings) -> StreamLimits:
    return StreamLimits(settings.runs.streams_per_run, settings.runs.streams_per_identity, settings.runs.streams)


def _run_queue(settings: Settings) -> Queue:
    return Queue(settings.runs_at_once, settings.queued_runs, settings.queued_mb * MIB)


def _max_mcp_body(settings: Settings) -> int:
    """Return the limit of an MCP request: a bundle of maximum size in Base64, plus a MiB for its manifest and paths."""
    bundle = -(-settings.bundle_max_mb * MIB * 4 // 3)
    return min(settings.max_body_mb * MIB, bundle + MIB)


def _metrics(settings: Settings) -> Metrics | None:
    if settings.metrics == "off":
        return None
    from skillery.api.metrics import Metrics

    return Metrics(settings.metrics)


def _garbage_steps(
    settings: Settings, database: Database, storage: Storage, cache: Cache, environments: Environments
) -> list[Step]:
    """Return the sweep steps. Each step may create work for the next one."""
    grace, unused_for = timedelta(minutes=settings.gc.grace_minutes), timedelta(days=settings.gc.cache_days)
    keep_for, keep_count = timedelta(days=settings.runs.keep_days), settings.runs.keep_count
    return [
        Step("runs", partial(old_runs, database, keep_for, keep_count)),
        Step("expired_blobs", partial(expired_blobs, database, grace)),
        Step("unused_contents", partial(unused_contents, database, storage, grace)),
        Step("leftover_files", partial(leftovers, database, storage, grace)),
        Step("cached_files", partial(cached_files, database, cache, grace, unused_for), own=True),
        Step("old_locks", partial(old_locks, database, timedelta(hours=settings.packages.reuse_hours))),
        Step("environments", partial(unused_environments, environments, grace, unused_for), own=True),
    ]


def _lifetimes(settings: Settings) -> Lifetimes:
    hours = settings.blobs
    return Lifetimes(timedelta(hours=hours.input_hours) or None, timedelta(hours=hours.output_hours) or None)


def _import_limits(settings: Settings) -> ImportLimits:
    asked = settings.imports
    return ImportLimits(asked.max_mb * MIB, asked.max_unpacked_mb * MIB, asked.max_entries)


def _publishing_rules(settings: Settings) -> PublishingRules:
    if settings.auth == "open":
        # A review adds no protection: any caller could also approve.
        return PublishingRules(visibility=settings.default_visibility)
    chosen = settings.publishing
    return PublishingRules(
        chosen.people,
        chosen.agents,
        settings.default_visibility,
        increases="draft",
        first_permissions=chosen.first_permissions,
    )


def _limit_rules(settings: Settings) -> LimitRules:
    defaults = Limits(**msgspec.structs.asdict(settings.limits))
    maximum = msgspec.structs.asdict(settings.max_limits)
    for name, most in maximum.items():
        if getattr(defaults, name) > most:
            raise StartupError(
                f"setting 'limits.{name}' is {getattr(defaults, name)}, above max_limits.{name} ({most}); lower it"
            )
    return LimitRules(defaults, maximum)


def _check_address(settings: Settings, authenticator: Authenticator) -> None:
    if authenticator.loopback_only and not is_loopback(settings.host):
        raise StartupError(
            f"host is '{settings.host}', but auth '{settings.auth}' admits every client that can connect: "
            "bind 127.0.0.1 behind an authenticating proxy, or choose an authenticator with the setting 'auth'"
        )


def create_app(services: Services) -> Litestar:
    """Return the Litestar app for open services."""
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
        body = plain_error(NOT_FOUND, "this path does not exist", kind, "JSON-RPC is at POST /rpc.")
    else:
        body = plain_error(INVALID_REQUEST, error.detail, kind)
    return Response({"error": body}, status_code=status, headers=dict(error.headers or {}) | _request_id(request))


def _unexpected(request: Any, error: Exception) -> Response[Any]:
    # The request id is set first, so that the logged error has the id of the answer.
    headers = _request_id(request)
    return Response({"error": unexpected(error)}, status_code=500, headers=headers)


def _request_id(request: Any) -> dict[str, str]:
    """Return the request id, also for requests that no endpoint handled."""
    begun = current.get() or begin(
        headers_of(request.scope).get(ID_HEADER), request.client.host if request.client else ""
    )
    return {ID_HEADER: begun.id}
