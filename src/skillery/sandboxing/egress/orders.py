"""What the server tells the proxy of one run."""

from __future__ import annotations

import msgspec

from skillery.sandboxing.egress.streams import Caps

GOODBYE = b"\n"
"""The proxy's last line to the server: all that happened has been reported."""


class Order(msgspec.Struct, frozen=True):
    """What the run may do, and what the operator has set."""

    patterns: tuple[str, ...]
    identity: str = ""
    """Name of the identity that asked for the run: its runs share a bound of look-ups."""
    allow_private: tuple[str, ...] = ()
    private: bool = False
    """Any address may be dialled: the patterns are the admin's own."""
    hosts: dict[str, tuple[str, ...]] = {}
    caps: Caps = Caps()
