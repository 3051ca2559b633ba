"""Hooks that a server collects when it starts: events of plugins and of the objects of
`skillery_plugin`, and routes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import pluggy

from skillery.backends import AddsRoutes, Authenticator, Event, Finding, FinishedRun, Offer, Publication
from skillery.context.queue import Queue
from skillery.database import Database
from skillery.errors import StartupError
from skillery.identity.authenticator_chain import by_name
from skillery.plugins import Plugins, one_line, place_of, settings_of
from skillery.plugins.calls import Failures, PluginFailed, PluginFunction
from skillery.routes import Route
from skillery.settings.load import Settings

# -- The event hooks of plugins. A plugin that fails or hangs fails neither its caller nor the other plugins -----------


log = logging.getLogger(__name__)
CHECKS_AT_ONCE = 4
UNBOUNDED = 1 << 40
"""A limit that is never reached. The waiting requests already count against the server's limits of requests."""
REACTION_SECONDS = 60.0
"""The longest time for a hook that only reacts. Events are leased for about as long."""
OBJECT_SUFFIX = " (object)"
"""End of the name under which the object of a plugin is registered. No entry point has a space in its name."""


class PluginEvents:
    """Calls the event hooks of the plugins, each plugin in its own threads. `hook_seconds` limits each call."""

    def __init__(self, manager: pluggy.PluginManager, hook_seconds: float, failures: Failures | None = None) -> None:
        self.failures = failures or Failures()
        self._manager = manager
        self._seconds = hook_seconds
        self._turns = Queue(CHECKS_AT_ONCE, UNBOUNDED, UNBOUNDED)
        self._turns_of: WeakValueDictionary[str, Queue] = WeakValueDictionary()
        self._functions: dict[tuple[str, str], PluginFunction] = {}

    async def before_publish(self, publication: Publication) -> list[Finding]:
        """Return the findings of all plugins. For a plugin that fails, hangs or does not return a list of findings,
        the list has a finding of severity error.
        """
        checks = list(self._functions_of("before_publish"))
        if not checks:
            return []
        slot = await self._enter(publication.identity.name)
        work = asyncio.ensure_future(self._check_all(checks, publication))
        # A cancelled caller does not end the calls, so the turn lasts as long as the calls.
        work.add_done_callback(lambda _: slot.close())
        return await asyncio.shield(work)

    async def _check_all(self, checks: list[PluginFunction], publication: Publication) -> list[Finding]:
        answers = [await self._check(check, publication) for check in checks]
        return [finding for findings in answers for finding in findings]

    async def _check(self, check: PluginFunction, publication: Publication) -> list[Finding]:
        """Return the findings of one hook `before_publish`. If it fails or returns anything else, return an error
        finding.
        """
        try:
            findings = await check.call(self._seconds, publication=publication)
        except PluginFailed as failed:
            log.warning("%s %s is refused: %s", publication.name, publication.version, failed)
            return [Finding("before_publish", "a check of this server failed; an admin finds the error in the log")]
        if not _are_findings(findings):
            text = f"a before_publish hook must return a list of Finding, not {findings!r:.200}"
            self.failures.note(check.plugin, "before_publish", "invalid", text)
            return [Finding("before_publish", "a check of this server is broken; an admin finds the error in the log")]
        return list(findings)

    async def _enter(self, publisher: str) -> ExitStack:
        """Wait for a slot, and return a stack that frees it. A publisher has at most one slot, so that its slow checks
        do not occupy all slots.
        """
        queue = self._turns_of.get(publisher)
        if queue is None:
            self._turns_of[publisher] = queue = Queue(1, UNBOUNDED, UNBOUNDED)
        with ExitStack() as stack:
            stack.callback((await queue.enter(publisher, 0)).leave)
            stack.callback((await self._turns.enter(publisher, 0)).leave)
            return stack.pop_all()

    async def after_publish(self, publication: Publication) -> None:
        await self._tell("after_publish", publication=publication)

    async def run_finished(self, run: FinishedRun) -> None:
        await self._tell("run_finished", run=run)

    @property
    def has_scanner(self) -> bool:
        return any(True for _ in self._functions_of("before_publish"))

    @property
    def has_event_hooks(self) -> bool:
        return any(True for _ in self._functions_of("events"))

    async def events(self, event: Event) -> None:
        await self._tell("events", event=event)

    async def _tell(self, name: str, **arguments: Any) -> None:
        """Call a hook of all plugins at the same time. Failures are only logged."""
        seconds = min(self._seconds, REACTION_SECONDS)
        calls = [function.call(seconds, **arguments) for function in self._functions_of(name)]
        if calls:
            await asyncio.gather(*(_without_failure(call) for call in calls))

    def _functions_of(self, hook: str) -> Iterator[PluginFunction]:
        """Yield the implementations of a hook in the order of pluggy: the plugin that was registered last is first.

        Wrappers are not included, because each call of an implementation is wrapped.
        """
        for hookimpl in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            if not (hookimpl.hookwrapper or hookimpl.wrapper):
                yield self._function(hook, hookimpl.plugin_name)

    def _function(self, hook: str, plugin: str) -> PluginFunction:
        """Return the hook of one plugin as a PluginFunction, always the same object."""
        function = self._functions.get((hook, plugin))
        if function is None:
            name = plugin.removesuffix(OBJECT_SUFFIX)
            function = PluginFunction(name, hook, _Alone(self._manager, hook, plugin), self.failures)
            self._functions[hook, plugin] = function
        return function


