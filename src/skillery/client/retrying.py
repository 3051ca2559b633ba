"""Retries: the conditions for sending a call again, and the delay before it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from skillery.client.errors import Busy, ClientError, ConnectionFailed, StrangeAnswer

CALL_UNDER_WAY = "call_under_way"
FIRST_WAIT_SECONDS = 0.2
_GATEWAY = frozenset({502, 503, 504})
"""HTTP status codes of a proxy that cannot reach the server."""


@dataclass(frozen=True)
class Retries:
    """How often and how long the client retries if the server is busy or does not answer."""

    attempts: int = 5
    """Limit of the attempts of a call. With 1, there are no retries and no automatic idempotency keys.

    One case has no limit: while the server still executes a call with the same idempotency key, the client waits for
    its answer.
    """
    longest_wait_seconds: float = 60.0
    """Longest delay before an attempt. If the server requests a longer delay, the error is raised at once."""

    @property
    def has_retries(self) -> bool:
        """Whether the client may send a call a second time."""
        return self.attempts > 1


class Patience:
    """The attempts of one call.

    `repeatable` means that executing the call twice is harmless. Such a call is sent again even if the server may have
    received the first attempt.
    """

    def __init__(self, retries: Retries, *, repeatable: bool) -> None:
        self._retries = retries
        self._repeatable = repeatable
        self._failures = 0

    def wait_after(self, error: ClientError) -> float:
        """Return the seconds to wait before the next attempt. Raise `error` if a retry is useless or no attempt is
        left.
        """
        if isinstance(error, Busy) and error.type == CALL_UNDER_WAY:
            # The server is executing this call under the same key: wait for its answer without a limit of attempts.
            return _requested_delay(error)
        self._failures += 1
        wait = self._wait(error)
        if wait is None or self._failures >= self._retries.attempts or wait > self._retries.longest_wait_seconds:
            raise error
        # Not earlier than requested, and with a random delay, so that not all clients retry at the same time.
        return wait * random.uniform(1.0, 1.25)

    def _wait(self, error: ClientError) -> float | None:
        if isinstance(error, Busy):
            return _requested_delay(error)
        unsent = isinstance(error, ConnectionFailed) and not error.sent
        lost = isinstance(error, ConnectionFailed) or (isinstance(error, StrangeAnswer) and error.status in _GATEWAY)
        if unsent or (lost and self._repeatable):
            return float(FIRST_WAIT_SECONDS * 2 ** (self._failures - 1))
        return None


def _requested_delay(error: Busy) -> float:
    return max(0.0, (error.retry_after_ms or 1000) / 1000)
