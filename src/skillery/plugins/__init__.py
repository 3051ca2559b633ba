"""Plugins: find the plugins, and open the backends that the settings choose.

If a plugin is faulty, the server does not start. The StartupError has one line and names the plugin.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pluggy

from skillery import hookspecs
from skillery.backends import (
    API_VERSION,
    KINDS,
    Authenticator,
    Kind,
    Offer,
    Place,
    Ranker,
    Secrets,
    Signer,
    Storage,
)
from skillery.errors import StartupError
from skillery.formats.wording import did_you_mean
from skillery.identity.authenticator_chain import AuthenticatorChain
from skillery.plugins.backends import Watch, Watched, problems
from skillery.plugins.calls import Failures
from skillery.settings.load import Settings
from skillery.settings.sources import reason_of

if TYPE_CHECKING:
    from skillery.database import Database


# -- Find and import plugins, and register their hooks -----------------------------------------------------------------


GROUP = "skillery"


class Source(NamedTuple):
    """The origin of a plugin, and its version of the hook API."""

    package: str | None
    """Name of the installed distribution. None for a module of `plugins_folder`."""
    version: str | None
    path: Path | None
    """The file or folder in `plugins_folder`. None for an installed distribution."""
    api_version: int


def load(folder: str | Path = "") -> tuple[pluggy.PluginManager, Mapping[str, Source]]:
    """Return a manager with all plugins: the entry points of the group `skillery`, and the modules and packages in
    `folder`. Also return the source of each plugin by name.
    """
    manager = pluggy.PluginManager("skillery")
    manager.add_hookspecs(hookspecs)
    sources: dict[str, Source] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        sources[entry.name] = _of_entry(entry)._replace(api_version=_register(manager, entry.name, entry.load))
    if folder:
        for path in _plugin_files(Path(folder).expanduser()):
            api_version = _register(manager, path.stem, lambda path=path: _import_file(path))  # type: ignore[misc]
            sources[path.stem] = Source(None, None, path, api_version)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        versions = ", ".join(
            sorted(name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), "skillery_spec"))
        )
        raise StartupError(
            f"plugin '{_name_of(manager, error)}': {one_line(error)}; the hooks are: {versions}"
        ) from None
    return manager, sources


def _of_entry(entry: EntryPoint) -> Source:
    dist = entry.dist
    return Source(dist.name if dist else None, dist.version if dist else None, None, API_VERSION)


def _register(manager: pluggy.PluginManager, name: str, load: Callable[[], Any]) -> int:
    """Register a plugin. Return the version of the hook API that the plugin is written for."""
    try:
        plugin = load()
    except Exception as error:
        raise StartupError(f"plugin '{name}' cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    # Before the hooks are checked: another version may have other hooks.
    api_version = _checked_version(name, getattr(plugin, "api_version", API_VERSION))
    try:
        manager.register(plugin, name)
    except pluggy.PluginValidationError as error:
        raise StartupError(f"plugin '{name}': {one_line(error)}") from None
    except ValueError:
        raise StartupError(f"two plugins are called '{name}'; rename or remove one") from None
    if not manager.get_hookcallers(plugin):
        raise StartupError(f"plugin '{name}' has no hooks; mark its functions with @hookimpl (skillery.hookimpl)")
    return api_version


def _checked_version(name: str, version: Any) -> int:
    """Return the `api_version` of a plugin. Raise StartupError if this server does not have that version."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StartupError(
            f"plugin '{name}': api_version is {version!r:.40}; write a number: api_version = {API_VERSION}"
        )
    if version == API_VERSION:
        return version
    other = "a newer Skillery" if version > API_VERSION else "an older Skillery"
    raise StartupError(
        f"plugin '{name}' is written for version {version} of the hook API, and this Skillery has version "
        f"{API_VERSION}: install a release of the plugin for version {API_VERSION}, or {other}; or remove the plugin"
    )


