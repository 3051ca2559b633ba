"""Whether database, storage and sandbox work, for `/readyz`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable

from skillery.backends import Sandbox, Storage
from skillery.database import Database

log = logging.getLogger(__name__)
CHECK_SECONDS = 10
FRESH_SECONDS = 2.0


class Readiness:
    """The checks of /readyz, made at most once every few seconds however often it is asked: it needs no token."""

    def __init__(self, database: Database, storage: Storage, sandbox: Sandbox) -> None:
        self._database = database
        self._storage = storage
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._checks: dict[str, bool] = {}

    async def checks(self) -> dict[str, bool]:
        async with self._lock:
            if time.monotonic() - self._checked_at > FRESH_SECONDS:
                self._checks = {
                    "database": await _works("database", asyncio.to_thread(self._database.ping)),
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
