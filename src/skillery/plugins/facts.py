"""Facts about the plugins of an installation: origin, kinds, offers, hooks, and failures of a running server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillery.backends import KINDS
from skillery.plugins import Plugins
from skillery.plugins.calls import Failures
from skillery.settings.load import Settings

EVENTS = ("before_publish", "after_publish", "run_finished", "events")
Fact = dict[str, Any]


def plugins_of_server(plugins: Plugins, settings: Settings, failures: Failures) -> list[Fact]:
    """Return the rows of `list_plugins` without commands. `failures` has the failed calls since the start by reason."""
    rows = list_plugins(plugins, settings, {})
    for row in rows:
        row["failures"] = [
            {"function": failure.function, "reason": failure.reason, "count": count}
            for failure, count in sorted(failures.counts.items())
            if failure.plugin == row["name"]
        ]
    return rows


def list_plugins(plugins: Plugins, settings: Settings, commands: Mapping[str, list[str]]) -> list[Fact]:
    """Return a row for each plugin, sorted by name. `commands` has the names of the commands of each plugin."""
    offers, hooks = _offers(plugins, settings), _hooks(plugins)
    rows = []
    for name, _ in plugins.manager.list_name_plugin():
        source = plugins.sources[name]
        of_plugin, own_hooks, verbs = offers.get(name, []), hooks.get(name, []), commands.get(name, [])
        rows.append(
            {
                "name": name,
                "package": source.package,
                "version": source.version,
                "path": str(source.path) if source.path else None,
                "api_version": source.api_version,
                "kinds": _kinds(of_plugin, own_hooks, verbs),
                "active": _is_active(of_plugin, own_hooks, verbs),
                "offers": of_plugin,
                "moments": [hook for hook in own_hooks if hook in EVENTS],
                "commands": verbs,
            }
        )
    return sorted(rows, key=lambda row: str(row["name"]))


def _is_active(offers: list[Fact], hooks: list[str], commands: list[str]) -> bool:
    """Return whether the server uses a plugin. Commands alone do not count for a plugin that also has offers."""
    return any(offer["chosen"] for offer in offers) or bool(hooks) or bool(commands and not offers)


def _kinds(offers: list[Fact], hooks: list[str], commands: list[str]) -> list[str]:
    kinds = ["events" if offer["kind"] == "plugin" else offer["kind"] for offer in offers]
    kinds += ["events"] if set(hooks) & set(EVENTS) else []
    kinds += ["routes"] if "routes" in hooks else []
    return list(dict.fromkeys([*kinds, *(["commands"] if commands else [])]))


def _offers(plugins: Plugins, settings: Settings) -> dict[str, list[Fact]]:
    """Return the offers of each plugin."""
    chosen = {kind.name: set(plugins.chosen(kind, settings)) for kind in KINDS.values()}
    chosen["plugin"] = set(settings.plugins)
    facts: dict[str, list[Fact]] = {}
    for kind, names in chosen.items():
        for implementation in getattr(plugins.manager.hook, f"skillery_{kind}").get_hookimpls():
            offer = implementation.function()
            facts.setdefault(implementation.plugin_name, []).append(
                {"kind": kind, "name": offer.name, "chosen": offer.name in names, "unsafe": offer.unsafe}
            )
    return facts


def _hooks(plugins: Plugins) -> dict[str, list[str]]:
    """Return the hooks of each plugin that are called without a choice in the settings."""
    hooks: dict[str, list[str]] = {}
    for hook in (*EVENTS, "routes"):
        caller = getattr(plugins.manager.hook, hook, None)
        for implementation in caller.get_hookimpls() if caller else ():
            hooks.setdefault(implementation.plugin_name, []).append(hook)
    return hooks
