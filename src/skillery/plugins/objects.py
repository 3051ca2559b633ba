"""The objects that plugins offer with `skillery_plugin`: the settings choose them, and their methods are hooks."""

from __future__ import annotations

import asyncio
import logging
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
from skillery.settings import Settings

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
        found = ", ".join(sorted(hooks)) or "none"
        raise StartupError(f"plugin '{name}': its object may have the hooks {', '.join(EVENTS)}; it has {found}")


async def _close(manager: pluggy.PluginManager, name: str, made: Any) -> None:
    manager.unregister(made)
    close = getattr(made, "close", None)
    if close is None:
        return
    try:
        await asyncio.to_thread(close)
    except Exception:
        log.exception("plugin '%s' failed to close", name)


def _registered(name: str) -> str:
    return f"{name}{OBJECT_SUFFIX}"