class _Alone:
    """Calls the hook of one plugin only, inside the wrappers of all plugins."""

    def __init__(self, manager: pluggy.PluginManager, hook: str, plugin: str) -> None:
        implementations = getattr(manager.hook, hook).get_hookimpls()
        other_plugins = [
            implementation.plugin
            for implementation in implementations
            if implementation.plugin_name != plugin and not (implementation.hookwrapper or implementation.wrapper)
        ]
        self._caller = manager.subset_hook_caller(hook, other_plugins)

    def __call__(self, **arguments: Any) -> Any:
        answers = self._caller(**arguments)
        return answers[0] if answers else None


async def _without_failure(call: Any) -> None:
    try:
        await call
    except PluginFailed:
        return


def _are_findings(findings: Any) -> bool:
    return isinstance(findings, list) and all(_is_finding(finding) for finding in findings)


def _is_finding(finding: Any) -> bool:
    """Return whether a plugin has returned a Finding with valid types. The constructor does not check types."""
    if not isinstance(finding, Finding):
        return False
    try:
        # The constructor does not check types. An unknown severity would refuse nothing.
        msgspec.convert(msgspec.structs.asdict(finding), Finding)
    except msgspec.ValidationError:
        return False
    return True


# -- The objects that plugins offer with `skillery_plugin`: the settings choose them, and their methods are hooks ------


EVENTS = ("before_publish", "after_publish", "run_finished", "events", "routes")


def open_objects(
    plugins: Plugins,
    settings: Settings,
    database: Database,
    popular_skills: Callable[[int], Sequence[str]],
    stack: AsyncExitStack,
) -> None:
    """Open the objects of `skillery_plugin` that have a section `[plugins.<name>]`, and register their hooks. `stack`
    closes the objects.

    Raise StartupError if an object cannot be opened, or if one of its hooks is not an event.
    """
    for name, values in sorted(settings.plugins.items()):
        opened_object = _open(name, plugins.objects[name], values, settings, database, popular_skills)
        _register(plugins.manager, name, opened_object)
        stack.push_async_callback(_close, plugins.manager, name, opened_object)


def _open(
    name: str,
    offer: Offer,
    values: Mapping[str, Any],
    settings: Settings,
    database: Database,
    popular_skills: Callable[[int], Sequence[str]],
) -> Any:
    """Return the open object of a plugin. Raise StartupError with the section's name if this fails."""
    chosen = settings_of(f"plugins.{name}", offer, values)
    place = msgspec.structs.replace(place_of("plugin", name, settings, database), popular_skills=popular_skills)
    try:
        return offer.open(chosen, place)
    except StartupError as error:
        raise StartupError(f"[plugins.{name}]: {error}") from None


def _register(manager: pluggy.PluginManager, name: str, opened_object: Any) -> None:
    """Register the hooks of an object. Raise StartupError if it has no hooks, or other hooks than EVENTS."""
    try:
        manager.register(opened_object, _registered(name))
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        manager.unregister(opened_object)
        raise StartupError(f"plugin '{name}': {' '.join(str(error).split())}") from None
    hooks = [caller.name for caller in manager.get_hookcallers(opened_object) or ()]
    if not hooks or set(hooks) - set(EVENTS):
        manager.unregister(opened_object)
        names = ", ".join(sorted(hooks)) or "none"
        raise StartupError(f"plugin '{name}': its object may have the hooks {', '.join(EVENTS)}; it has {names}")


async def _close(manager: pluggy.PluginManager, name: str, opened_object: Any) -> None:
    manager.unregister(opened_object)
    close = getattr(opened_object, "close", None)
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


def routes_of(plugins: Plugins, settings: Settings, authenticator: Authenticator) -> Mapping[str, list[Route]]:
    """Return the routes of each plugin and of the authenticators that it offers, by the name of the plugin. Raise
    StartupError if a plugin fails or a route is not valid.
    """
    by_plugin: dict[str, list[Route]] = {}
    for name, member in by_name(authenticator, settings.authenticators).items():
        if isinstance(member, AddsRoutes):
            plugin = plugins.plugin_of("authenticator", name)
            routes = _made_by(plugin, member.routes)
            by_plugin |= {plugin: routes} if routes else {}
    for implementation in plugins.manager.hook.routes.get_hookimpls():
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
    """Return the routes that the hook `routes` of a plugin returns. Raise StartupError if it fails or a route is not
    valid.
    """
    try:
        routes = function()
    except Exception as error:
        raise StartupError(f"plugin '{plugin}' failed to add routes: {one_line(error)}") from error
    if not isinstance(routes, list) or not all(isinstance(route, Route) for route in routes):
        raise StartupError(f"plugin '{plugin}' must return a list of Route from its hook 'routes', not {routes!r:.80}")
    for route in routes:
        problem = _problem(route)
        if problem:
            raise StartupError(f"plugin '{plugin}': the route {route.path!r:.80} {problem}")
    return routes


def _problem(route: Route) -> str | None:
    """Return the fault of a route, as the end of a sentence, or None."""
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
