"""Build core and edge from settings and plugins, and the Litestar app from core and edge."""

from __future__ import annotations

import asyncio
import hmac
import platform
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import Connection

from skillery import __version__, audit
from skillery.app.builders import Counts, counts_of_one_process, defined_in, documents_of
from skillery.app.core_parts import MIB, Backends, Base, build_core
from skillery.app.home import Home
from skillery.app.logs import Tracing, open_tracing
from skillery.app.routes import HttpParts
from skillery.attestations.policies import make_policies
from skillery.attestations.signing import open_signing
from skillery.backends import (
    Authenticator,
    Identity,
    Sandbox,
    Secrets,
    Storage,
)
from skillery.contents.deletions import finish_own_deletions
from skillery.contents.mirrors import MirroredStorage
from skillery.contents.storage_copies import check_storage
from skillery.context.budget import Budget
from skillery.context.disks import Disks
from skillery.context.request import Silences
from skillery.context.worker_pool import WorkerPool, WorkLimits
from skillery.database import Database, migrate, take_turns, without_password
from skillery.database.backend_values import find_value, forget_value, keep_value
from skillery.database.read_only import find_read_only, refuse_read_only
from skillery.errors import StartupError
from skillery.http.gate import Gate
from skillery.http.health import Disk, Readiness, ServerState
from skillery.http.run_streams import OpenStreams, StreamLimits
from skillery.identity.secret_grants import set_secret
from skillery.maintenance.integrity import KeptFigures, read_figures
from skillery.mcp.endpoint import McpEndpoint
from skillery.mcp.requests import TaskTerms
from skillery.methods.core import Core
from skillery.methods.execution import call_directly
from skillery.plugins import Plugins
from skillery.plugins.calls import Failures as PluginFailures
from skillery.plugins.facts import ServerPlugin, plugins_of_server
from skillery.plugins.hooks import PluginEvents, open_objects, routes_of
from skillery.publishing.evaluation_jobs import EvaluationJobs
from skillery.publishing.evaluation_tasks import TaskRuns
from skillery.publishing.vulnerabilities import Vulnerabilities, VulnerabilityChecks
from skillery.registry.audit_trail import verify_and_note
from skillery.registry.cursors import cursor_key
from skillery.rest.plugin_routes import PluginParts, PluginRoutes
from skillery.routes import Route
from skillery.runs.ended_runs import note_seen
from skillery.runs.records import span_of_count
from skillery.settings.load import Settings, is_loopback
from skillery.settings.sources import leaves
from skillery.skills.figures import popular_skills
from skillery.versions.new_versions import rebuild_derived_rows

DAY_MS = 24 * 60 * 60 * 1000

if TYPE_CHECKING:
    from skillery.rest.metrics import Metrics


class _Additions(NamedTuple):
    """The routes of plugins, the counter of their failed calls, and the counts of the limits of the server."""

    failures: PluginFailures
    routes: Mapping[str, list[Route]]
    counts: Counts


class _Known(NamedTuple):
    """Functions that only the plugins and backends can answer, for pages of admins."""

    plugins: Callable[[], list[ServerPlugin]]
    secrets: Callable[[], Collection[str]]
    set_secret: Callable[[audit.Actor, str, str], None]
    signs: bool


# Names, because commands without pages do not import the modules of pages.
PAGE_FUNCTIONS = (
    "skillery.web.markdown:rendered",
    "skillery.web.views.shown:show_parts",
    "skillery.web.differences:file_diffs",
    "skillery.web.differences:compare_results",
)
PAGE_LOADERS = ("skillery.web.rendering:load_lexers",)
# Three times the processor time after which a view stops itself: on a busy machine, the same work takes more of it.
PAGE_LIMITS = WorkLimits(cpu_seconds=2, wall_seconds=15, memory_bytes=1024 * MIB, resident_bytes=128 * MIB)


