"""`GET /healthz` answers if the server runs. `GET /readyz` answers whether the parts of the server work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Any, NamedTuple

from skillery.audit import Actor, Head, Verified
from skillery.backends import Sandbox, Storage
from skillery.context.tallies import Peers
from skillery.http.operations import Operation, Response
from skillery.http.requests import only, send_bytes
from skillery.methods.errors import encode
from skillery.plugins.facts import ServerPlugin

# -- The checks of `/readyz`: whether database, storage, cache folders and sandbox work, and can be written ------------


log = logging.getLogger(__name__)
CHECK_SECONDS = 10
FRESH_SECONDS = 2.0
LOG_EVERY_SECONDS = 60.0
QUESTION = "readiness"


class Readiness:
    """The checks of /readyz. Each check runs at most once in FRESH_SECONDS, because callers need no token for
    /readyz.
    """

    def __init__(
        self,
        write: Callable[[], None],
        cache: Callable[[], None],
        storage: Storage,
        sandbox: Sandbox,
        peers: Peers | None = None,
    ) -> None:
        """Store the parts. `write` and `cache` are blocking functions that raise if the database, or a folder for files
        of runs and packages, cannot be written.
        """
        self._peers = peers
        if peers is not None:
            peers.offer(QUESTION, self._own_checks)
        self._write = write
        self._cache = cache
        self._logged: dict[str, float] = {}
        self._storage = storage
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._checks: dict[str, bool] = {}

    async def checks(self) -> dict[str, bool]:
        """Return for each part whether it works, in all worker processes. `workers` says whether all of them answer."""
        if self._peers is None:
            return await self._own_checks()
        answers = await self._peers.ask(QUESTION)
        reported = [checks for checks in answers if checks is not None]
        merged = {name: all(checks[name] for checks in reported) for name in reported[0]} if reported else {}
        return merged | {"workers": len(reported) == len(answers)}

    async def _own_checks(self) -> dict[str, bool]:
        async with self._lock:
            if time.monotonic() - self._checked_at > FRESH_SECONDS:
                self._checks = {
                    "database": await self._works("database", asyncio.to_thread(self._write)),
                    "storage": await self._works("storage", asyncio.to_thread(self._storage.check)),
                    "cache": await self._works("cache", asyncio.to_thread(self._cache)),
                    "sandbox": await self._works("sandbox", self._sandbox.start()),
                }
                self._checked_at = time.monotonic()
            return self._checks

    async def _works(self, name: str, check: Awaitable[None]) -> bool:
        try:
            await asyncio.wait_for(check, CHECK_SECONDS)
        except Exception:
            # Load balancers ask every few seconds.
            if time.monotonic() - self._logged.get(name, float("-inf")) > LOG_EVERY_SECONDS:
                self._logged[name] = time.monotonic()
                log.exception("readyz: the %s does not work", name)
            return False
        return True


Object = dict[str, Any]
HEALTHZ = (
    Operation(
        "GET",
        "/healthz",
        "Whether the server answers requests",
        {200: Response("The server answers.", Object)},
        is_open=True,
    ),
)
READYZ = (
    Operation(
        "GET",
        "/readyz",
        "Whether database, storage, cache folders and sandbox work and can be written",
        {
            200: Response("All of them work.", Object),
            503: Response("At least one does not work: its check is `failed`.", Object),
        },
        is_open=True,
    ),
)


async def healthz(scope: Any, _receive: Any, send: Any, _headers: dict[str, str]) -> None:
    only(scope, "GET", "HEAD")
    await send_bytes(send, 200, b'{"status":"ok"}')


async def readyz(readiness: Readiness, scope: Any, _receive: Any, send: Any, _headers: dict[str, str]) -> None:
    """Answer 200 if database, storage, cache folders and sandbox work, otherwise 503.

    The body has `ok` or `failed` for each of them. The reason of a failure is in the server's log.
    """
    only(scope, "GET", "HEAD")
    checks = await readiness.checks()
    ready = all(checks.values())
    shown = {name: "ok" if works else "failed" for name, works in checks.items()}
    body = {"status": "ready" if ready else "not ready", "checks": shown}
    await send_bytes(send, 200 if ready else 503, encode(body))


# -- The state of a running server, for pages of admins and for checks of readiness ------------------------------------


class Disk(NamedTuple):
    """The disk of the home of a server, in bytes."""

    free: int
    total: int


class ServerState(NamedTuple):
    """Functions that return the state of this server."""

    checks: Callable[[], Awaitable[dict[str, bool]]]
    """Whether database, storage and sandbox work."""
    plugins: Callable[[], list[ServerPlugin]]
    disk: Callable[[], Disk]
    span_of_runs: Callable[[], Awaitable[timedelta | None]]
    """How long runs are kept if `runs.keep_count` shortens `runs.keep_days`, else None."""
    verify_audit: Callable[[Head | None], Verified]
    """Verifies the whole audit trail, and compares it with a head that was noted elsewhere. Blocking."""
    storage: str
    """The setting `storage`."""
    secrets: Callable[[], Collection[str]]
    """The names of all secrets that have a value. Blocking."""
    set_secret: Callable[[Actor, str, str], None]
    """Sets the value of a secret. Blocking. Raises NotAllowed if users set the values in another system."""
    signs: bool
    """Whether this server signs statements."""
