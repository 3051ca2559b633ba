"""The hook `routes`: collect the routes of all plugins, and check them."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any

import msgspec
import pluggy

from skillery.errors import StartupError
from skillery.plugins.events import OBJECT_SUFFIX
from skillery.plugins.loading import one_line
from skillery.routes import Route

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SEGMENT = re.compile(r"[A-Za-z0-9._~-]+|\{[a-z_]+\}")


def routes_of(manager: pluggy.PluginManager) -> Mapping[str, list[Route]]:
    """Return the routes of each plugin, by name. Raise StartupError if a plugin fails or a route is not valid."""
    found: dict[str, list[Route]] = {}
    for implementation in manager.hook.routes.get_hookimpls():
        plugin = implementation.plugin_name.removesuffix(OBJECT_SUFFIX)
        if not _NAME.fullmatch(plugin):
            raise StartupError(
                f"plugin '{plugin}' has routes, so its name may have only letters, digits, '.', '_', '-'"
            )
        found.setdefault(plugin, []).extend(_made_by(plugin, implementation.function))
    for plugin, routes in found.items():
        _check_distinct(plugin, routes)
    return found


def _made_by(plugin: str, function: Any) -> list[Route]:
    try:
        made = function()
    except Exception as error:
        raise StartupError(f"plugin '{plugin}' failed to add routes: {one_line(error)}") from error
    if not isinstance(made, list) or not all(isinstance(one, Route) for one in made):
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
