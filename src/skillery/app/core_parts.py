"""Build the core of a server from the settings and the backends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import msgspec

from skillery.app.background_jobs import BackgroundJobs, sweep_steps, take_over
from skillery.app.builders import (
    Counts,
    PackageServices,
    PreparingEvents,
    bundle_limits,
    limit_rules,
    named_of,
    packages_of,
    quotas_of,
    sender_of,
    thin_plugins_of,
)
from skillery.app.bundled import packaged_guide, publish_bundled
from skillery.app.home import Home, disks_of
from skillery.attestations.policies import Policies
from skillery.attestations.seals import Sealer
from skillery.attestations.signing import Signing
from skillery.audit.refusals import Refusals
from skillery.backends import Authenticator, Capability, Events, Ranker, Sandbox, Secrets, Storage, Verifier
from skillery.backends.verifier import SigstoreVerifier
from skillery.contents.blobs import Blobs
from skillery.contents.kept_contents import SignedDownloads, Transcripts
from skillery.context.disks import Disks
from skillery.context.queue import Queue
from skillery.database import Database
from skillery.database.registry import Registry
from skillery.environments.methods import EnvironmentParts
from skillery.exports import Exports, FactsPreparation
from skillery.exports.marketplaces import Marketplaces
from skillery.formats.bundle import BundleLimits
from skillery.git_views import Repositories
from skillery.identity.authenticator_chain import by_name
from skillery.identity.idempotency import Once
from skillery.identity.offboarding import Identities
from skillery.identity.quotas import Quotas
from skillery.identity.token_methods import TokenRules
from skillery.identity.usage import UsageParts
from skillery.identity.web_sessions import Signer, WebSessions, web_key
from skillery.importing import Importer, ImportLimits
from skillery.maintenance.garbage import Collector
from skillery.maintenance.purges import Purger
from skillery.maintenance.search_vectors import SearchVectors
from skillery.methods.core import Core
from skillery.methods.table import METHODS
from skillery.publishing.bundle_checks import BundleChecks, Developer
from skillery.publishing.compile_pool import CompilePool
from skillery.publishing.evaluation_cases import CaseRuns
from skillery.publishing.evaluation_tasks import Models
from skillery.publishing.evaluations import Evaluations
from skillery.publishing.example_runs import ExampleRuns
from skillery.publishing.gate import Gate, PublishingRules, ScriptCheck, Trials
from skillery.publishing.import_check import ImportCheck
from skillery.publishing.methods import Rechecks
from skillery.publishing.passing import Passing
from skillery.publishing.publisher import Publisher
from skillery.publishing.reviews import Reviews
from skillery.publishing.tool_maker import ToolMaker
from skillery.publishing.undeclared import Undeclared
from skillery.publishing.vulnerabilities import Vulnerabilities
from skillery.registry.cursors import cursor_key
from skillery.registry.development import Overlays
from skillery.registry.uses import ContentParts, Uses
from skillery.runs.admission import Admission
from skillery.runs.cache import Cache
from skillery.runs.execution import Execution, GrantedSecrets, UnrecordedRuns
from skillery.runs.preparation import Preparer
from skillery.runs.records import Recorder
from skillery.runs.runner import Runner
from skillery.runs.statements import RunStatements
from skillery.settings.load import Settings
from skillery.skills.catalogue_counts import CountsCache
from skillery.skills.figures import FirstSkills
from skillery.skills.files import Guide
from skillery.skills.listings import CatalogueParts
from skillery.skills.search import Search
from skillery.skills.search_fusion import Meanings
from skillery.trust.matching import Exchange
from skillery.trust.rules import Trust
from skillery.versions.revocations import Revocations
from skillery.webhooks.audit_export import AuditExport
from skillery.webhooks.deliveries import Deliveries
from skillery.webhooks.targets import Webhooks
from skillery.workspaces.files import WorkspaceFiles
from skillery.workspaces.methods import Workspaces
from skillery.workspaces.usage import RunWorkspaces

MIB = 1024 * 1024
IMPORT_CHECKS_AT_ONCE = 2


class Backends(NamedTuple):
    """The open backends that the settings choose."""

    authenticator: Authenticator
    storage: Storage
    sandbox: Sandbox
    secrets: Secrets
    verifier: Verifier | None
    sigstore: SigstoreVerifier | None
    ranker: Ranker | None
    signing: Signing


class Base(NamedTuple):
    """The parts that all other parts of the core need."""

    settings: Settings
    home: Home
    database: Database
    backends: Backends
    events: Events
    """Calls the hooks of plugins."""
    counts: Counts
    policies: Policies
    vulnerabilities: Vulnerabilities
    bundled: bool = True
    """Whether the bundled skills are published."""

    @property
    def bundle_limits(self) -> BundleLimits:
        return bundle_limits(self.settings)


class _Runtime(NamedTuple):
    """The parts that execute runs."""

    blobs: Blobs
    cache: Cache
    packages: PackageServices
    environments: EnvironmentParts
    runner: Runner
    unrecorded: UnrecordedRuns
    sealer: Sealer
    uses: Uses


async def build_core(base: Base, stack: AsyncExitStack) -> Core:
    """Build the core and start its parts. `stack` closes the parts in reverse order. Raise StartupError if a part
    cannot be built or started.
    """
    database, backends, home, quotas = base.database, base.backends, base.home, quotas_of(base.settings)
    refusals, once, compilers = Refusals(database), Once(database, home.server_id), CompilePool()
    stack.push_async_callback(compilers.close)
    stack.push_async_callback(refusals.close)
    stack.callback(once.close)
    registry = Registry(database, backends.storage, database.write_now(cursor_key))
    runtime = _runtime(base, quotas, registry)
    steps = sweep_steps(base.settings, database, backends.storage, runtime.cache, runtime.packages.environments)
    collector = Collector(database, steps)
    exports = Exports(database, backends.storage, base.settings.index_skills)
    preparation, thin = FactsPreparation(exports), thin_plugins_of(base.settings, backends.authenticator)
    base = base._replace(events=PreparingEvents(base.events, preparation, base.vulnerabilities))
    publisher = _publisher(base, runtime, quotas, compilers)
    stack.push_async_callback(asyncio.to_thread, collector.close)
    disks = disks_of(home, database, backends.storage)
    await _start(base, runtime, publisher, disks, stack)
    stack.push_async_callback(preparation.close)
    preparation.start()
    trust, sender = Trust(registry, backends.verifier, backends.authenticator), sender_of(base.settings)
    deliveries = Deliveries(database, home.server_id, sender, base.settings.webhooks, base.events)
    stack.push_async_callback(deliveries.close)
    sessions = WebSessions(database, by_name(backends.authenticator, base.settings.authenticators))
    views, revocations = base.settings, Revocations(database, backends.signing)
    models = Models(base.settings.models, base.settings.evals, backends.secrets)
    transcripts = Transcripts(database, backends.storage, base.settings.evals.keep_transcripts_days)
    return Core(
        guide=Guide(await asyncio.to_thread(packaged_guide)),
        registry=registry,
        catalogue=CatalogueParts(registry, CountsCache()),
        search=Search(registry, Meanings(backends.ranker), runtime.uses.searches),
        first_skills=FirstSkills(registry),
        contents=ContentParts(registry, runtime.uses),
        blobs=runtime.blobs,
        signed=SignedDownloads(database, backends.storage, base.settings.signed_downloads_seconds),
        runner=runtime.runner,
        following=runtime.runner.following,
        run_statements=RunStatements(registry, backends.signing, base.settings.seals),
        cancellation=runtime.runner.cancellation,
        workspaces=Workspaces(registry, database, quotas, WorkspaceFiles(database, backends.storage, quotas)),
        publisher=publisher,
        rechecks=Rechecks(database, publisher.checks, base.events, backends.signing),
        passing=publisher.passing,
        reviews=Reviews(database, publisher.checks, publisher.passing),
        evaluations=Evaluations(registry, CaseRuns(database, publisher.checks), models, transcripts, base.policies),
        revocations=revocations,
        developer=Developer(publisher.checks, Overlays(), runtime.packages.environments),
        importer=_importer(base, publisher),
        tools=_tool_maker(base, runtime.runner, publisher, quotas, compilers),
        webhooks=Webhooks(registry, sender),
        deliveries=deliveries,
        trust=trust,
        exchange=Exchange(trust, base.settings.public_url),
        environments=runtime.environments,
        exports=exports,
        repositories=Repositories(
            database, backends.storage, views.marketplace_name, views.index_skills, views.git_max_mb * MIB, thin
        ),
        marketplaces=Marketplaces(exports, views.marketplace_name, views.index_skills, thin),
        usage=UsageParts(registry, quotas),
        token_rules=TokenRules(registry, base.settings.tokens.max_days),
        once=once,
        refusals=refusals,
        collector=collector,
        purger=Purger(database, backends.storage, runtime.cache, revocations),
        identities=Identities(registry, backends.authenticator, sessions),
        signer=Signer(database.write_now(web_key)),
        sandbox=backends.sandbox,
        disks=disks,
    )


async def _start(base: Base, runtime: _Runtime, publisher: Publisher, disks: Disks, stack: AsyncExitStack) -> None:
    """Record a failure for each run that the last server of this home left open, start the parts that execute runs,
    and publish the bundled skills. `stack` closes the parts.
    """
    database, runner, server, passing = base.database, runtime.runner, base.home.server_id, publisher.passing
    stack.push_async_callback(runtime.packages.environments.close)
    stack.push_async_callback(runtime.environments.named.close)
    stack.push_async_callback(runtime.environments.rebuilds.close)
    stack.push_async_callback(runtime.sealer.close)
    stack.push_async_callback(runner.close, base.settings.grace_seconds)
    await take_over(database, runtime.sealer, server)
    await runtime.packages.environments.start()
    await runtime.environments.rebuilds.start()
    if base.bundled:
        await publish_bundled(publisher, database)
    if base.backends.ranker is not None:
        vectors = SearchVectors(database, server, base.backends.ranker)
        await vectors.start()
        stack.push_async_callback(vectors.close)
    jobs = BackgroundJobs(database, runner, runtime.sealer, runtime.uses, disks, server, base.settings.review, passing)
    stack.push_async_callback(jobs.close)
    jobs.start()
    if base.settings.audit.otlp:
        export = AuditExport(database, server, base.settings.audit.otlp)
        await export.start()
        stack.push_async_callback(export.close)


def _runtime(base: Base, quotas: Quotas, registry: Registry) -> _Runtime:
    """Build the parts that execute runs."""
    settings, home, database, backends, events = base[:5]
    blobs = Blobs(database, backends.storage, settings.blobs, quotas)
    cache = Cache(home.path / "cache", database, backends.storage, blobs)
    packages = packages_of(settings, home, database, backends.sandbox)
    environments = named_of(settings, home, database, registry, packages, backends.sandbox)
    seconds = settings.runs.workspace_seconds
    workspaces = RunWorkspaces(database, backends.storage, quotas, home.server_id, wait_seconds=seconds)
    limits, pythons = limit_rules(settings), backends.sandbox.pythons
    preparer = Preparer(
        database, cache, limits, packages.environments, environments.named, workspaces, base.policies, pythons
    )
    execution = Execution(backends.sandbox, settings.sandbox, GrantedSecrets(database, backends.secrets))
    sealer, uses = Sealer(database, backends.signing, home.server_id, settings.seals), Uses(settings.insight)
    queue, keeps_code = _run_queue(settings, base.counts), settings.runs.keep_code
    runner = Runner(
        database=database,
        server=home.server_id,
        blobs=blobs,
        preparer=preparer,
        admission=Admission(database, queue, quotas, workspaces, backends.sandbox, keeps_code=keeps_code),
        execution=execution,
        recorder=Recorder(database, blobs, events, sealer, uses, settings.sandbox, backends.signing.release),
        workspaces=workspaces,
    )
    checks = UnrecordedRuns(preparer, execution, IMPORT_CHECKS_AT_ONCE)
    return _Runtime(blobs, cache, packages, environments, runner, checks, sealer, uses)


def _publisher(base: Base, runtime: _Runtime, quotas: Quotas, compilers: CompilePool) -> Publisher:
    """Build the publisher with its gate and checks."""
    settings, _, database, backends, events = base[:5]
    publishing, cache = settings.publishing, runtime.cache
    trials = Trials(
        ImportCheck(runtime.unrecorded, cache, compilers, publishing.import_seconds),
        ScriptCheck(runtime.unrecorded, cache, publishing.import_seconds),
        ExampleRuns(runtime.runner, cache, compilers.grade, publishing.examples_seconds),
    )
    gate = Gate(
        base.bundle_limits,
        msgspec.structs.asdict(settings.max_limits),
        compilers,
        runtime.packages.locks,
        Undeclared(compilers, runtime.packages.locks, runtime.environments.named, settings.packages),
        trials,
        events,
    )
    checks = BundleChecks(database, backends.storage, gate, backends.sandbox.pythons, base.vulnerabilities.date)
    parts = (database, backends.storage, events, checks, _publishing_rules(settings), quotas)
    passing = Passing(database, events, checks, base.policies, backends.signing, backends.sigstore)
    return Publisher(*parts, runtime.packages.environments, passing)


def _importer(base: Base, publisher: Publisher) -> Importer:
    imports = base.settings.imports
    limits = ImportLimits(imports.max_mb * MIB, imports.max_unpacked_mb * MIB, imports.max_entries)
    return Importer(base.database, publisher, base.bundle_limits, limits, imports.at_once, base.home.path)


def _tool_maker(base: Base, runner: Runner, publisher: Publisher, quotas: Quotas, compilers: CompilePool) -> ToolMaker:
    return ToolMaker(
        base.database,
        publisher,
        compilers,
        partial(runner.has, Capability.JAVASCRIPT),
        quotas,
        timedelta(hours=base.settings.tools.session_hours),
        frozenset(METHODS),
    )


def _run_queue(settings: Settings, counts: Counts) -> Queue:
    """Make the queue of runs that wait for a slot, and start to watch it."""
    queue = Queue(
        counts.slots.most,
        settings.queued_runs,
        settings.queued_mb * MIB,
        slots=counts.slots,
        tallies=(counts.waiting, counts.waiting_bytes),
    )
    queue.watch()
    return queue


def _publishing_rules(settings: Settings) -> PublishingRules:
    """Return the rules of the settings. With `auth = "open"`, every version is published at once."""
    if settings.authenticators == ("open",):
        # A review would not protect: with auth = "open", every caller may approve.
        return PublishingRules(visibility=settings.default_visibility)
    chosen = settings.publishing
    return PublishingRules(
        chosen.people,
        chosen.agents,
        settings.default_visibility,
        increases="draft",
        first_permissions=chosen.first_permissions,
    )
