"""Retries: whether a call is sent again, and after which delay."""

from __future__ import annotations

import random
from dataclasses import dataclass

from skillery.client.deadlines import Deadline
from skillery.client.errors import Busy, ClientError, ConnectionFailed, StrangeAnswer

CALL_UNDER_WAY = "call_under_way"
FIRST_WAIT_SECONDS = 0.2
_GATEWAY = frozenset({502, 503, 504})
"""HTTP status codes of a proxy that cannot reach the server."""


@dataclass(frozen=True)
class Retries:
    """Limits of the retries for a server that is busy or does not answer."""

    attempts: int = 5
    """Maximum number of attempts. 1 means no retries and no automatic idempotency keys. While the server still executes
    the call, the client asks again without counting an attempt.
    """
    longest_wait_seconds: float = 60.0
    """Longest delay in seconds. If the server requests a longer delay, the client raises the error without waiting."""

    @property
    def has_retries(self) -> bool:
        """Whether a call may be sent a second time."""
        return self.attempts > 1


class Patience:
    """The retries of one call.

    `repeatable` means that sending the call twice is harmless. Such a call is sent again even if the first attempt may
    have reached the server.
    """

    def __init__(self, retries: Retries, *, repeatable: bool, seconds: float | None = None) -> None:
        """`seconds` limits the time of the whole call. None means no limit."""
        self._retries = retries
        self._repeatable = repeatable
        self._failures = 0
        self.deadline = Deadline(seconds)

    def wait_after(self, error: ClientError) -> float:
        """Return the seconds until the next attempt.

        Raise `error` if a retry is useless, or if the attempts or the time are used up.
        """
        wait = self._next_wait(error)
        if self.deadline.is_before(wait):
            raise error
        return wait

    def _next_wait(self, error: ClientError) -> float:
        if isinstance(error, Busy) and error.type == CALL_UNDER_WAY:
            # The server is executing this call under the same key: wait for its answer without a limit of attempts.
            return _requested_delay(error)
        self._failures += 1
        wait = self._wait(error)
        if wait is None or self._failures >= self._retries.attempts or wait > self._retries.longest_wait_seconds:
            raise error
        # Never earlier than requested, and with jitter, so that clients do not return all at once.
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
