"""`GET /healthz`: requests are served. `GET /readyz`: database, storage and sandbox work."""

from __future__ import annotations

from typing import Any

from skillery.api.errors import encode
from skillery.api.http import only, send_bytes
from skillery.api.operations import Answer, Operation
from skillery.api.readiness import Readiness

Object = dict[str, Any]
HEALTHZ = (Operation("GET", "/healthz", "Requests are served", {200: Answer("They are.", Object)}, is_open=True),)
READYZ = (
    Operation(
        "GET",
        "/readyz",
        "Database, storage and sandbox work",
        {200: Answer("All do.", Object), 503: Answer("The one that says failed does not.", Object)},
        is_open=True,
    ),
)


async def healthz(scope: Any, _receive: Any, send: Any, _headers: dict[str, str]) -> None:
    only(scope, "GET", "HEAD")
    await send_bytes(send, 200, b'{"status":"ok"}')


async def readyz(readiness: Readiness, scope: Any, _receive: Any, send: Any, _headers: dict[str, str]) -> None:
    """200 where all three work, else 503; each check says `ok` or `failed`, the server's log says why."""
    only(scope, "GET", "HEAD")
    checks = await readiness.checks()
    ready = all(checks.values())
    shown = {name: "ok" if works else "failed" for name, works in checks.items()}
    body = {"status": "ready" if ready else "not ready", "checks": shown}
    await send_bytes(send, 200 if ready else 503, encode(body))
