"""The checks of `/readyz`: whether database, storage and sandbox work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from skillery.backends import Sandbox, Storage

log = logging.getLogger(__name__)
CHECK_SECONDS = 10
FRESH_SECONDS = 2.0


class Readiness:
    """The checks of /readyz. Each check runs at most once in FRESH_SECONDS, because callers need no token for
    /readyz.
    """

    def __init__(self, ping: Callable[[], None], storage: Storage, sandbox: Sandbox) -> None:
        """Store the parts. `ping` is a blocking function that raises if the database does not answer."""
        self._ping = ping
        self._storage = storage
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._checks: dict[str, bool] = {}

    async def checks(self) -> dict[str, bool]:
        async with self._lock:
            if time.monotonic() - self._checked_at > FRESH_SECONDS:
                self._checks = {
                    "database": await _works("database", asyncio.to_thread(self._ping)),
                    "storage": await _works("storage", asyncio.to_thread(self._storage.check)),
                    "sandbox": await _works("sandbox", self._sandbox.start()),
                }
                self._checked_at = time.monotonic()
            return self._checks


async def _works(name: str, check: Awaitable[None]) -> bool:
    try:
        await asyncio.wait_for(check, CHECK_SECONDS)
    except Exception:
        log.exception("readyz: the %s does not work", name)
        return False
    return True