@asynccontextmanager
async def open_server(
    settings: Settings, plugins: Plugins, home: Home, *, bundled: bool = True, counts: Counts | None = None
) -> AsyncIterator[tuple[Core, HttpParts]]:
    """Context manager: migrate the database, open all parts of a server, and close them at the end.

    The sandbox is not started. If `bundled` is False, the bundled skills are not published. `counts` are the counts of
    a worker process; None for a server of one process. Raise StartupError if a part cannot be opened.
    """
    counts = counts or counts_of_one_process(settings)
    plugins.check_settings(settings)
    defined_in(settings)
    is_open = settings.authenticators == ("open",)
    policies = make_policies(settings.policy, settings.publishing, settings.signing.key, is_open=is_open)
    tracing = open_tracing(settings.traces)
    async with AsyncExitStack() as stack:
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
        database = Database(settings.database_url, home.server_id)
        stack.callback(database.close)
        backends = await _open_backends(settings, plugins, database, stack)
        open_objects(plugins, settings, database, partial(popular_skills, database), stack)
        if policies.named and not backends.signing.signs:
            raise StartupError("a server with [policy] signs statements: copy signing/ed25519.pem into its home")
        events = PluginEvents(plugins.manager, settings.hook_seconds, plugins.failures)
        known = Vulnerabilities(settings.scan.osv_dir, settings.home)
        base = Base(settings, home, database, backends, events, counts, policies, known, bundled)
        core = await build_core(base, stack)
        checks = VulnerabilityChecks(database, backends.storage, known, core.rechecks, settings.scan.osv_seconds)
        stack.push_async_callback(checks.close)
        checks.start()
        evaluations, call_as = core.evaluations, partial(partial, call_directly, core)
        tasks = TaskRuns(core.publisher.checks, evaluations.models, call_as, lambda: core.runner.has_room)
        jobs = EvaluationJobs(database, home.server_id, evaluations, core.runner, core.passing, tasks)
        stack.push_async_callback(jobs.close)
        await jobs.start()
        additions = _Additions(events.failures, routes_of(plugins, settings, backends.authenticator), counts)
        facts = _Known(
            partial(plugins_of_server, plugins, settings, events.failures),
            backends.secrets.names,
            partial(set_secret, database, backends.secrets),
            backends.signing.signs,
        )
        edge = _edge(settings, database, home.server_id, core, tracing, additions, facts)
        stack.push_async_callback(edge.mcp.close)
        stack.push_async_callback(edge.page_workers.close)
        yield core, edge


async def _open_backends(settings: Settings, plugins: Plugins, database: Database, stack: AsyncExitStack) -> Backends:
    """Open the backends and migrate the database. Raise StartupError if a backend or the database cannot be used."""
    # No connection is opened before the settings are checked.
    authenticator = plugins.open_authenticator(settings, database)
    stack.push_async_callback(authenticator.close)
    _check_address(settings, authenticator)
    migrate.upgrade(database)
    refuse_read_only(database, without_password(settings.database_url))
    rebuild_derived_rows(database)
    storage: Storage = plugins.open("storage", settings, database)
    check_storage(database, storage, settings.storage)
    storage = MirroredStorage(
        database, settings.storage, storage, lambda name: plugins.open_storage(name, settings, database)
    )
    await asyncio.to_thread(finish_own_deletions, database, storage)
    sandbox: Sandbox = plugins.open("sandbox", settings, database)
    stack.push_async_callback(sandbox.close)
    secrets: Secrets = plugins.open("secrets", settings, database)
    stack.push_async_callback(secrets.close)
    await secrets.start()
    signer = plugins.open_signer(settings, database, secrets)
    if signer is not None:
        stack.push_async_callback(signer.close)
        await signer.start()
    signing = await asyncio.to_thread(open_signing, database, signer, settings.public_url, __version__)
    verifier = plugins.open_offered("verifier", settings, database, fetch=documents_of(settings).fetch)
    sigstore = plugins.open_offered("sigstore", settings, database)
    ranker = plugins.open_ranker(settings, database)
    if ranker is not None:
        stack.push_async_callback(ranker.close)
        await ranker.start()
    return Backends(authenticator, storage, sandbox, secrets, verifier, sigstore, ranker, signing)


def _edge(
    settings: Settings,
    database: Database,
    server: str,
    core: Core,
    tracing: Tracing | None,
    additions: _Additions,
    known: _Known,
) -> HttpParts:
    hosts = frozenset(name.lower() for name in (*settings.allowed_hosts, settings.host))
    origins = frozenset(origin.lower() for origin in settings.allowed_origins)
    resource = core.identities.authenticator.resource()
    gate = Gate(core.identities.authenticator, core.refusals, hosts, origins, resource)
    counts = additions.counts
    streams, silences = settings.runs, Silences()
    disks = core.disks
    write, cache = partial(_write, database, server, disks), partial(_check_cache, disks)
    plugin_parts = PluginParts(gate, additions.failures, partial(_record, database), settings.hook_seconds)
    readiness = Readiness(write, cache, core.registry.storage, core.sandbox, counts.peers)
    return HttpParts(
        gate=gate,
        bodies=Budget(settings.bodies_mb * MIB, "bodies_mb", counts.bodies),
        max_body_bytes=settings.max_body_mb * MIB,
        answers=Budget(settings.answers_mb * MIB, "answers_mb", counts.answers, settings.answer_max_mb * MIB),
        answer_seconds=settings.answer_seconds,
        streams=OpenStreams(StreamLimits(streams.streams_per_run, streams.streams_per_identity, streams.streams)),
        public_downloads=settings.public_downloads,
        web=settings.web,
        git=settings.git,
        public_url=settings.public_url,
        log_requests=settings.log_requests,
        readiness=readiness,
        state=ServerState(
            readiness.checks,
            known.plugins,
            partial(_disk_of, settings.home),
            partial(
                database.read, partial(span_of_count, days=settings.runs.keep_days, count=settings.runs.keep_count)
            ),
            partial(verify_and_note, database),
            settings.storage,
            known.secrets,
            known.set_secret,
            known.signs,
        ),
        page_workers=WorkerPool(PAGE_FUNCTIONS, PAGE_LIMITS, PAGE_LOADERS),
        mcp=McpEndpoint(gate, core, _max_mcp_body(settings), _task_terms(settings)),
        metrics=_metrics(settings, gate, core, database, additions, silences),
        silences=silences,
        tracing=tracing,
        plugin_routes=PluginRoutes(plugin_parts, additions.routes) if additions.routes else None,
        resource=resource,
    )


