"""The settings of a server. They are read once and never change.

Sources in the order of precedence: flags of the command line, environment variables `SKILLERY_*`, `skillery.toml`,
the configuration of pip (for `packages.index_urls`), defaults.
"""

from __future__ import annotations

import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import platformdirs

from skillery.errors import StartupError
from skillery.formats.pip_indexes import configured_indexes
from skillery.formats.secret_names import SECRET_PREFIX
from skillery.formats.wording import nearest

PREFIX = "SKILLERY_"
TOKEN_VARIABLE = "SKILLERY_TOKEN"  # noqa: S105 - the variable from which commands and clients read their token
URL_VARIABLE = "SKILLERY_URL"
"""Environment variable with the URL of the server, for clients."""
ANSWER_VARIABLE = "SKILLERY_MAX_ANSWER_MB"
_NO_SETTINGS = frozenset({TOKEN_VARIABLE, URL_VARIABLE, ANSWER_VARIABLE})
BACKENDS_PREFIX = "SKILLERY_BACKENDS_"
PLUGINS_PREFIX = "SKILLERY_PLUGINS_"
ENVIRONMENTS_PREFIX = "SKILLERY_ENVIRONMENTS_"
CONFIG_NAME = "skillery.toml"
PIP = "pip"
"""The source of a setting that the configuration of pip or uv sets."""
RENAMED_IN_ENVIRONMENT = {"SKILLERY_CONFIG": "--config"}

Positive = Annotated[int, msgspec.Meta(ge=1)]


class RunLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Default limits of a run. `skillery.backends.Limits` explains each limit."""

    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 300_000
    memory_mb: Positive = 512
    processes: Positive = 64
    cpus: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    disk_mb: Positive = 256
    disk_files: Positive = 16_384
    tmp_mb: Positive = 64
    blobs: Positive = 1_000
    blobs_mb: Positive = 256
    calls: Annotated[int, msgspec.Meta(ge=0)] = 100
    log_kb: Positive = 1_024
    result_mb: Positive = 16
    callbacks_per_second: Positive = 8_000


class MaxLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The highest limits that a skill or a caller may request.

    Some limits cannot be requested. For such a limit, this is the highest value that the setting `limits` may have.
    """

    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 3_600_000
    memory_mb: Positive = 4_096
    processes: Positive = 256
    cpus: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    disk_mb: Positive = 2_048
    disk_files: Positive = 131_072
    tmp_mb: Positive = 512
    blobs: Positive = 10_000
    blobs_mb: Positive = 2_048
    calls: Annotated[int, msgspec.Meta(ge=0)] = 1_000
    log_kb: Positive = 16_384
    result_mb: Positive = 64
    callbacks_per_second: Positive = 100_000


Landing = typing.Literal["publish", "review", "draft"]


class Publishing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules for new versions: a version is published at once, waits for a review, or becomes a draft.

    With `auth = "open"`, every version is published at once.
    """

    people: Landing = "publish"
    agents: Landing = "review"
    first_permissions: Landing = "publish"
    reviewers: typing.Literal["people", "any"] = "people"
    """Whether only people approve versions, or agents too."""
    self_approval: bool = False
    """Whether reviewers, admins included, approve versions that they have published."""
    examples_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    import_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 15.0


Streams = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class RunRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long runs are stored and wait for a workspace, how many clients may follow runs, and when a tool call of MCP
    becomes a task.

    A run is deleted after `keep_days`. With `keep_count`, a run is deleted earlier if it is not among this many newest
    runs. 0 means no limit.
    """

    keep_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 90
    keep_count: Annotated[int, msgspec.Meta(ge=0)] = 0
    streams: Streams = 500
    streams_per_identity: Streams = 200
    streams_per_run: Streams = 200
    workspace_seconds: Annotated[float, msgspec.Meta(ge=0, le=600)] = 30.0
    """Time that a run waits for the run that writes its workspace. A run in the background waits without a limit."""
    task_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0
    """Time after which a run becomes a task for MCP clients that support tasks."""


Natural = Annotated[int, msgspec.Meta(ge=0)]
MaybeNatural = Natural | msgspec.UnsetType


class IdentityQuotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of the identities that match a pattern. An unset field has the value of the general quota."""

    blobs: MaybeNatural = msgspec.UNSET
    blobs_mb: MaybeNatural = msgspec.UNSET
    runs_per_minute: MaybeNatural = msgspec.UNSET
    concurrent_runs: MaybeNatural = msgspec.UNSET
    session_tools: MaybeNatural = msgspec.UNSET
    workspaces: MaybeNatural = msgspec.UNSET
    workspaces_mb: MaybeNatural = msgspec.UNSET


class NamespaceQuotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of one namespace."""

    bundles_mb: Natural


class Quotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Quotas of identities and namespaces. 0 means no limit.

    With `auth = "open"`, only the entries in `identities` and `namespaces` apply.
    """

    blobs: Natural = 20_000
    blobs_mb: Natural = 10_240
    runs_per_minute: Natural = 1_200
    concurrent_runs: Natural = 100
    session_tools: Natural = 100
    workspaces: Natural = 200
    workspaces_mb: Natural = 10_240
    bundles_mb: Natural = 10_240
    identities: dict[str, IdentityQuotas] = {}
    namespaces: dict[str, NamespaceQuotas] = {}


class BlobLifetimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Default lifetimes of blobs. 0 means no end."""

    input_hours: Natural = 720
    output_hours: Natural = 720


class DefinedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for the tools that agents define."""

    session_hours: Positive = 24


class Garbage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of sweeps, which remove unreferenced and expired data."""

    interval_minutes: Natural = 60
    grace_minutes: Natural = 60
    cache_days: Natural = 7


