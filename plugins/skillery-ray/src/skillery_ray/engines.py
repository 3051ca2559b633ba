"""Opens the sandbox of a node, by its name and with its own settings."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import msgspec

from skillery.backends import Offer, Place, Sandbox
from skillery.errors import StartupError


def find_offer(name: str) -> Offer:
    """Return the sandbox that an installed plugin offers under this name. Raise StartupError if there is none."""
    offers = [offer for entry in entry_points(group="skillery") if (offer := _offer(entry.load())) is not None]
    for offer in offers:
        if offer.name == name:
            return offer
    names = ", ".join(sorted(offer.name for offer in offers if not offer.unsafe and offer.name != "ray"))
    raise StartupError(f"[backends.sandbox.ray]: no installed plugin has the sandbox '{name}'; there are: {names}")


def _offer(plugin: Any) -> Offer | None:
    hook = getattr(plugin, "skillery_sandbox", None)
    return hook() if hook is not None else None


def check_backend(name: str, settings: dict[str, Any]) -> None:
    """Raise StartupError if nodes cannot use this sandbox, or if its settings are wrong."""
    if name == "ray":
        raise StartupError("[backends.sandbox.ray]: 'backend' names the sandbox of the nodes, which cannot be 'ray'")
    offer = find_offer(name)
    if offer.unsafe:
        raise StartupError(f"[backends.sandbox.ray]: the sandbox '{name}' does not isolate runs, so nodes refuse it")
    _settings(offer, settings)


def open_engine(name: str, settings: dict[str, Any], place: Place) -> Sandbox:
    """Return the sandbox of this node, not started. Raise StartupError if the settings are wrong."""
    offer = find_offer(name)
    sandbox: Sandbox = offer.open(_settings(offer, settings), place)
    return sandbox


def _settings(offer: Offer, settings: dict[str, Any]) -> msgspec.Struct:
    try:
        return msgspec.convert(settings, offer.settings)
    except msgspec.ValidationError as error:
        raise StartupError(f"[backends.sandbox.ray.node]: {error}") from None