# -- Entries of the audit trail about changed settings -----------------------------------------------------------------


_NOTED = "settings"
"""The name of the value of the registry with the settings of the last started server."""
_OF_ONE_SERVER = frozenset({"home", "host", "port", "workers"})
_HIDDEN = re.compile(r"^(backends|plugins)\.|^database$|(urls?|password|secret|token|key)$", re.IGNORECASE)


def note_settings(connection: Connection, settings: Settings) -> None:
    """Record which settings differ from those of the server that started last on this database, if any do.

    A server calls this function at each start, so also after SIGHUP. Values that may contain credentials are recorded
    as a keyed hash: an entry shows that they have changed.
    """
    take_turns(connection, _NOTED, "")
    key = cursor_key(connection)
    now = {
        name: f"hidden:{hmac.digest(key, repr(value).encode(), 'sha256').hex()[:16]}" if _HIDDEN.search(name) else value
        for name, value in leaves(msgspec.to_builtins(settings, enc_hook=str))
        if name not in _OF_ONE_SERVER
    }
    text, stored = msgspec.json.encode(now), find_value(connection, _NOTED)
    if text == stored:
        return
    forget_value(connection, _NOTED)
    keep_value(connection, _NOTED, text)
    if stored is not None:
        earlier, now = msgspec.json.decode(stored), msgspec.json.decode(text)
        names = sorted(name for name in {*earlier, *now} if earlier.get(name) != now.get(name))
        before, after = ({name: side.get(name) for name in names} for side in (earlier, now))
        audit.record(connection, audit.SERVER, "change_settings", "settings", before=before, after=after)


def _write(database: Database, server: str, disks: Disks) -> None:
    """Write to the database, as a heartbeat does. An embedded database also needs free disk space for its next pages.

    A read-only database of a copy counts as ready: the server still answers reads.
    """
    if database.read_now(find_read_only) is None:
        database.write_now(partial(note_seen, server=server))
    disks.check("database")


def _check_cache(disks: Disks) -> None:
    disks.check("cache")
    disks.check("environments")


def _disk_of(home: Path) -> Disk:
    usage = disk_usage(home)
    return Disk(usage.free, usage.total)


async def _record(database: Database, identity: Identity, action: str, subject: str) -> None:
    await database.write(partial(audit.record, actor=identity, action=action, subject=subject))


def _metrics(
    settings: Settings, gate: Gate, core: Core, database: Database, additions: _Additions, silences: Silences
) -> Metrics | None:
    """Return the endpoint /metrics, or None if the setting `metrics` is `off`."""
    if settings.metrics == "off":
        return None
    from skillery.rest.metrics import Measurable, Metrics

    figures = partial(read_figures, quotas=core.usage.quotas, expects_backups=bool(settings.backups.storage))
    measured = Measurable(
        gate,
        core.runner,
        core.sandbox,
        core.environments.named,
        core.deliveries,
        database.connections,
        additions.failures,
        core.disks,
        silences,
        KeptFigures(partial(core.registry.read_page, figures)),
        {
            "version": __version__,
            "python": platform.python_version(),
            "database": settings.database_url.partition(":")[0].partition("+")[0],
        },
    )
    return Metrics(settings.metrics, measured, additions.counts.peers)


def _max_mcp_body(settings: Settings) -> int:
    """Return the limit for one MCP request in bytes: a bundle of maximum size in Base64 and 1 MiB for its manifest and
    paths, but at most `max_body_mb`.
    """
    bundle = -(-settings.bundle_max_mb * MIB * 4 // 3)
    return min(settings.max_body_mb * MIB, bundle + MIB)


def _task_terms(settings: Settings) -> TaskTerms:
    keep_days = settings.runs.keep_days
    return TaskTerms(settings.runs.task_seconds, keep_days * DAY_MS if keep_days else None)


def _check_address(settings: Settings, authenticator: Authenticator) -> None:
    if authenticator.loopback_only and not is_loopback(settings.host):
        raise StartupError(
            f"host is '{settings.host}', but auth '{settings.auth}' admits every client that can connect: "
            "bind 127.0.0.1 behind an authenticating proxy, or choose an authenticator with the setting 'auth'"
        )