def _plugin_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise StartupError(f"setting 'plugins_folder' is '{folder}', which is not a folder")
    files = [path for path in folder.glob("*.py") if not path.name.startswith("_")]
    return sorted([*files, *(path.parent for path in folder.glob("*/__init__.py"))])


def _import_file(path: Path) -> ModuleType:
    """Import a module or package of the plugin folder, as `skillery_plugins_folder.<name>`."""
    name = f"skillery_plugins_folder.{path.stem}"
    source = path / "__init__.py" if path.is_dir() else path
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _name_of(manager: pluggy.PluginManager, error: pluggy.PluginValidationError) -> str:
    return manager.get_name(error.plugin) or "?"


def one_line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split()) or type(error).__name__


# -- The plugins of a server -------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)
BACKUP = "backup"
"""The kind in the sections of the settings for the storage of backups."""


class Plugins:
    """All plugins that were found, and the backends that they offer."""

    def __init__(self, manager: pluggy.PluginManager, sources: Mapping[str, Source]) -> None:
        self.manager = manager
        self.sources = sources
        """The origin of each plugin, by its name."""
        self.failures = Failures()
        """Failed calls of all plugins, also of backends."""
        self.objects: dict[str, Offer]
        """The offers of `skillery_plugin`, by name."""
        self.offers: dict[str, dict[str, Offer]] = {}
        """The offers of each kind, by name."""
        self._plugin_of: dict[str, dict[str, str]] = {}
        for kind in KINDS.values():
            self.offers[kind.name], self._plugin_of[kind.name] = _offers(manager, kind.name, kind.hook)
        self.objects, _ = _offers(manager, "plugin", "skillery_plugin")

    def open(self, kind: str, settings: Settings, database: Database | None = None) -> Any:
        """Return the open backend of a kind that the settings choose. `database` is None for a command without a
        database.

        Raise StartupError if no plugin offers the backend, if it is unsafe and not allowed, if its settings are not
        valid, or if it does not implement its Protocol.
        """
        (name,) = self.chosen(KINDS[kind], settings)
        return self._open(kind, name, settings, database)

    def open_ranker(self, settings: Settings, database: Database) -> Ranker | None:
        """Return the open ranker, or None if the setting `ranker` is "". Raise the errors of `open`."""
        return self.open("ranker", settings, database) if settings.ranker else None

    def open_signer(self, settings: Settings, database: Database, secrets: Secrets) -> Signer | None:
        """Return the open signer, or None if the setting `signing.key` is "off". Raise the errors of `open`."""
        names = self.chosen(KINDS["signer"], settings)
        value = partial(secrets.get, settings.signing.key.partition(":")[2])
        return self._open("signer", names[0], settings, database, key_secret=value) if names else None

    def open_storage(self, name: str, settings: Settings, database: Database | None = None) -> Storage:
        """Return the open storage `name`, which may differ from the setting `storage`.

        Raise the errors of `open`.
        """
        storage: Storage = self._open("storage", name, settings, database)
        return storage

    def open_backup_store(self, settings: Settings) -> Storage:
        """Return the open storage of the backups, which the setting `backups.storage` and its section
        `[backends.backup.<name>]` choose. Its folder is `backups` in the home.

        Raise the errors of `open`.
        """
        sections = {**settings.backends, "storage": settings.backends.get(BACKUP, {})}
        own = msgspec.structs.replace(settings, home=settings.home / "backups", backends=sections)
        try:
            storage: Storage = self._open("storage", settings.backups.storage, own, None)
        except StartupError as error:
            text = str(error).replace("[backends.storage.", f"[backends.{BACKUP}.")
            raise StartupError(text.replace("setting 'storage'", "setting 'backups.storage'")) from None
        return storage

    def open_authenticator(self, settings: Settings, database: Database) -> Authenticator:
        """Open the authenticators in the setting `auth`, and return one that asks each of them in this order.

        Raise the errors of `open`, and StartupError if the authenticators cannot be combined.
        """
        authenticators = self.open_authenticators(settings, database)
        return AuthenticatorChain(authenticators) if len(authenticators) > 1 else next(iter(authenticators.values()))

    def open_authenticators(self, settings: Settings, database: Database) -> dict[str, Authenticator]:
        """Open the authenticators in the setting `auth`. Return them by name, in this order."""
        names = settings.authenticators
        if not all(names) or len(set(names)) < len(names):
            raise StartupError(
                f"setting 'auth' is {settings.auth!r}: name one authenticator, or several different ones"
            )
        return {name: self._open("authenticator", name, settings, database) for name in names}

    def open_offered(self, kind: str, settings: Settings, database: Database, **services: Any) -> Any | None:
        """Return the open backend of a kind that has no setting, or None if no plugin offers one. `services` are
        further fields of its Place.

        Raise the errors of `open`, and StartupError if several plugins offer such a backend.
        """
        names = sorted(self.offers[kind])
        if len(names) > 1:
            plugins = " and ".join(f"'{self._plugin_of[kind][name]}'" for name in names)
            raise StartupError(f"the plugins {plugins} both offer a {kind}: remove one of them")
        return self._open(kind, names[0], settings, database, **services) if names else None

    def chosen(self, kind: Kind, settings: Settings) -> tuple[str, ...]:
        """Return the names of the backends of a kind that a server with these settings uses."""
        if not kind.setting:
            return tuple(sorted(self.offers[kind.name]))
        if kind.setting == "auth":
            return settings.authenticators
        # `secret:NAME` of signing.key names the backend `secret`.
        name = attrgetter(kind.setting)(settings).partition(":")[0]
        return () if name == kind.absent else (name,)

    def plugin_of(self, kind: str, name: str) -> str:
        """Return the plugin that offers the backend `name`."""
        return self._plugin_of[kind][name]

    def _open(self, kind: str, name: str, settings: Settings, database: Database | None, **more: Any) -> Any:
        """Return the backend `name` as a Watched. `more` are further fields of its Place. Raise the
        errors of `open`.
        """
        offer = self.offers[kind].get(name)
        if offer is None:
            offered = ", ".join(sorted(self.offers[kind])) or "none"
            raise StartupError(
                f"setting '{KINDS[kind].setting}' is '{name}', which no plugin offers; the plugins offer: {offered}"
            )
        if offer.unsafe and not settings.allow_unsafe_sandbox:
            raise StartupError(
                f"{kind} '{name}' does not isolate what it runs: choose another, "
                "or set allow_unsafe_sandbox = true if you trust all code that runs here"
            )
        if offer.unsafe:
            log.warning(
                "%s '%s' does NOT isolate what it runs: skills can do everything that this server can", kind, name
            )
        values = settings.backends.get(kind, {}).get(name, {})
        place = msgspec.structs.replace(place_of(kind, name, settings, database), **more)
        backend = offer.open(settings_of(f"backends.{kind}.{name}", offer, values), place)
        self._check_protocols(kind, name, backend)
        seconds = min(settings.hook_seconds, KINDS[kind].read_seconds)
        return Watched(backend, KINDS[kind], Watch(self._plugin_of[kind][name], self.failures, seconds))

    def _check_protocols(self, kind: str, name: str, backend: Any) -> None:
        """Raise StartupError if the backend does not implement its Protocol, or an optional Protocol of its kind."""
        optional = [protocol for protocol in KINDS[kind].optional if isinstance(backend, protocol)]
        for protocol in (KINDS[kind].protocol, *optional):
            faults = "; ".join(f"it {problem}" for problem in problems(backend, protocol))
            if faults:
                raise StartupError(
                    f"plugin '{self._plugin_of[kind][name]}': the {kind} '{name}' is not a "
                    f"skillery.backends.{protocol.__name__}: {faults}"
                )

    def check_settings(self, settings: Settings) -> None:
        """Raise StartupError if a section `[backends.<kind>.<name>]` or `[plugins.<name>]` of the settings belongs to
        no plugin or is not valid.
        """
        for name, values in settings.plugins.items():
            if name not in self.objects:
                offered = ", ".join(sorted(self.objects)) or "none"
                raise StartupError(
                    f"[plugins.{name}]: no installed plugin has this name; plugins with settings: {offered}"
                )
            settings_of(f"plugins.{name}", self.objects[name], values)
        for kind, sections in settings.backends.items():
            if kind not in (*KINDS, BACKUP):
                raise StartupError(f"there is no kind of backend '{kind}' ([backends.{kind}]): {', '.join(KINDS)}")
            offers = self.offers["storage" if kind == BACKUP else kind]
            for name, values in sections.items():
                offer = offers.get(name)
                if offer is None:
                    offered = ", ".join(sorted(offers))
                    raise StartupError(
                        f"[backends.{kind}.{name}]: no plugin offers this backend; the plugins offer: {offered}"
                    )
                settings_of(f"backends.{kind}.{name}", offer, values)


