"""Log lines about refused and closed connections: at most one a minute for each address."""

from __future__ import annotations

import logging
import time

from skillery.formats.addresses import network_of

log = logging.getLogger(__name__)
MINUTE = 60.0
MOST_ADDRESSES = 100
"""Addresses with a line of their own in one minute. All others share one line."""
OTHERS = "other addresses"


class Notes:
    """Log why connections were refused or closed. Keep at most MOST_ADDRESSES addresses in memory."""

    def __init__(self) -> None:
        self._unsaid: dict[str, int] = {}
        """Address that has had its line in this minute -> closings since then."""
        self._ends = 0.0

    def note(self, host: str, reason: str) -> None:
        """Log the reason, or count it if this minute already has a line for this address or network."""
        if time.monotonic() >= self._ends:
            self._begin_minute()
        address = network_of(host) or "an unknown address"
        if address not in self._unsaid and len(self._unsaid) >= MOST_ADDRESSES:
            address = OTHERS
        if address in self._unsaid:
            self._unsaid[address] += 1
            return
        self._unsaid[address] = 0
        log.warning("a connection from %s was closed: %s", address, reason)

    def _begin_minute(self) -> None:
        more = sum(self._unsaid.values())
        if more:
            log.warning("%d more connections from these addresses were closed in the last minute", more)
        self._unsaid.clear()
        self._ends = time.monotonic() + MINUTE
