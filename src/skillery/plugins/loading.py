"""Find and import plugins, and register their hooks. A faulty plugin raises StartupError with one line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pluggy

from skillery import hookspecs
from skillery.backends import API_VERSION
from skillery.errors import StartupError

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
