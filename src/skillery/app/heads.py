"""The head of a request (its line and headers) is bounded in size and time; uvicorn takes it however long it is."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_BYTES = 64 * 1024
SECONDS = 30
"""From connecting to the end of the first head."""


class BoundedHeads(HttpToolsProtocol):
    """A connection that is closed where a head grows past MOST_BYTES, or the first does not come in time."""

    _in_head = True
    _head_bytes = 0
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._patience = self.loop.call_later(SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_patient()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        # What came with the end of a head may be body: only a head that is still open is too long.
        if self._in_head and self._head_bytes > MOST_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers of this request are too long.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._be_patient()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
