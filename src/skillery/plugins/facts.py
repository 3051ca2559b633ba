"""Facts about the plugins of an installation: origin, kinds, offers, hooks, and failures of a running server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from skillery.backends import KINDS
from skillery.plugins import Plugins
from skillery.plugins.calls import Failures
from skillery.settings.load import Settings

EVENTS = ("before_publish", "after_publish", "run_finished", "events")


class PluginOffer(msgspec.Struct, frozen=True):
    """A backend of a plugin, or its object with the kind `plugin`."""

    kind: str
    name: str
    chosen: bool
    """Whether the settings choose the offer."""
    unsafe: bool


class PluginFacts(msgspec.Struct, frozen=True):
    """A plugin of an installation."""

    name: str
    package: str | None
    version: str | None
    path: str | None
    """The file of a plugin of the plugins folder."""
    api_version: int
    kinds: list[str]
    active: bool
    """Whether the server uses the plugin."""
    offers: list[PluginOffer]
    moments: list[str]
    """The events that call the plugin."""
    commands: list[str]


class PluginFailure(msgspec.Struct, frozen=True):
    """A function of a plugin that has failed."""

    function: str
    reason: str
    count: int


class ServerPlugin(NamedTuple):
    """A plugin of a running server, with its failures since the start."""

    facts: PluginFacts
    failures: list[PluginFailure]


def plugins_of_server(plugins: Plugins, settings: Settings, failures: Failures) -> list[ServerPlugin]:
    """Return the plugins sorted by name, without commands. `failures` has the failed calls since the start."""
    return [
        ServerPlugin(
            facts,
            [
                PluginFailure(failure.function, failure.reason, count)
                for failure, count in sorted(failures.counts.items())
                if failure.plugin == facts.name
            ],
        )
        for facts in list_plugins(plugins, settings, {})
    ]


def list_plugins(plugins: Plugins, settings: Settings, commands: Mapping[str, list[str]]) -> list[PluginFacts]:
    """Return the facts about all plugins, sorted by name. `commands` has the names of the commands of each plugin."""
    offers, hooks = _offers(plugins, settings), _hooks(plugins)
    rows = []
    for name, _ in plugins.manager.list_name_plugin():
        source = plugins.sources[name]
        of_plugin, own_hooks, verbs = offers.get(name, []), hooks.get(name, []), commands.get(name, [])
        rows.append(
            PluginFacts(
                name=name,
                package=source.package,
                version=source.version,
                path=str(source.path) if source.path else None,
                api_version=source.api_version,
                kinds=_kinds(of_plugin, own_hooks, verbs),
                active=_is_active(of_plugin, own_hooks, verbs),
                offers=of_plugin,
                moments=[hook for hook in own_hooks if hook in EVENTS],
                commands=verbs,
            )
        )
    return sorted(rows, key=lambda row: row.name)


def _is_active(offers: list[PluginOffer], hooks: list[str], commands: list[str]) -> bool:
    """Return whether the server uses a plugin. Commands alone do not count for a plugin that also has offers."""
    return any(offer.chosen for offer in offers) or bool(hooks) or bool(commands and not offers)


def _kinds(offers: list[PluginOffer], hooks: list[str], commands: list[str]) -> list[str]:
    kinds = ["events" if offer.kind == "plugin" else offer.kind for offer in offers]
    kinds += ["events"] if set(hooks) & set(EVENTS) else []
    kinds += ["routes"] if "routes" in hooks else []
    return list(dict.fromkeys([*kinds, *(["commands"] if commands else [])]))


def _offers(plugins: Plugins, settings: Settings) -> dict[str, list[PluginOffer]]:
    """Return the offers of each plugin."""
    chosen = {kind.name: set(plugins.chosen(kind, settings)) for kind in KINDS.values()}
    chosen["plugin"] = set(settings.plugins)
    offers: dict[str, list[PluginOffer]] = {}
    for kind, names in chosen.items():
        for implementation in getattr(plugins.manager.hook, f"skillery_{kind}").get_hookimpls():
            offer = implementation.function()
            offers.setdefault(implementation.plugin_name, []).append(
                PluginOffer(kind, offer.name, offer.name in names, offer.unsafe)
            )
    return offers


def _hooks(plugins: Plugins) -> dict[str, list[str]]:
    """Return the hooks of each plugin that are called without a choice in the settings."""
    hooks: dict[str, list[str]] = {}
    for hook in (*EVENTS, "routes"):
        caller = getattr(plugins.manager.hook, hook, None)
        for implementation in caller.get_hookimpls() if caller else ():
            hooks.setdefault(implementation.plugin_name, []).append(hook)
    return hooks
