"""The order that the server sends to the proxy for each run."""

from __future__ import annotations

import msgspec

from skillery.sandboxing.egress.streams import Caps

GOODBYE = b"\n"
"""The last line from the proxy to the server: the proxy has reported all events."""


class Order(msgspec.Struct, frozen=True):
    """The network permissions of a run, and the settings of the operator."""

    patterns: tuple[str, ...]
    identity: str = ""
    """The identity that requested the run. All runs of an identity share one limit on look-ups."""
    allow_private: tuple[str, ...] = ()
    private: bool = False
    """Whether the proxy may connect to private addresses. True if the server's admin wrote the patterns."""
    hosts: dict[str, tuple[str, ...]] = {}
    caps: Caps = Caps()
