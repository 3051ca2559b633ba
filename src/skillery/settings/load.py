"""The settings of a server. They are read once and never change.

Sources in the order of precedence: flags of the command line, environment variables `SKILLERY_*`, `skillery.toml`,
the configuration of pip (for `packages.index_urls`), defaults.
"""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import platformdirs

from skillery.errors import StartupError
from skillery.settings.groups import (
    ENTRIES,
    Audit,
    Backups,
    BlobLifetimes,
    DefinedTools,
    Garbage,
    Imports,
    Insight,
    MaxLimits,
    NamedEnvironment,
    Packages,
    Quotas,
    RunLimits,
    RunRecords,
    Scan,
    Tokens,
    Trust,
    Webhooks,
)
from skillery.settings.sources import configured_indexes, leaves, put, read_environment, read_file, reason_of
from skillery.settings.versions import (
    Evals,
    ModelSettings,
    Natural,
    PolicyRules,
    Positive,
    Publishing,
    Review,
    Seals,
    Signing,
)

CONFIG_NAME = "skillery.toml"
PIP = "pip"
"""The source of a setting that the configuration of pip or uv sets."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a server. docs/reference/settings.md explains each setting."""

    home: Path
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8080
    workers: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Processes that serve requests. More than one needs Postgres."""
    database: str = ""
    sandbox: str = "linux"
    storage: str = "directory"
    auth: str | tuple[str, ...] = "open"
    """One authenticator, or several in the order in which they are asked. In a text, commas separate names."""
    secrets: str = "database"
    ranker: str = ""
    """The backend that finds skills by meaning. "": searches look for words alone."""
    plugins_folder: str = ""
    web: bool = True
    """Whether the server has pages for browsers."""
    git: bool = True
    """Whether clients of git can read skills as repositories."""
    hook_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 360.0
    """The longest time for one call of a plugin: a check before a publication, or an endpoint."""
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    public_downloads: bool = False
    public_url: Annotated[str, msgspec.Meta(pattern=r"^(https?://[^\s?#]+)?$")] = ""
    """The URL of this server for people, for links in webhooks."""
    signed_downloads_seconds: Annotated[int, msgspec.Meta(ge=0, le=604_800)] = 0
    index_skills: Positive = 10_000
    git_max_mb: Positive = 512
    marketplace: Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9]+(-[a-z0-9]+)*)?$", max_length=40)] = ""
    """The name of this server in the catalogues of its git repositories."""
    thin_plugins: tuple[str, ...] = ()
    """Namespaces whose skills are also a plugin without scripts: the scripts run on this server."""
    allow_unsafe_sandbox: bool = False
    allow_degraded: bool = False
    max_body_mb: Positive = 64
    bodies_mb: Positive = 256
    answer_max_mb: Positive = 32
    answers_mb: Positive = 256
    answer_seconds: Annotated[int, msgspec.Meta(ge=1, le=80)] = 60
    bundle_max_mb: Positive = 16
    bundle_max_files: Positive = 512
    concurrent_runs: Annotated[int, msgspec.Meta(ge=0)] = 0
    queued_runs: Annotated[int, msgspec.Meta(ge=0)] = 1_000
    queued_mb: Positive = 64
    max_connections: Natural = 0
    max_connections_per_address: Natural = 0
    grace_seconds: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    default_visibility: typing.Literal["public", "namespace", "private"] = "public"
    log_level: typing.Literal["debug", "info", "warning", "error"] = "info"
    log_format: typing.Literal["text", "json"] = "text"
    log_requests: bool = False
    traces: str = "off"
    metrics: typing.Literal["admin", "open", "off"] = "admin"
    publishing: Publishing = Publishing()
    review: Review = Review()
    signing: Signing = Signing()
    seals: Seals = Seals()
    scan: Scan = Scan()
    policy: dict[str, PolicyRules] = {}
    models: dict[str, ModelSettings] = {}
    evals: Evals = Evals()
    runs: RunRecords = RunRecords()
    insight: Insight = Insight()
    limits: RunLimits = RunLimits()
    max_limits: MaxLimits = MaxLimits()
    quotas: Quotas = Quotas()
    blobs: BlobLifetimes = BlobLifetimes()
    tokens: Tokens = Tokens()
    audit: Audit = Audit()
    tools: DefinedTools = DefinedTools()
    gc: Garbage = Garbage()
    backups: Backups = Backups()
    imports: Imports = Imports()
    packages: Packages = Packages()
    webhooks: Webhooks = Webhooks()
    trust: Trust = Trust()
    environments: dict[str, NamedEnvironment] = {}
    plugins: dict[str, dict[str, Any]] = {}
    backends: dict[str, dict[str, dict[str, Any]]] = {}

    @property
    def database_url(self) -> str:
        """The URL of the configured database, or of the SQLite database in the home if no database is configured."""
        return self.database or f"sqlite:///{self.home / 'skillery.db'}"

    @property
    def marketplace_name(self) -> str:
        """The setting `marketplace`, else the host of `public_url` with hyphens, else `skillery`."""
        host = re.sub(r"[^a-z0-9]+", "-", (urlsplit(self.public_url).hostname or "").lower()).strip("-")
        return self.marketplace or host[:40].strip("-") or "skillery"

    @property
    def authenticators(self) -> tuple[str, ...]:
        """The names in `auth`."""
        names = self.auth.split(",") if isinstance(self.auth, str) else self.auth
        return tuple(name.strip() for name in names)

    @property
    def runs_at_once(self) -> int:
        """The limit of runs at the same time: `concurrent_runs`, or two for each processor of this computer if that
        is 0.
        """
        return self.concurrent_runs or 2 * (os.cpu_count() or 1)


class Value(typing.NamedTuple):
    """One setting in the output of `skillery config show`."""

    name: str
    value: Any
    source: str


class LoadedSettings(typing.NamedTuple):
    """The settings, and the source of each setting by its dotted name."""

    settings: Settings
    sources: Mapping[str, str]
    """The source of each setting that a source sets, by dotted name. Other settings have their default."""

    def values(self) -> list[Value]:
        built = msgspec.to_builtins(self.settings, enc_hook=str)
        return [Value(name, value, _source_of(name, self.sources)) for name, value in leaves(built)]


def _source_of(name: str, sources: Mapping[str, str]) -> str:
    """Return the source of a setting. A table of ENTRIES has one source, or a source for each of its entries."""
    table = next((table for table in ENTRIES if name.startswith(f"{table}.")), name)
    entry = next((entry for entry in sources if entry.startswith(f"{table}.") and name.startswith(f"{entry}.")), table)
    return sources.get(entry, "default")


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    config: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Read the settings from all sources. `flags` are settings from the command line; `environ` replaces os.environ.

    Raise StartupError if a setting is not valid. The message names the setting, its value, its source and the remedy.
    """
    fields = {name: value for name, value in (flags or {}).items() if value is not None}
    variables = dict(os.environ if environ is None else environ)
    config = config or variables.pop("SKILLERY_CONFIG", None) or None
    from_environment = read_environment(variables, Settings)
    home = Path(fields.get("home") or from_environment.get("home") or _default_home(config)).expanduser().absolute()
    path = Path(config).expanduser() if config else home / CONFIG_NAME
    from_file = read_file(path, Settings, required=config is not None)
    sources: dict[str, str] = {}
    tree: dict[str, Any] = {}
    for source, values in (
        (path.name, from_file),
        ("environment", from_environment),
        ("flag", fields),
    ):
        for name, value in values.items():
            put(tree, name, value)
            sources[name] = source
    tree["home"] = home
    if not sources.keys() & {"packages.index_urls", "packages.wheelhouse"}:
        indexes = configured_indexes(variables)
        # Not an explicit setting, so credentials in it must not stop a server that builds packages from source.
        builds_packages = tree.get("packages", {}).get("build_from_source")
        has_credentials = any("@" in index for index in indexes)
        if indexes and not (builds_packages and has_credentials):
            put(tree, "packages.index_urls", indexes)
            sources["packages.index_urls"] = PIP
    return LoadedSettings(_convert(tree, sources), sources)


