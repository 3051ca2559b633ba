"""Plugins: find the plugins, and open the backends that the settings choose.

If a plugin is faulty, the server does not start. The StartupError has one line and names the plugin.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
import pluggy

from skillery import hookspecs
from skillery.backends import (
    Authenticator,
    Finding,
    FinishedRun,
    KeepsSecrets,
    KeepsTokens,
    KeepsWarm,
    KnowsRegistry,
    ListsContents,
    Measured,
    Offer,
    Place,
    Publication,
    RecognizesCredentials,
    Sandbox,
    Secrets,
    Storage,
)
from skillery.errors import StartupError
from skillery.formats.wording import did_you_mean
from skillery.identity.authenticator_chain import AuthenticatorChain
from skillery.protocols import problems
from skillery.settings import Settings

if TYPE_CHECKING:
    from skillery.database import Database

log = logging.getLogger(__name__)

Kind = Literal["sandbox", "storage", "authenticator", "secrets"]
KINDS: tuple[Kind, ...] = ("sandbox", "storage", "authenticator", "secrets")
GROUP = "skillery"
PROTOCOLS: Mapping[Kind, type] = {
    "sandbox": Sandbox,
    "storage": Storage,
    "authenticator": Authenticator,
    "secrets": Secrets,
}
OPTIONAL_PROTOCOLS: Mapping[Kind, tuple[type, ...]] = {
    "sandbox": (Measured, KeepsWarm),
    "storage": (ListsContents, KnowsRegistry),
    "authenticator": (KeepsTokens, RecognizesCredentials),
    "secrets": (KeepsSecrets,),
}
"""Protocols that a backend may implement too. A backend that has all methods of such a Protocol is checked."""
T = TypeVar("T")


class PluginEvents:
    """Calls the hooks of the plugins in worker threads."""

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self._hook = manager.hook
        self._listens = {
            name: bool(getattr(manager.hook, name).get_hookimpls())
            for name in ("before_publish", "after_publish", "run_finished")
        }

    async def before_publish(self, publication: Publication) -> list[Finding]:
        """Return the findings of all plugins. If a hook raises an exception, return a finding of severity error."""
        if not self._listens["before_publish"]:
            return []
        try:
            answers = await asyncio.to_thread(self._hook.before_publish, publication=publication)
        except Exception:
            log.exception("before_publish failed for %s %s", publication.name, publication.version)
            return [Finding("before_publish", "a check of this server failed; an admin finds the error in the log")]
        if not all(isinstance(findings, list) and _are_findings(findings) for findings in answers):
            log.error("a before_publish hook must return a list of Finding; the answers were %r", answers)
            return [Finding("before_publish", "a check of this server is broken; an admin finds the error in the log")]
        return [finding for findings in answers for finding in findings]

    async def after_publish(self, publication: Publication) -> None:
        await self._tell("after_publish", publication=publication)

    async def run_finished(self, run: FinishedRun) -> None:
        await self._tell("run_finished", run=run)

    async def _tell(self, name: str, **arguments: Any) -> None:
        if not self._listens[name]:
            return
        try:
            await asyncio.to_thread(getattr(self._hook, name), **arguments)
        except Exception:
            log.exception("a plugin failed in %s", name)


def _are_findings(findings: list[Any]) -> bool:
    return all(isinstance(finding, Finding) for finding in findings)


class Plugins:
    """All plugins that were found, and the backends that they offer."""

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self.manager = manager
        self.events = PluginEvents(manager)
        self.offers: dict[Kind, dict[str, Offer]] = {}
        self._plugin_of: dict[Kind, dict[str, str]] = {}
        for kind in KINDS:
            self.offers[kind], self._plugin_of[kind] = _offers(manager, kind)

    def open(
        self, kind: Literal["sandbox", "storage", "secrets"], settings: Settings, database: Database | None = None
    ) -> Any:
        """Open and return the backend of a kind that the settings choose. `database` is None for a command without a
        database.

        Raise StartupError if no plugin offers the backend, its settings are not valid, or it does not implement its
        Protocol.
        """
        return self._open(kind, getattr(settings, kind), settings, database)

    def open_authenticator(self, settings: Settings, database: Database) -> Authenticator:
        """Open the authenticators that the setting `auth` names, and return one that asks them in the stated order.

        Raise the errors of `open`, and StartupError if the authenticators cannot be combined.
        """
        names = settings.authenticators
        if not all(names) or len(set(names)) < len(names):
            raise StartupError(
                f"setting 'auth' is {settings.auth!r}: name one authenticator, or several different ones"
            )
        opened = {name: self._open("authenticator", name, settings, database) for name in names}
        return AuthenticatorChain(opened) if len(opened) > 1 else opened[names[0]]

    def _open(self, kind: Kind, name: str, settings: Settings, database: Database | None) -> Any:
        setting = "auth" if kind == "authenticator" else kind
        offer = self.offers[kind].get(name)
        if offer is None:
            known = ", ".join(sorted(self.offers[kind]))
            raise StartupError(f"setting '{setting}' is '{name}', which no plugin offers; the plugins offer: {known}")
        if offer.unsafe and not settings.allow_unsafe_sandbox:
            raise StartupError(
                f"{kind} '{name}' does not isolate what it runs: choose another, "
                "or set allow_unsafe_sandbox = true if you trust all code that runs here"
            )
        if offer.unsafe:
            log.warning("%s '%s' does NOT isolate what it runs: skills can do whatever this server can", kind, name)
        values = settings.backends.get(kind, {}).get(name, {})
        backend = offer.open(_backend_settings(kind, offer, values), _place(kind, name, settings, database))
        self._check_protocols(kind, name, backend)
        return backend

    def _check_protocols(self, kind: Kind, name: str, backend: Any) -> None:
        optional = [protocol for protocol in OPTIONAL_PROTOCOLS[kind] if isinstance(backend, protocol)]
        for protocol in (PROTOCOLS[kind], *optional):
            found = "; ".join(f"it {problem}" for problem in problems(backend, protocol))
            if found:
                raise StartupError(
                    f"plugin '{self._plugin_of[kind][name]}': the {kind} '{name}' is not a "
                    f"skillery.backends.{protocol.__name__}: {found}"
                )

    def check_settings(self, settings: Settings) -> None:
        """Raise StartupError if a section `[backends.<kind>.<name>]` of the settings belongs to no backend or is not
        valid.
        """
        for kind, sections in settings.backends.items():
            if kind not in KINDS:
                raise StartupError(f"there is no kind of backend '{kind}' ([backends.{kind}]): {', '.join(KINDS)}")
            for name, values in sections.items():
                offer = self.offers[kind].get(name)
                if offer is None:
                    known = ", ".join(sorted(self.offers[kind]))
                    raise StartupError(
                        f"[backends.{kind}.{name}] is for a backend that no plugin offers; the plugins offer: {known}"
                    )
                _backend_settings(kind, offer, values)


def load_plugins(folder: str | Path = "") -> Plugins:
    """Load the plugins: the entry points of the group `skillery`, and every module and package in `folder`.

    Raise StartupError if a plugin cannot be imported or is not valid. If `folder` is "", only entry points are loaded.
    """
    manager = pluggy.PluginManager("skillery")
    manager.add_hookspecs(hookspecs)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        _register(manager, entry.name, entry.load)
    if folder:
        for path in _plugin_files(Path(folder).expanduser()):
            _register(manager, path.stem, lambda path=path: _import_file(path))  # type: ignore[misc]
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        known = ", ".join(
            sorted(name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), "skillery_spec"))
        )
        raise StartupError(f"plugin '{_name_of(manager, error)}': {_line(error)}; the hooks are: {known}") from None
    return Plugins(manager)


def _register(manager: pluggy.PluginManager, name: str, load: Callable[[], Any]) -> None:
    try:
        plugin = load()
    except Exception as error:
        raise StartupError(f"plugin '{name}' cannot be imported: {type(error).__name__}: {_line(error)}") from error
    try:
        manager.register(plugin, name)
    except pluggy.PluginValidationError as error:
        raise StartupError(f"plugin '{name}': {_line(error)}") from None
    except ValueError:
        raise StartupError(f"two plugins are called '{name}'; rename or remove one") from None
    if not manager.get_hookcallers(plugin):
        raise StartupError(f"plugin '{name}' has no hooks; mark its functions with @hookimpl (skillery.hookimpl)")


def _plugin_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise StartupError(f"setting 'plugins_folder' is '{folder}', which is no folder")
    files = [path for path in folder.glob("*.py") if not path.name.startswith("_")]
    return sorted([*files, *(path.parent for path in folder.glob("*/__init__.py"))])


def _import_file(path: Path) -> ModuleType:
    name = f"skillery_plugins_folder.{path.stem}"
    source = path / "__init__.py" if path.is_dir() else path
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _place(kind: Kind, name: str, settings: Settings, database: Database | None) -> Place:
    if database is None:
        return Place(settings.home, settings.allow_degraded)
    # A sandbox opens without a database, and without the import of one.
    from skillery.database.backend_values import BackendValues
    from skillery.identity.tokens import RegistryTokens

    values = BackendValues(database, f"{kind}.{name}")
    return Place(settings.home, settings.allow_degraded, values, RegistryTokens(database))


def _offers(manager: pluggy.PluginManager, kind: Kind) -> tuple[dict[str, Offer], dict[str, str]]:
    """Return the offers of a kind by name, and for each name the plugin that made the offer.

    Raise StartupError if a plugin fails. Each plugin is called separately, so that the error can name the plugin.
    """
    hook = getattr(manager.hook, f"skillery_{kind}")
    offers: dict[str, Offer] = {}
    origin: dict[str, str] = {}
    for implementation in hook.get_hookimpls():
        plugin = implementation.plugin_name
        try:
            offer = implementation.function()
        except Exception as error:
            raise StartupError(f"plugin '{plugin}' failed to offer a {kind}: {_line(error)}") from error
        if not isinstance(offer, Offer):
            raise StartupError(
                f"plugin '{plugin}' must return an Offer from skillery_{kind}, not {type(offer).__name__}"
            )
        if offer.name in offers:
            raise StartupError(
                f"the plugins '{origin[offer.name]}' and '{plugin}' both offer a {kind} called '{offer.name}': "
                "remove one of them"
            )
        offers[offer.name], origin[offer.name] = offer, plugin
    return offers, origin


def _backend_settings(kind: Kind, offer: Offer, values: Mapping[str, Any]) -> msgspec.Struct:
    known = [field.encode_name for field in msgspec.structs.fields(offer.settings)]
    for name in values:
        if name not in known:
            there_are = f"it has {', '.join(known)}" if known else "it has none"
            raise StartupError(
                f"[backends.{kind}.{offer.name}]: unknown setting '{name}'{did_you_mean(name, known)}; {there_are}"
            )
    try:
        return msgspec.convert(dict(values), offer.settings, strict=False)
    except msgspec.ValidationError as error:
        raise StartupError(f"[backends.{kind}.{offer.name}]: {error}") from None


def _name_of(manager: pluggy.PluginManager, error: pluggy.PluginValidationError) -> str:
    return manager.get_name(error.plugin) or "?"


def _line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split()) or type(error).__name__