class Imports(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of an archive of skills, and of the imports at the same time (`at_once`)."""

    max_mb: Positive = 1_024
    max_unpacked_mb: Positive = 4_096
    max_entries: Positive = 100_000
    at_once: Positive = 2


class Packages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sources and limits of packages."""

    index_urls: tuple[str, ...] = ()
    wheelhouse: str = ""
    exclude_newer: Annotated[str, msgspec.Meta(pattern=r"^(\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:\d\d))?)?$")] = ""
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    reuse_hours: Natural = 24
    lock_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    build_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 600.0
    max_mb: Positive = 2_048
    total_mb: Positive = 20_480
    file_hosts: tuple[str, ...] = ()
    build_from_source: tuple[str, ...] = ()
    infer: typing.Literal["off", "suggest", "lock"] = "suggest"


class Webhooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How events are sent to webhooks."""

    allow_private: tuple[str, ...] = ()
    """Addresses and networks (`10.1.0.0/16`) of webhooks that are not public addresses, such as loopback."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=30)] = 15.0
    retry_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    """The shortest pause after a failed attempt."""
    retry_max_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 3600.0
    """The longest pause. In between, a pause is a quarter of the time for which the target has failed."""
    give_up_hours: Annotated[float, msgspec.Meta(ge=0, le=720)] = 24.0


class Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of trusted publishing."""

    allow_private: tuple[str, ...] = ()
    """Addresses and networks (`10.1.0.0/16`) of issuers that are not public addresses, such as a GitLab server."""


class NamedEnvironment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An environment of packages that runs can request by its name."""

    dependencies: tuple[str, ...]
    preload: tuple[str, ...] = ()
    description: str = ""
    default: bool = False


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
    runs: RunRecords = RunRecords()
    limits: RunLimits = RunLimits()
    max_limits: MaxLimits = MaxLimits()
    quotas: Quotas = Quotas()
    blobs: BlobLifetimes = BlobLifetimes()
    tools: DefinedTools = DefinedTools()
    gc: Garbage = Garbage()
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


# Tables whose keys are patterns or names that the operator chooses. Patterns are allowed in skillery.toml only.
ENTRIES: dict[str, type[msgspec.Struct]] = {
    "quotas.identities": IdentityQuotas,
    "quotas.namespaces": NamespaceQuotas,
    "environments": NamedEnvironment,
}


class Value(typing.NamedTuple):
    """One setting in the output of `skillery config show`."""

    name: str
    value: Any
    source: str


class LoadedSettings(typing.NamedTuple):
    settings: Settings
    sources: Mapping[str, str]
    """The source of each setting that a source sets, by dotted name. Other settings have their default."""

    def values(self) -> list[Value]:
        built = msgspec.to_builtins(self.settings, enc_hook=str)
        return [Value(name, value, _source_of(name, self.sources)) for name, value in _leaves(built)]


def _source_of(name: str, sources: Mapping[str, str]) -> str:
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
    from_environment = _read_environment(variables)
    home = Path(fields.get("home") or from_environment.get("home") or _default_home(config)).expanduser().absolute()
    path = Path(config).expanduser() if config else home / CONFIG_NAME
    from_file = _read_file(path, required=config is not None)
    sources: dict[str, str] = {}
    tree: dict[str, Any] = {}
    for source, values in (
        (path.name, from_file),
        ("environment", from_environment),
        ("flag", fields),
    ):
        for name, value in values.items():
            _put(tree, name, value)
            sources[name] = source
    tree["home"] = home
    if not sources.keys() & {"packages.index_urls", "packages.wheelhouse"}:
        # Not an explicit setting, so credentials in it must not stop a server that builds packages from source.
        indexes = configured_indexes(variables)
        if indexes and not (
            tree.get("packages", {}).get("build_from_source") and any("@" in index for index in indexes)
        ):
            _put(tree, "packages.index_urls", indexes)
            sources["packages.index_urls"] = PIP
    return LoadedSettings(_convert(tree, sources), sources)


def _default_home(config: str | Path | None) -> str:
    """Return the path of the home if neither a flag nor the environment sets it.

    A settings file that --config or SKILLERY_CONFIG names may set the home. The settings file in a home cannot.
    """
    if config:
        home = _read_file(Path(config).expanduser(), required=True).get("home")
        if home:
            return str(home)
    return platformdirs.user_data_dir("skillery", appauthor=False)


def _names() -> dict[str, Any]:
    """Return the type of every setting by its dotted name."""
    return dict(_fields(Settings))


def _fields(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        kind = hints[field.name]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _fields(kind, f"{prefix}{field.name}.")
        elif field.name not in {"backends", "plugins"}:
            yield prefix + field.name, kind


def _read_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    names = _names()
    by_variable = {PREFIX + name.upper().replace(".", "_"): name for name in names if name not in ENTRIES}
    values: dict[str, Any] = {}
    for variable, text in sorted(variables.items()):
        if not variable.startswith(PREFIX) or variable.startswith(SECRET_PREFIX) or variable in _NO_SETTINGS:
            continue
        if variable.startswith(BACKENDS_PREFIX):
            values[_backend_setting(variable)] = text
            continue
        if variable.startswith(PLUGINS_PREFIX) and variable not in by_variable:
            values[_plugin_setting(variable)] = text
            continue
        if variable.startswith(ENVIRONMENTS_PREFIX):
            values[_environment_setting(variable)] = _environment(variable, text)
            continue
        name = by_variable.get(variable)
        if name is None:
            raise StartupError(f"unknown setting {variable} in the environment{_nearest(variable, by_variable)}")
        values[name] = _from_text(names[name], text)
    return values


def _backend_setting(variable: str) -> str:
    parts = variable.removeprefix(BACKENDS_PREFIX).lower().split("_", 2)
    if len(parts) != 3:
        raise StartupError(f"unknown setting {variable}: write {BACKENDS_PREFIX}<KIND>_<NAME>_<SETTING>")
    return "backends." + ".".join(parts)


def _plugin_setting(variable: str) -> str:
    plugin, _, setting = variable.removeprefix(PLUGINS_PREFIX).lower().partition("_")
    if not setting:
        raise StartupError(f"unknown setting {variable}: write {PLUGINS_PREFIX}<NAME>_<SETTING>")
    return f"plugins.{plugin}.{setting}"


def _environment_setting(variable: str) -> str:
    return "environments." + variable.removeprefix(ENVIRONMENTS_PREFIX).lower().replace("_", "-")


def _environment(variable: str, text: str) -> dict[str, Any]:
    """Return a named environment from the text of an environment variable. Raise StartupError if the text is not a JSON
    object.

    The text is JSON because package requirements may contain commas.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        example = '{"dependencies": ["numpy>=2,<3"], "preload": ["numpy"]}'
        raise StartupError(f"{variable} is not a JSON object ({error}): write one such as {example}") from None


def _from_text(kind: Any, text: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool and text.lower() in {"yes", "on"}:
        return True
    if kind is bool and text.lower() in {"no", "off"}:
        return False
    return text


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise StartupError(f"there is no configuration file {path}") from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from None
    sections = _take_sections(path, document)
    entries = {table: found for table in ENTRIES if (found := _take_entries(path, document, table))}
    values = dict(_leaves(document))
    names = _names()
    for name in values:
        if name not in names:
            raise StartupError(f"unknown setting '{name}' in {path}{_nearest(name, names)}")
    return values | entries | sections


def _take_sections(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Remove the sections of backends and plugins from the document, and return their settings by dotted name."""
    found: dict[str, Any] = {}
    for table, shown, depth in (("backends", "[backends.<kind>.<name>]", 3), ("plugins", "[plugins.<name>]", 2)):
        sections = document.pop(table, {})
        if not isinstance(sections, dict):
            raise StartupError(f"{path}: '{table}' must be a table: {shown}")
        found |= {f"{table}.{name}": value for name, value in _leaves(sections, stop=depth)}
        # An empty section [plugins.<name>] chooses the plugin.
        found |= {f"plugins.{name}": {} for name, section in sections.items() if table == "plugins" and section == {}}
    return found


def _take_entries(path: Path, document: dict[str, Any], table: str) -> dict[str, Any]:
    """Remove a table of ENTRIES from the document, and return its entries by pattern or name.

    A pattern may contain any character, including dots. Therefore it cannot be a part of a dotted name. Raise
    StartupError if an entry is not valid.
    """
    above, _, last = table.rpartition(".")
    section = document.get(above) if above else document
    entries = section.pop(last, {}) if isinstance(section, dict) else {}
    known = ENTRIES[table].__struct_fields__
    example = f'[{table}."{{}}"]' if above else f"[{table}.{{}}]"
    if not isinstance(entries, dict):
        raise StartupError(f"{path}: '{table}' must be a table: {example.format('<pattern>' if above else '<name>')}")
    for pattern, entry in entries.items():
        where = example.format(pattern)
        if not isinstance(entry, dict):
            raise StartupError(f"{path}: '{pattern}' in [{table}] must be a table: {where}")
        for name in entry:
            if name not in known:
                raise StartupError(f"unknown setting '{name}' in {where} of {path}{_nearest(name, known)}")
    return entries


def _leaves(tree: Mapping[str, Any], prefix: str = "", stop: int = 9) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value and stop > 1:
            yield from _leaves(value, f"{prefix}{name}.", stop - 1)
        elif value != {}:
            yield prefix + name, value


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    depth = {"backends": 3, "plugins": 2}.get(name.partition(".")[0], -1)
    *parents, last = name.split(".", depth)
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value


def _convert(tree: dict[str, Any], sources: Mapping[str, str]) -> Settings:
    try:
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        name = where.removesuffix("`").partition("[")[0]
        if not name:
            raise StartupError(f"the settings are not valid: {reason}") from None
        if name == "backends":
            # The value is the whole tree, including passwords and keys of backends, so the message omits it.
            raise StartupError(f"the sections [backends.<kind>.<name>] are not valid: {reason.lower()}") from None
        if name == "plugins":
            raise StartupError(f"the sections [plugins.<name>] are not valid: {reason.lower()}") from None
        if name == "environments":
            raise _no_environment(tree[name], sources) from None
        value: Any = tree
        for part in name.split("."):
            value = value[part] if isinstance(value, dict) else value
        raise StartupError(
            f"setting '{name}' ({sources.get(name, 'default')}) is {value!r}: {reason.lower()}"
        ) from None


def _no_environment(entries: dict[str, Any], sources: Mapping[str, str]) -> StartupError:
    """Return the error for the first named environment that is not valid. The error names the environment and its
    faulty setting.
    """
    for name, entry in entries.items():
        try:
            msgspec.convert(entry, NamedEnvironment, strict=False)
        except msgspec.ValidationError as error:
            reason, _, where = str(error).partition(" - at `$.")
            source = _source_of(f"environments.{name}.", sources)
            key = where.removesuffix("`").partition("[")[0]
            shown = f"setting 'environments.{name}.{key}'" if key else f"setting 'environments.{name}'"
            return StartupError(f"{shown} ({source}) is {entry.get(key, entry)!r}: {reason.lower()}")
    return StartupError("setting 'environments' is not valid")


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    near = nearest(name, known, 0.0)
    return f"; did you mean '{near}'?" if near else ""


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address or localhost, so that only this computer can connect."""
    name = host.strip("[]").lower()
    return name in {"localhost", "::1"} or (name.startswith("127.") and name.count(".") == 3)


__all__ = [
    "LoadedSettings",
    "MaxLimits",
    "Publishing",
    "RunLimits",
    "RunRecords",
    "Settings",
    "Value",
    "is_loopback",
    "load_settings",
]
