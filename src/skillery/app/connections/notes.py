"""Log lines about refused and closed connections, at most one line per address and minute."""

from __future__ import annotations

import logging
import time

from skillery.formats.addresses import network_of

log = logging.getLogger(__name__)
MINUTE = 60.0
MOST_ADDRESSES = 100
"""Limit of the addresses with their own log line per minute. All other addresses share one line."""
OTHERS = "other addresses"


class Notes:
    """Logs why connections were refused or closed. Keeps at most MOST_ADDRESSES addresses in memory."""

    def __init__(self) -> None:
        self._unsaid: dict[str, int] = {}
        """Number of closed connections since the last log line, for each address with a line in the last minute."""
        self._ends: dict[str, float] = {}
        """End of the minute after the last log line, for each address, oldest first."""

    def note(self, host: str, reason: str) -> None:
        """Log that a connection from `host` was closed. If there was a line about the same network in the last
        minute, only count.
        """
        self._forget_ended()
        address = network_of(host) or "an unknown address"
        if address not in self._ends and len(self._ends) >= MOST_ADDRESSES:
            address = OTHERS
        if address in self._ends:
            self._unsaid[address] += 1
            return
        self._unsaid[address] = 0
        self._ends[address] = time.monotonic() + MINUTE
        log.warning("a connection from %s was closed: %s", address, reason)

    def _forget_ended(self) -> None:
        now = time.monotonic()
        more = 0
        while self._ends and next(iter(self._ends.values())) <= now:
            address = next(iter(self._ends))
            del self._ends[address]
            more += self._unsaid.pop(address)
        if more:
            log.warning("%d more connections were closed since the last line about their addresses", more)
