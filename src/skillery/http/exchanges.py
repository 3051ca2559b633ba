"""One HTTP request and its response.

Every response of an endpoint goes through `Exchange.send`, which adds the headers of all answers, writes large bodies
in pieces, and disconnects clients that do not read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

from skillery.context.budget import answer_room
from skillery.context.request import Request, begin, note_task
from skillery.context.threads import within

log = logging.getLogger("skillery.requests")
ID_HEADER = "x-request-id"
PIECE_BYTES = 64 * 1024
"""Bytes that are sent at once. The transport buffers about one piece, in addition to the buffer of the socket."""
SLOWEST_BYTES = 16 * 1024
"""Slowest reading rate of a client, in bytes per second. In addition, a client may pause for `patience` seconds in
total.
"""


def headers_of_all_answers(request_id: str) -> dict[str, str]:
    """Return the headers that every answer of the server has. No browser takes an answer for another type of content
    than its Content-Type says, for example JSON for a script.
    """
    return {ID_HEADER: request_id, "x-content-type-options": "nosniff"}


class ClientGone(Exception):
    """Raised when the client disconnects during its request, or reads its answer too slowly."""


class Exchange:
    """The ASGI functions `receive` and `send` of one request.

    `send` disconnects a client that reads nothing for `patience` seconds, or reads fewer than SLOWEST_BYTES a second.
    """

    __slots__ = ("_patience", "_receive", "_send", "_waited", "bytes_in", "bytes_out", "request", "status")

    def __init__(self, scope: Any, headers: dict[str, str], receive: Any, send: Any, patience: float) -> None:
        self._receive, self._send = receive, send
        self._patience = patience
        self._waited = 0.0
        """Seconds that this response has waited for the client."""
        self.bytes_in = self.bytes_out = 0
        """Bytes of the request body and of the response body."""
        self.request: Request = begin(
            headers.get(ID_HEADER), (scope.get("client") or ("", None))[0], headers.get("user-agent", "")
        )
        note_task(asyncio.current_task())
        self.status = 0
        """HTTP status of the response. 0 until the response has begun."""

    @property
    def started(self) -> bool:
        return self.status != 0

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection. None in a test without one."""
        return getattr(getattr(self._receive, "__self__", None), "transport", None)

    async def receive(self) -> Any:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Any) -> None:
        """Send an ASGI message, and release the bytes of its body in the memory budget. Raise ClientGone if the client
        reads nothing for too long, or reads too slowly.
        """
        size = len(message.get("body", b""))
        if size <= PIECE_BYTES:
            await self._send_piece(message, size)
        else:
            for piece in _pieces(message):
                await self._send_piece(piece, len(piece["body"]))
        answer_room.get().release(size)

    async def _send_piece(self, message: Any, size: int) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            fixed = headers_of_all_answers(self.request.id).items()
            message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in fixed)]
        # Without a minimum rate, a client that reads one byte a minute would hold its connection forever.
        begun = time.monotonic()
        left = self._patience + self.bytes_out / SLOWEST_BYTES - self._waited
        try:
            await within(min(self._patience, left), self._send(message))
        except TimeoutError:
            await self._give_up()
            raise ClientGone from None
        self._waited += time.monotonic() - begun
        self.bytes_out += size

    async def _give_up(self) -> None:
        """Abort the connection. Closing the connection would wait until the client has read the buffered bytes."""
        if self.transport is not None:
            self.transport.abort()
            # uvicorn notices the lost connection in the next iteration of the event loop. Until then, it would log an
            # incomplete response.
            await asyncio.sleep(0)


def _pieces(message: Any) -> Iterator[Any]:
    """Split an ASGI message with a large body, and yield one message for each piece of the body."""
    body, more = memoryview(message["body"]), message.get("more_body", False)
    for start in range(0, len(body), PIECE_BYTES):
        is_last = start + PIECE_BYTES >= len(body)
        piece = bytes(body[start : start + PIECE_BYTES])
        yield {"type": "http.response.body", "body": piece, "more_body": more or not is_last}


def log_request(endpoint: str, verb: str, exchange: Exchange, seconds: float) -> None:
    """Log one line for a request. Of the request's content, the line has only names of known methods."""
    request, milliseconds = exchange.request, round(seconds * 1000, 2)
    calls = " ".join(f"{method}={code}" if code else method for method, code, _ in request.calls)
    log.info(
        "%s %s %d %gms %s%s",
        verb,
        endpoint,
        exchange.status,
        milliseconds,
        request.identity or "-",
        f" {calls}" if calls else "",
        extra={
            "fields": {
                "verb": verb,
                "endpoint": endpoint,
                "status": exchange.status,
                "duration_ms": milliseconds,
                "identity": request.identity,
                "address": request.address,
                "calls": [{"method": method, "code": code} for method, code, _ in request.calls],
            }
        },
    )
