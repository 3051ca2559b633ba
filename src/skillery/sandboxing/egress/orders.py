"""The order of the server to the proxy of one run."""

from __future__ import annotations

import msgspec

from skillery.sandboxing.egress.streams import Caps

GOODBYE = b"\n"
"""The proxy's last line to the server: all events have been reported."""


class Order(msgspec.Struct, frozen=True):
    """The permissions of the run, and the operator's settings."""

    patterns: tuple[str, ...]
    identity: str = ""
    """The identity that requested the run. All its runs share one bound of look-ups."""
    allow_private: tuple[str, ...] = ()
    private: bool = False
    """Whether any address may be dialled, because the admin wrote the patterns."""
    hosts: dict[str, tuple[str, ...]] = {}
    caps: Caps = Caps()
