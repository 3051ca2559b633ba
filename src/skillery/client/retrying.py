"""When a call is sent again, and how long it waits for that."""

from __future__ import annotations

import random
from dataclasses import dataclass

from skillery.client.errors import Busy, ClientError, ConnectionFailed, StrangeAnswer

UNDER_WAY = "call_under_way"
FIRST_WAIT_SECONDS = 0.2
_GATEWAY = frozenset({502, 503, 504})
"""What a proxy says of a server that it does not reach."""


@dataclass(frozen=True)
class Retries:
    """How much patience a client has with a server that is busy or does not answer."""

    attempts: int = 5
    """How often a call is sent at most. A call that is known to be under way is asked for until it is answered."""
    longest_wait_seconds: float = 60.0
    """A server that asks for more is taken at its word: its error is raised at once."""


class Patience:
    """That of one call. `repeatable`: to make it twice does no harm, so it may be sent again where nobody knows what
    became of it."""

    def __init__(self, retries: Retries, *, repeatable: bool) -> None:
        self._retries = retries
        self._repeatable = repeatable
        self._failures = 0

    def wait_after(self, error: ClientError) -> float:
        """Seconds until the call is sent again. Raises `error` where that makes no sense, or none any more."""
        if isinstance(error, Busy) and error.type == UNDER_WAY:
            # The call is being made, under this very key: its answer is worth as long a wait as it was before.
            return _asked_for(error)
        self._failures += 1
        wait = self._wait(error)
        if wait is None or self._failures >= self._retries.attempts or wait > self._retries.longest_wait_seconds:
            raise error
        # Never earlier than asked for; and all who were told the same do not come back at once.
        return wait * random.uniform(1.0, 1.25)

    def _wait(self, error: ClientError) -> float | None:
        if isinstance(error, Busy):
            return _asked_for(error)
        unheard = isinstance(error, ConnectionFailed) and not error.sent
        lost = isinstance(error, ConnectionFailed) or (isinstance(error, StrangeAnswer) and error.status in _GATEWAY)
        if unheard or (lost and self._repeatable):
            return float(FIRST_WAIT_SECONDS * 2 ** (self._failures - 1))
        return None


def _asked_for(error: Busy) -> float:
    return max(0.0, (error.retry_after_ms or 1000) / 1000)