def load_plugins(folder: str | Path = "") -> Plugins:
    """Load the plugins: the entry points of the group `skillery`, and the modules and packages in `folder`.

    Raise StartupError if a plugin cannot be imported or is not valid. If `folder` is "", only entry points are loaded.
    """
    return Plugins(*load(folder))


def place_of(kind: str, name: str, settings: Settings, database: Database | None) -> Place:
    """Return the Place of a backend: the home, and, with a database, its own values and the tokens of the registry."""
    if database is None:
        return Place(settings.home, settings.allow_degraded)
    # A sandbox opens without a database, and without the import of one.
    from skillery.database.backend_values import BackendValues
    from skillery.identity.authenticator_chain import RegistryTokens
    from skillery.identity.offboarding import end_identities

    values = BackendValues(database, f"{kind}.{name}")
    ends = partial(end_identities, database=database) if kind == "authenticator" else None
    return Place(settings.home, settings.allow_degraded, values, RegistryTokens(database), ends)


def _offers(manager: pluggy.PluginManager, kind: str, hook: str) -> tuple[dict[str, Offer], dict[str, str]]:
    """Return the offers of a kind by name, and for each name the plugin that made the offer.

    Raise StartupError if a plugin fails or two plugins use one name. Each plugin is called separately, so that the
    error can name the plugin.
    """
    offers: dict[str, Offer] = {}
    origin: dict[str, str] = {}
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        plugin = implementation.plugin_name
        try:
            offer = implementation.function()
        except Exception as error:
            raise StartupError(f"plugin '{plugin}' failed to offer a {kind}: {one_line(error)}") from error
        if not isinstance(offer, Offer):
            raise StartupError(f"plugin '{plugin}' must return an Offer from {hook}, not {type(offer).__name__}")
        if offer.name in offers:
            raise StartupError(
                f"the plugins '{origin[offer.name]}' and '{plugin}' both offer a {kind} called '{offer.name}': "
                "remove one of them"
            )
        offers[offer.name], origin[offer.name] = offer, plugin
    return offers, origin


def settings_of(section: str, offer: Offer, values: Mapping[str, Any]) -> msgspec.Struct:
    """Return the settings of an offer from the values of its section. Raise StartupError if they are not valid."""
    fields = {field.encode_name: field.required for field in msgspec.structs.fields(offer.settings)}
    for name in values:
        if name not in fields:
            there_are = f"it has {', '.join(fields)}" if fields else "it has none"
            raise StartupError(f"[{section}]: unknown setting '{name}'{did_you_mean(name, fields)}; {there_are}")
    missing = [name for name, required in fields.items() if required and name not in values]
    if missing:
        raise StartupError(f"[{section}]: add the missing settings: {', '.join(missing)}")
    try:
        return msgspec.convert(dict(values), offer.settings, strict=False)
    except msgspec.ValidationError as error:
        # The message omits the value, which may be a secret.
        path, remedy = reason_of(error, offer.settings)
        raise StartupError(f"[{section}]: {path}: {remedy}") from None
