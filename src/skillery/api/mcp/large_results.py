"""Large results of MCP: the SDK gets a placeholder for each large value. In the response of the SDK, each placeholder
is replaced by the JSON of the value.

The SDK copies a result several times and validates each value, all on the event loop. A placeholder is a random word,
so no content of a response can be equal to a placeholder.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from skillery.edge.exchanges import ClientGone
from skillery.edge.http import Part

Pieces = Sequence[Part]


class Splices:
    """The large values of one response. When the socket has taken a piece of a value, `given_back` is called with
    its size.
    """

    def __init__(self, given_back: Callable[[int], None]) -> None:
        self._given_back = given_back
        self._pieces: dict[bytes, Pieces] = {}
        self._start: Any = None
        self._is_gone = False

    def text(self, pieces: Pieces) -> str:
        """Store a large JSON string, and return its placeholder. `pieces` is the JSON text with the quotes."""
        word = secrets.token_hex(16)
        self._pieces[b'"%s"' % word.encode()] = pieces
        return word

    def object(self, pieces: Pieces) -> dict[str, Any]:
        """Store a large JSON object, and return its placeholder. `pieces` is the JSON text."""
        word = secrets.token_hex(16)
        self._pieces[b'{"%s":0}' % word.encode()] = pieces
        return {word: 0}

    def into(self, send: Any) -> Any:
        """Return an ASGI `send` that replaces the placeholders by the stored values, and passes the messages to `send`.

        After the client has disconnected, the returned function does nothing. It raises no ClientGone, because the SDK
        would log the exception. The SDK notices the disconnection from `receive`.
        """

        async def send_spliced(message: Any) -> None:
            if self._is_gone:
                return
            try:
                await self._send(send, message)
            except ClientGone:
                self._is_gone = True

        return send_spliced

    async def _send(self, send: Any, message: Any) -> None:
        if not self._pieces:
            await send(message)
        elif message["type"] == "http.response.start":
            # The Content-Length depends on the body.
            self._start = message
        else:
            await self._send_body(send, message)

    async def _send_body(self, send: Any, message: Any) -> None:
        parts = self._split(message.get("body", b""))
        if self._start is not None:
            await send(_with_length(self._start, sum(len(part) for part, _ in parts)))
            self._start = None
        for part, is_value in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if is_value:
                self._given_back(len(part))
        await send({"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)})

    def _split(self, body: bytes) -> list[tuple[Part, bool]]:
        """Return the parts of a body with the stored values in place of placeholders. The second element says
        whether a part is a stored value.
        """
        places = sorted((place, mark) for mark in self._pieces if (place := body.find(mark)) >= 0)
        parts: list[tuple[Part, bool]] = []
        end = 0
        for place, mark in places:
            parts.append((body[end:place], False))
            parts += [(piece, True) for piece in self._pieces.pop(mark)]
            end = place + len(mark)
        return [*parts, (body[end:], False)]


def _with_length(start: Any, size: int) -> Any:
    headers = [
        (name, str(size).encode() if name.lower() == b"content-length" else value) for name, value in start["headers"]
    ]
    return {**start, "headers": headers}