def _default_home(config: str | Path | None) -> str:
    """Return the path of the home if neither a flag nor the environment sets it.

    A settings file that --config or SKILLERY_CONFIG names may set the home. The settings file in a home cannot.
    """
    if config:
        home = read_file(Path(config).expanduser(), Settings, required=True).get("home")
        if home:
            return str(home)
    return platformdirs.user_data_dir("skillery", appauthor=False)


def _convert(tree: dict[str, Any], sources: Mapping[str, str]) -> Settings:
    """Return the settings. Raise StartupError with the name, the source and the value of a setting that is not valid.
    The values of backends and plugins may be secrets, and are not in the message.
    """
    try:
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        path, remedy = reason_of(error, Settings)
        name = path.partition("[")[0]
        if not name:
            raise StartupError(f"the settings are not valid: {remedy}") from None
        if name == "backends":
            # The value is the whole tree, including passwords and keys of backends, so the message omits it.
            raise StartupError(f"the sections [backends.<kind>.<name>] are not valid: {remedy}") from None
        if name == "plugins":
            raise StartupError(f"the sections [plugins.<name>] are not valid: {remedy}") from None
        if name in ("environments", "policy", "models"):
            raise _invalid_entry(name, tree[name], sources) from None
        value: Any = tree
        for part in name.split("."):
            value = value[part] if isinstance(value, dict) else value
        raise StartupError(f"setting '{name}' ({sources.get(name, 'default')}) is {value!r}: {remedy}") from None


def _invalid_entry(table: str, entries: dict[str, Any], sources: Mapping[str, str]) -> StartupError:
    """Return the error for the first entry of a table that is not valid. The error names the entry and its faulty
    setting.
    """
    for name, entry in entries.items():
        try:
            msgspec.convert(entry, ENTRIES[table], strict=False)
        except msgspec.ValidationError as error:
            path, remedy = reason_of(error, ENTRIES[table])
            source = _source_of(f"{table}.{name}.", sources)
            key = path.partition("[")[0]
            setting = f"setting '{table}.{name}.{key}'" if key else f"setting '{table}.{name}'"
            return StartupError(f"{setting} ({source}) is {entry.get(key, entry)!r}: {remedy}")
    return StartupError(f"setting '{table}' is not valid")


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address or localhost, so that only this computer can connect."""
    name = host.strip("[]").lower()
    return name in {"localhost", "::1"} or (name.startswith("127.") and name.count(".") == 3)
