"""Parts of a server that the settings alone decide: quotas, webhooks, trust, thin plugins, environments."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.utils import canonicalize_name

from skillery import __version__
from skillery.app.connection_admission import ConnectionCount, OwnConnections
from skillery.app.home import Home
from skillery.backends import Authenticator, Event, Events, Finding, FinishedRun, Limits, Publication, Sandbox
from skillery.context.queue import OwnSlots, Queue, Slots
from skillery.context.tallies import OwnTally, Peers, Tally
from skillery.database import Database
from skillery.database.registry import Registry
from skillery.environments.builder import Builder
from skillery.environments.definitions import Defined, Named
from skillery.environments.dependency_locks import Locks
from skillery.environments.jobs import Jobs
from skillery.environments.methods import EnvironmentParts, Rebuilds
from skillery.environments.named import NamedEnvironments
from skillery.environments.queries import EnvironmentQueries
from skillery.environments.sources import NpmSources, PackageSources, address_problem, has_login
from skillery.environments.store import Environments
from skillery.errors import InvalidName, InvalidParams, StartupError
from skillery.exports import FactsPreparation
from skillery.exports.marketplaces import ThinPlugins
from skillery.formats.bundle import BundleLimits
from skillery.formats.names import parse_namespace
from skillery.formats.tokens import parse_grants
from skillery.formats.wording import quoted
from skillery.identity.quotas import IdentityQuota, Quotas
from skillery.publishing.vulnerabilities import Vulnerabilities
from skillery.runs.limits import LimitRules
from skillery.settings.groups import IdentityQuotas
from skillery.settings.load import Settings
from skillery.settings.sources import NPM_TOKEN_VARIABLE
from skillery.trust.documents import Documents
from skillery.webhooks.sending import Sender

# -- Build the quotas from the settings --------------------------------------------------------------------------------


MIB = 1024 * 1024


def quotas_of(settings: Settings) -> Quotas:
    """Return the quotas that the settings define. Raise StartupError if a pattern of names is not valid.

    With `auth = "open"`, the default quotas do not apply, because the only user is the owner of the computer.
    """
    quotas = settings.quotas
    is_open = settings.authenticators == ("open",)
    for_all = IdentityQuota(
        quotas.blobs,
        quotas.blobs_mb * MIB,
        quotas.runs_per_minute,
        quotas.concurrent_runs,
        quotas.session_tools,
        quotas.workspaces,
        quotas.workspaces_mb * MIB,
    )
    default = IdentityQuota() if is_open else for_all
    return Quotas(
        default=default,
        identities={_checked_identity(pattern): _entry(default, entry) for pattern, entry in quotas.identities.items()},
        bundle_bytes=0 if is_open else quotas.bundles_mb * MIB,
        namespaces={_checked_grant(pattern): entry.bundles_mb * MIB for pattern, entry in quotas.namespaces.items()},
    )


def _entry(default: IdentityQuota, entry: IdentityQuotas) -> IdentityQuota:
    """Return the quota of an entry of the settings. A field that the entry omits has the value of `default`."""
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    values = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    if "blobs_mb" in values:
        values["blob_bytes"] = values.pop("blobs_mb") * MIB
    if "workspaces_mb" in values:
        values["workspace_bytes"] = values.pop("workspaces_mb") * MIB
    return msgspec.structs.replace(default, **values)


def _checked_identity(pattern: str) -> str:
    if pattern and "*" not in pattern[:-1]:
        return pattern
    raise StartupError(
        f"setting [quotas.identities.{quoted(pattern)}] is not a valid pattern: write a name, or a prefix and '*'"
    )


def _checked_grant(pattern: str) -> str:
    try:
        return parse_grants([pattern])[0]
    except InvalidParams as error:
        raise StartupError(f"setting [quotas.namespaces.{quoted(pattern)}]: {error.message}; {error.hint}") from None


# -- Build the parts of webhooks from the settings ---------------------------------------------------------------------


def sender_of(settings: Settings) -> Sender:
    """Return the sender. Raise StartupError if an entry of `webhooks.allow_private` is not an address or network."""
    webhooks = settings.webhooks
    try:
        return Sender(webhooks.allow_private, webhooks.timeout_seconds, settings.public_url, f"Skillery/{__version__}")
    except ValueError as error:
        raise StartupError(f"setting 'webhooks.allow_private': {error}") from None


# -- Build the parts of trusted publishing from the settings -----------------------------------------------------------


def documents_of(settings: Settings) -> Documents:
    """Return the reader of documents. Raise StartupError if an entry of `trust.allow_private` is not valid."""
    try:
        return Documents(settings.trust.allow_private, f"Skillery/{__version__}")
    except ValueError as error:
        raise StartupError(f"setting 'trust.allow_private': {error}") from None


# -- Thin plugins by the settings of a server --------------------------------------------------------------------------


def thin_plugins_of(settings: Settings, authenticator: Authenticator) -> ThinPlugins:
    """Return the thin plugins of a server. Raise StartupError if a namespace is not valid, or `public_url` is unset."""
    for namespace in settings.thin_plugins:
        try:
            if parse_namespace(namespace):
                continue
            reason = "a namespace has at least one character"
        except InvalidName as error:
            reason = error.message
        raise StartupError(f"setting 'thin_plugins' has '{namespace}': {reason}")
    if settings.thin_plugins and not settings.public_url:
        raise StartupError(
            "setting 'thin_plugins' needs 'public_url': the plugins have the address of this server, for example "
            'public_url = "https://skills.example.org"'
        )
    can_log_in = authenticator.resource() is not None
    address = settings.public_url.rstrip("/")
    return ThinPlugins(tuple(sorted(set(settings.thin_plugins))), settings.marketplace_name, address, can_log_in)


# -- The server's own reaction to a published version, in addition to the hooks of plugins -----------------------------


class PreparingEvents:
    """Passes events to plugins, looks for known vulnerabilities, and prepares the indexes of Agent Skills."""

    def __init__(self, events: Events, preparing: FactsPreparation, vulnerabilities: Vulnerabilities) -> None:
        self._events = events
        self._preparing = preparing
        self._vulnerabilities = vulnerabilities

    async def before_publish(self, publication: Publication) -> list[Finding]:
        known = await self._vulnerabilities.before_publish(publication)
        return [*known, *await self._events.before_publish(publication)]

    async def after_publish(self, publication: Publication) -> None:
        self._preparing.note(publication.name)
        await self._events.after_publish(publication)

    async def run_finished(self, run: FinishedRun) -> None:
        await self._events.run_finished(run)

    @property
    def has_scanner(self) -> bool:
        return self._events.has_scanner

    @property
    def has_event_hooks(self) -> bool:
        return self._events.has_event_hooks

    async def events(self, event: Event) -> None:
        await self._events.events(event)


# -- Build the locks and environments of packages from the settings ----------------------------------------------------


LOCKS_AT_ONCE, BUILD_JOBS_AT_ONCE, RESERVED_JOBS = 2, 3, 1
UNBOUNDED = 1 << 40
"""A limit that is never reached. The request that waits for a lock of packages already counts against limits of
requests.
"""


class PackageServices(NamedTuple):
    """The parts for packages of skills: locks of packages, and environments."""

    locks: Locks
    environments: Environments


def packages_of(settings: Settings, home: Home, database: Database, sandbox: Sandbox) -> PackageServices:
    """Build the parts for packages of skills.

    Raise StartupError if the wheelhouse is not a folder, the address of an index or file host is not valid, or packages
    are built from source with an index that needs credentials.
    """
    packages, folder, sources = settings.packages, home.path / "environments", sources_of(settings)
    lock_jobs = Jobs(sandbox, sources, LOCKS_AT_ONCE)
    turns = Queue(LOCKS_AT_ONCE, UNBOUNDED, UNBOUNDED)
    locks = Locks(database, lock_jobs, sources, packages.lock_seconds, timedelta(hours=packages.reuse_hours), turns)
    build_jobs = Jobs(sandbox, sources, BUILD_JOBS_AT_ONCE, RESERVED_JOBS)
    builder = Builder(folder, build_jobs, sources, packages.build_seconds, packages.max_mb)
    return PackageServices(locks, Environments(folder, database, builder, home.server_id, packages.total_mb))


def sources_of(settings: Settings) -> PackageSources:
    """Return the sources of packages. Raise StartupError if a setting of `packages` is not valid."""
    packages = settings.packages
    wheelhouse = _folder_of("wheelhouse", packages.wheelhouse)
    file_hosts = tuple(host if "://" in host else f"https://{host}" for host in packages.file_hosts)
    _check_addresses("index_urls", packages.index_urls)
    _check_addresses("file_hosts", file_hosts)
    from_source = tuple(name if name == "*" else canonicalize_name(name) for name in packages.build_from_source)
    if from_source and any(has_login(address) for address in packages.index_urls):
        raise StartupError(
            "setting 'packages.build_from_source' is set, but 'packages.index_urls' contains credentials, which "
            "the code of a built package could read: use an index without credentials for builds"
        )
    store = _folder_of("npm_store", packages.npm_store)
    npm_hosts = tuple(host if "://" in host else f"https://{host}" for host in packages.npm_file_hosts)
    _check_addresses("npm_url", (packages.npm_url,) if packages.npm_url else ())
    _check_addresses("npm_file_hosts", npm_hosts)
    if has_login(packages.npm_url):
        raise StartupError(f"setting 'packages.npm_url' contains credentials: set {NPM_TOKEN_VARIABLE} instead")
    return PackageSources(
        packages.index_urls,
        wheelhouse,
        packages.exclude_newer,
        _patterns(packages.allowed),
        _patterns(packages.denied),
        file_hosts,
        from_source,
        NpmSources(
            packages.npm_url,
            os.environ.get(NPM_TOKEN_VARIABLE, ""),
            store,
            npm_hosts,
            packages.npm_allowed,
            packages.npm_denied,
            packages.exclude_newer,
        ),
    )


def _folder_of(setting: str, text: str) -> Path | None:
    folder = Path(text).expanduser().absolute() if text else None
    if folder is not None and not folder.is_dir():
        raise StartupError(f"setting 'packages.{setting}' is '{text}', which is not a folder")
    return folder


def _check_addresses(setting: str, addresses: tuple[str, ...]) -> None:
    """Raise StartupError if an address of the setting is not valid.

    The message gives the position of the address in the list, not its text, because the text may contain credentials.
    """
    for number, address in enumerate(addresses, 1):
        problem = address_problem(address)
        if problem is not None:
            raise StartupError(f"setting 'packages.{setting}': address {number} {problem}")


def _patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower().replace("_", "-").replace(".", "-") for name in names)


def defined_in(settings: Settings) -> Defined:
    """Return the named environments that the settings define. Raise StartupError if they are not valid or there is
    no source of packages.
    """
    environments = settings.environments
    defined = Defined(
        [Named(name, **msgspec.structs.asdict(environment)) for name, environment in environments.items()]
    )
    packages = settings.packages
    for part in (part for environment in defined for part in environment.parts):
        if part.is_npm and not packages.npm_url:
            raise StartupError(
                f"setting 'environments.{part.name}.npm' needs a registry: set packages.npm_url, for instance to "
                "https://registry.npmjs.org"
            )
        if not part.is_npm and not (packages.index_urls or packages.wheelhouse):
            raise StartupError(
                f"setting 'environments.{part.name}' needs a source of packages: set packages.index_urls, "
                "for instance to https://pypi.org/simple, or packages.wheelhouse"
            )
    return defined


def named_of(
    settings: Settings, home: Home, database: Database, registry: Registry, packages: PackageServices, sandbox: Sandbox
) -> EnvironmentParts:
    """Build the parts for named environments. Raise StartupError if the settings of an environment are not valid."""
    locks, environments, server = packages.locks, packages.environments, home.server_id
    named = NamedEnvironments(database, locks, environments, defined_in(settings))
    queries = EnvironmentQueries(database, registry, environments, named, server)
    rebuilds = Rebuilds(database, registry.storage, locks, environments, named, server)
    return EnvironmentParts(named, queries, rebuilds, sandbox)


# -- The limits of runs and of bundles, built from the settings --------------------------------------------------------


def limit_rules(settings: Settings) -> LimitRules:
    """Return the rules for limits of runs. Raise StartupError if a default is above its maximum."""
    defaults, maximum = msgspec.structs.asdict(settings.limits), msgspec.structs.asdict(settings.max_limits)
    for name, most in maximum.items():
        if (value := defaults[name]) > most:
            raise StartupError(f"setting 'limits.{name}' is {value}, above max_limits.{name} ({most}); lower it")
    return LimitRules(Limits(**defaults), maximum)


def bundle_limits(settings: Settings) -> BundleLimits:
    return BundleLimits(max_bytes=settings.bundle_max_mb * 1024 * 1024, max_files=settings.bundle_max_files)


# -- What the limits of a whole server count with: in one process, or shared by its worker processes -------------------


class Counts(NamedTuple):
    """The counters of one server that its limits are compared with."""

    bodies: Tally
    """Bytes of request bodies in memory."""
    answers: Tally
    """Bytes of answers in memory."""
    waiting: Tally
    """Runs that wait for a slot."""
    waiting_bytes: Tally
    """Bytes of the requests of these runs."""
    slots: Slots
    """The slots of runs."""
    connections: ConnectionCount
    peers: Peers | None = None
    """The other worker processes. None if the server has one process."""


def counts_of_one_process(settings: Settings) -> Counts:
    slots = OwnSlots(settings.runs_at_once)
    return Counts(OwnTally(), OwnTally(), OwnTally(), OwnTally(), slots, OwnConnections())
