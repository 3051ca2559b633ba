"""One request and its answer as the endpoints see them.

Every answer of the server goes through `Exchange.send`: it adds the id of the request, writes large bodies in pieces,
and gives up on a client that does not read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

from skillery.context.request import Request, begin

log = logging.getLogger("skillery.requests")
ID_HEADER = "x-request-id"
PIECE_BYTES = 64 * 1024
"""The transport buffers at most about one piece more than the socket takes."""
SLOWEST_BYTES = 16 * 1024
"""A client has to read that many bytes a second on average, apart from the seconds for which it may be silent."""


class ClientGone(Exception):
    """Raised when the client disconnects during its request."""


class Exchange:
    """`receive` and `send` of one request. `send` waits at most `patience` seconds for a client that reads nothing."""

    __slots__ = ("_patience", "_receive", "_send", "_waited", "bytes_in", "bytes_out", "request", "status")

    def __init__(self, scope: Any, headers: dict[str, str], receive: Any, send: Any, patience: float) -> None:
        self._receive, self._send = receive, send
        self._patience = patience
        self._waited = 0.0
        """Seconds for which the client has kept this answer waiting."""
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
        """Hand a message to the socket. Raises ClientGone if the client does not read."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request.id.encode())]
        elif len(message.get("body", b"")) > PIECE_BYTES:
            for piece in _pieces(message):
                await self._give(piece)
            return
        await self._give(message)

    async def _give(self, message: Any) -> None:
        # A client may read nothing for `patience` seconds, and has to read SLOWEST_BYTES a second apart from that: else
        # one that reads a byte a minute would hold its answer, and a connection, for ever.
        begun = time.monotonic()
        left = self._patience + self.bytes_out / SLOWEST_BYTES - self._waited
        try:
            async with asyncio.timeout(min(self._patience, left)):
                await self._send(message)
        except TimeoutError:
            await self._give_up()
            raise ClientGone from None
        self._waited += time.monotonic() - begun
        self.bytes_out += len(message.get("body", b""))

    async def _give_up(self) -> None:
        """Drop the connection and all that it still buffers: closing it would wait until the client has read that."""
        transport = getattr(getattr(self._receive, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()
            # uvicorn learns of it in the next turn of the loop, and then does not complain about half an answer.
            await asyncio.sleep(0)


def _pieces(message: Any) -> Iterator[Any]:
    """A message with a body, as several messages."""
    body, more = memoryview(message["body"]), message.get("more_body", False)
    for start in range(0, len(body), PIECE_BYTES):
        is_last = start + PIECE_BYTES >= len(body)
        piece = bytes(body[start : start + PIECE_BYTES])
        yield {"type": "http.response.body", "body": piece, "more_body": more or not is_last}


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
