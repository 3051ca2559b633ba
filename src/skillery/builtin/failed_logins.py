"""A limit on the failed logins of each address, with bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

from skillery.formats.addresses import network_of

MOST_ADDRESSES = 10_000


class _Allowance(NamedTuple):
    left: float
    at: float
    """Time of the last failure in seconds of the monotonic clock."""


class FailedLogins:
    """The number of failed logins that each address may still make. It grows evenly, to the full number within a
    minute.

    Above MOST_ADDRESSES, the addresses with the oldest failures are forgotten first.
    """

    def __init__(self, per_minute: int) -> None:
        self._most = float(per_minute)
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    def note(self, address: str) -> float | None:
        """Record a failed login. Return None if it is within the limit, else the seconds to wait before the next."""
        where = network_of(address)
        now = time.monotonic()
        last = self._allowances.pop(where, None) or _Allowance(self._most, now)
        left = min(self._most, last.left + (now - last.at) * self._most / 60)
        may = left >= 1
        self._allowances[where] = _Allowance(left - 1 if may else left, now)
        if len(self._allowances) > MOST_ADDRESSES:
            self._allowances.popitem(last=False)
        return None if may else (1 - left) * 60 / self._most
