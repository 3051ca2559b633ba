"""Hooks that a server collects when it starts: the objects of `skillery_plugin`, and routes."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pluggy

from skillery.backends import Offer
from skillery.database import Database
from skillery.errors import StartupError
from skillery.plugins import Plugins, place_of, settings_of
from skillery.plugins.events import OBJECT_SUFFIX
from skillery.plugins.loading import one_line
from skillery.routes import Route
from skillery.settings.load import Settings

# -- The objects that plugins offer with `skillery_plugin`: the settings choose them, and their methods are hooks ------


log = logging.getLogger(__name__)
EVENTS = ("before_publish", "after_publish", "run_finished", "events", "routes")


def open_objects(
    plugins: Plugins,
    settings: Settings,
    database: Database,
    popular_skills: Callable[[int], Sequence[str]],
    stack: AsyncExitStack,
) -> None:
    """Open the objects that have a section in the settings, and register their hooks. `stack` closes the objects.

    Raise StartupError if an object cannot be opened, or if one of its hooks is not an event.
    """
    for name, values in sorted(settings.plugins.items()):
        made = _open(name, plugins.objects[name], values, settings, database, popular_skills)
        _register(plugins.manager, name, made)
        stack.push_async_callback(_close, plugins.manager, name, made)


def _open(
    name: str,
    offer: Offer,
    values: Mapping[str, Any],
    settings: Settings,
    database: Database,
    popular_skills: Callable[[int], Sequence[str]],
) -> Any:
    chosen = settings_of(f"plugins.{name}", offer, values)
    place = msgspec.structs.replace(place_of("plugin", name, settings, database), popular_skills=popular_skills)
    try:
        return offer.open(chosen, place)
    except StartupError as error:
        raise StartupError(f"[plugins.{name}]: {error}") from None


def _register(manager: pluggy.PluginManager, name: str, made: Any) -> None:
    try:
        manager.register(made, _registered(name))
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        manager.unregister(made)
        raise StartupError(f"plugin '{name}': {' '.join(str(error).split())}") from None
    hooks = [caller.name for caller in manager.get_hookcallers(made) or ()]
    if not hooks or set(hooks) - set(EVENTS):
        manager.unregister(made)
        names = ", ".join(sorted(hooks)) or "none"
        raise StartupError(f"plugin '{name}': its object may have the hooks {', '.join(EVENTS)}; it has {names}")


async def _close(manager: pluggy.PluginManager, name: str, made: Any) -> None:
    manager.unregister(made)
    close = getattr(made, "close", None)
    if close is None:
        return
    try:
        await asyncio.to_thread(close)
    except Exception:  # code of a plugin may raise anything, and must not stop the end of the server
        log.exception("plugin '%s' failed to close", name)


def _registered(name: str) -> str:
    return f"{name}{OBJECT_SUFFIX}"


# -- The hook `routes`: collect the routes of all plugins, and check them ----------------------------------------------


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SEGMENT = re.compile(r"[A-Za-z0-9._~-]+|\{[a-z_]+\}")


def routes_of(manager: pluggy.PluginManager) -> Mapping[str, list[Route]]:
    """Return the routes of each plugin, by name. Raise StartupError if a plugin fails or a route is not valid."""
    by_plugin: dict[str, list[Route]] = {}
    for implementation in manager.hook.routes.get_hookimpls():
        plugin = implementation.plugin_name.removesuffix(OBJECT_SUFFIX)
        if not _NAME.fullmatch(plugin):
            raise StartupError(
                f"plugin '{plugin}' has routes, so its name may have only letters, digits, '.', '_', '-'"
            )
        by_plugin.setdefault(plugin, []).extend(_made_by(plugin, implementation.function))
    for plugin, routes in by_plugin.items():
        _check_distinct(plugin, routes)
    return by_plugin


def _made_by(plugin: str, function: Any) -> list[Route]:
    try:
        made = function()
    except Exception as error:
        raise StartupError(f"plugin '{plugin}' failed to add routes: {one_line(error)}") from error
    if not isinstance(made, list) or not all(isinstance(route, Route) for route in made):
        raise StartupError(f"plugin '{plugin}' must return a list of Route from its hook 'routes', not {made!r:.80}")
    for route in made:
        problem = _problem(route)
        if problem:
            raise StartupError(f"plugin '{plugin}': the route {route.path!r:.80} {problem}")
    return made


def _problem(route: Route) -> str | None:
    # The constructor of a Struct does not check types, and a wrong `needs` would let every caller in.
    for field, kind in typing.get_type_hints(Route, include_extras=True).items():
        if field == "answer":
            continue
        try:
            msgspec.convert(getattr(route, field), kind)
        except msgspec.ValidationError as error:
            return f"has no valid {field}: {one_line(error)}"
    if route.path and not all(map(_SEGMENT.fullmatch, route.path.split("/"))):
        return "has no valid path: write segments such as 'reports/{name}', without a slash at the beginning or end"
    if not callable(route.answer) or inspect.iscoroutinefunction(route.answer):
        return "needs a blocking function in answer: def, not async def"
    if route.max_body_bytes < 0 or route.seconds <= 0:
        return "needs a max_body_bytes of at least 0, and seconds above 0"
    return None


def _check_distinct(plugin: str, routes: list[Route]) -> None:
    seen: set[tuple[str, str]] = set()
    for route in routes:
        shape = (route.method, re.sub(r"\{\w+\}", "{}", route.path))
        if shape in seen:
            raise StartupError(f"plugin '{plugin}' has two routes for {route.method} '{route.path}'; remove one")
        seen.add(shape)
