"""Bounded caches: accepted tokens, refused tokens, and failed logins of addresses."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")
MOST_ENTRIES = 10_000


class Memory(Generic[V]):
    """A cache whose values expire. Above MOST_ENTRIES, the least recently used entry is dropped."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self._entries: OrderedDict[bytes, tuple[float, V]] = OrderedDict()
        self.age = 0
        """Changes with each `clear`. A value that was computed before is not kept."""

    def find(self, key: bytes) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires_at, value = entry
        if time.monotonic() >= expires_at:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return value

    def keep(self, key: bytes, value: V, seconds: float, age: int) -> None:
        if age != self.age:
            return
        self._entries[key] = time.monotonic() + seconds, value
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        self.age += 1
        self._entries.clear()


class FailedLogins:
    """The number of failed logins that each address may still make. It grows evenly, up to `per_minute` within a
    minute.
    """

    def __init__(self, per_minute: int) -> None:
        self._most = float(per_minute)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def note(self, address: str) -> float | None:
        """Record a failed login. Return None if it is within the limit, else the seconds to wait before the next."""
        logins_left = self._present(address)
        self._left[_network(address)] = (logins_left - 1 if logins_left >= 1 else logins_left), time.monotonic()
        if len(self._left) > MOST_ENTRIES:
            self._left.popitem(last=False)
        return None if logins_left >= 1 else self._wait(logins_left)

    def wait(self, address: str) -> float | None:
        """Return the seconds that an address must wait, or None if it may try."""
        logins_left = self._present(address)
        return None if logins_left >= 1 else self._wait(logins_left)

    def _present(self, address: str) -> float:
        now = time.monotonic()
        logins_left, counted_at = self._left.get(_network(address), (self._most, now))
        return min(self._most, logins_left + (now - counted_at) * self._most / 60)

    def _wait(self, logins_left: float) -> float:
        return (1 - logins_left) * 60 / self._most


def _network(address: str) -> str:
    """Return the address, or the network of an IPv6 address: a client usually has all addresses of a /64."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(parsed) if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
