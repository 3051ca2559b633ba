"""One request and its answer as the doors see it: its id goes out with the answer, and what came of it is noted."""

from __future__ import annotations

import logging
from typing import Any

from skillery.request import Request, begin

log = logging.getLogger("skillery.requests")
ID_HEADER = "x-request-id"


class Exchange:
    """`receive` and `send` of one request: adds its id to the answer, and knows how far that has come."""

    __slots__ = ("_receive", "_send", "bytes_in", "bytes_out", "request", "status")

    def __init__(self, scope: Any, headers: dict[str, str], receive: Any, send: Any) -> None:
        self._receive, self._send = receive, send
        self.bytes_in = self.bytes_out = 0
        """Of bodies."""
        self.request: Request = begin(headers.get(ID_HEADER), (scope.get("client") or ("", None))[0])
        self.status = 0
        """0 until the answer has begun."""

    @property
    def started(self) -> bool:
        return self.status != 0

    async def receive(self) -> Any:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.bytes_out += len(message.get("body", b""))
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request.id.encode())]
        await self._send(message)


def log_request(door: str, verb: str, exchange: Exchange, seconds: float) -> None:
    """The one line of a request. Of what came with it there is nothing in it but the names of known methods."""
    request, milliseconds = exchange.request, round(seconds * 1000, 2)
    calls = " ".join(f"{method}={code}" if code else method for method, code, _ in request.calls)
    log.info(
        "%s %s %d %gms %s%s",
        verb,
        door,
        exchange.status,
        milliseconds,
        request.identity or "-",
        f" {calls}" if calls else "",
        extra={
            "fields": {
                "verb": verb,
                "door": door,
                "status": exchange.status,
                "duration_ms": milliseconds,
                "identity": request.identity,
                "address": request.address,
                "calls": [{"method": method, "code": code} for method, code, _ in request.calls],
            }
        },
    )
