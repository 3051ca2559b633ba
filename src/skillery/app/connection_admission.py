"""Admission of connections: limits in total and per address. At a limit, an idle connection is closed for a new one."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from skillery.formats.network import network_of

# -- Log lines about refused and closed connections, at most one line per address and minute ---------------------------


log = logging.getLogger(__name__)
MINUTE = 60.0
MOST_ADDRESSES = 100
"""Limit of the addresses with their own log line per minute. All other addresses share one line."""
OTHERS = "other addresses"


class Notes:
    """Logs why connections were refused or closed. Keeps at most MOST_ADDRESSES addresses in memory."""

    def __init__(self) -> None:
        self._unlogged: dict[str, int] = {}
        """Number of closed connections since the last log line, for each address with a line in the last minute."""
        self._ends: dict[str, float] = {}
        """End of the minute after the last log line, for each address, oldest first."""

    def note(self, host: str, reason: str) -> None:
        """Log that a connection from `host` was closed. After a line about the same network, only
        count for a minute.
        """
        self._forget_ended()
        address = network_of(host) or "an unknown address"
        if address not in self._ends and len(self._ends) >= MOST_ADDRESSES:
            address = OTHERS
        if address in self._ends:
            self._unlogged[address] += 1
            return
        self._unlogged[address] = 0
        self._ends[address] = time.monotonic() + MINUTE
        log.warning("a connection from %s was closed: %s", address, reason)

    def _forget_ended(self) -> None:
        """Drop the networks whose minute has ended, and log the number of their connections that were only counted."""
        now = time.monotonic()
        unlogged = 0
        while self._ends and next(iter(self._ends.values())) <= now:
            address = next(iter(self._ends))
            del self._ends[address]
            unlogged += self._unlogged.pop(address)
        if unlogged:
            log.warning("%d more connections were closed since the last line about their addresses", unlogged)


MOST_HEAD_BYTES = 32 * 1024 * 1024
"""Limit of the memory of all unfinished heads together, in bytes. A head is the request line and the headers of a
request.
"""


class Client(Protocol):
    """A connection as ConnectionAdmission sees it."""

    def evict(self) -> None:
        """Close the connection immediately, without a response."""


class ConnectionCount(Protocol):
    """Counts open connections, in total and per address."""

    @property
    def total(self) -> int: ...

    def add(self, address: str) -> None: ...

    def remove(self, address: str) -> None: ...

    def of(self, address: str) -> int: ...


class OwnConnections:
    """The open connections of a server with one process."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        self.total = 0

    def add(self, address: str) -> None:
        self._of[address] += 1
        self.total += 1

    def remove(self, address: str) -> None:
        self.total -= 1
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]

    def of(self, address: str) -> int:
        return self._of[address]


class ConnectionAdmission:
    """Admits connections up to the limits.

    At a limit, the connection that has been idle for the longest time is closed; at the limit of an address, only its
    own connections can be closed. If all these connections have active requests, the new connection is refused. All
    addresses of an IPv6 /64 network count as one address.

    most: limit of `count.total`; 0 means no limit.
    most_of_address: limit of `count.of(address)`; 0 means no limit. Addresses with `is_exempt` have no limit.
    ceiling: limit of the connections of this process, because of the limit on its open files.
    """

    def __init__(
        self,
        count: ConnectionCount,
        *,
        most: int = 0,
        most_of_address: int = 0,
        ceiling: int,
        is_exempt: Callable[[str], bool] = lambda host: False,
        notes: Notes | None = None,
    ) -> None:
        self._count = count
        self._most = most
        self._most_of_address = most_of_address
        self._ceiling = ceiling
        self._is_exempt = is_exempt
        self.notes = notes or Notes()
        self._address_of: dict[Client, str] = {}
        # Dictionaries keep their insertion order: the first client has been idle for the longest time.
        self._idle: dict[Client, None] = {}
        self._idle_of: dict[str, dict[Client, None]] = {}
        self._heads: dict[Client, int] = {}
        self._head_bytes = 0

    def open(self, client: Client, host: str) -> bool:
        """Admit `client` and return True, or return False. If False, the caller must close the connection.

        `host` is the IP address of the TCP peer.
        """
        address = network_of(host)
        crowded = self._is_crowded(host, address)
        if crowded and not self._close_idle(
            self._idle_of.get(address, {}), address, "too many connections from this address"
        ):
            return False
        if self._is_full() and not self._close_idle(self._idle, address, "too many connections to the server"):
            return False
        self._address_of[client] = address
        self._count.add(address)
        self.rest(client)
        return True

    def hold(self, client: Client, size: int) -> None:
        """Record that the unfinished head of `client` takes `size` bytes.

        If all unfinished heads together take more than MOST_HEAD_BYTES, close the connections with the oldest heads.
        """
        if client not in self._address_of:
            return
        self._head_bytes += size - self._heads.get(client, 0)
        self._heads[client] = size
        while self._head_bytes > MOST_HEAD_BYTES:
            self._evict(next(iter(self._heads)), "unfinished heads take too much memory, and this head was the oldest")

    def work(self, client: Client) -> None:
        """Record that `client` has an active request, so that its connection is not closed for a new one."""
        self._head_bytes -= self._heads.pop(client, 0)
        if client not in self._idle:
            return
        del self._idle[client]
        address = self._address_of[client]
        idle = self._idle_of[address]
        del idle[client]
        if not idle:
            del self._idle_of[address]

    def rest(self, client: Client) -> None:
        """Record that `client` has no active request, so that its connection may be closed for a new one."""
        if client in self._address_of and client not in self._idle:
            self._idle[client] = None
            self._idle_of.setdefault(self._address_of[client], {})[client] = None

    def close(self, client: Client) -> None:
        """Remove `client`. Do nothing if `client` was refused or has been removed."""
        if client in self._address_of:
            self.work(client)
            self._count.remove(self._address_of.pop(client))

    def _is_crowded(self, host: str, address: str) -> bool:
        return 0 < self._most_of_address <= self._count.of(address) and not self._is_exempt(host)

    def _is_full(self) -> bool:
        return len(self._address_of) >= self._ceiling or 0 < self._most <= self._count.total

    def _close_idle(self, idle: dict[Client, None], address: str, reason: str) -> bool:
        """Close the connection in `idle` that has been idle for the longest time. Return False if there is none."""
        longest_idle = next(iter(idle), None)
        if longest_idle is None:
            self.notes.note(address, f"{reason}, all with active requests")
            return False
        self._evict(longest_idle, f"{reason}, and this connection was idle for the longest time")
        return True

    def _evict(self, client: Client, reason: str) -> None:
        self.notes.note(self._address_of[client], reason)
        self.close(client)
        client.evict()
