"""`GET /healthz` answers if the server runs. `GET /readyz` answers whether the parts of the server work."""

from __future__ import annotations

from typing import Any

from skillery.api.readiness import Readiness
from skillery.edge.http import only, send_bytes
from skillery.edge.operations import Operation, Response
from skillery.methods.errors import encode

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
