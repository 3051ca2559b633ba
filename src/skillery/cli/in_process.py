"""HTTP transport to an application in this process. The same client can then use a server, or a home without a
server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

BASE_URL = "http://localhost"
MAX_QUEUED_MESSAGES = 4


class InProcessTransport(httpx.AsyncBaseTransport):
    """Calls an ASGI application and streams its response.

    The ASGI transport of httpx collects the whole body first, but a blob may be larger than the memory.
    """

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(request)
        exchange.start(self._app)
        start = await exchange.next_message()
        return httpx.Response(start["status"], headers=start["headers"], stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and the stream of its response."""

    def __init__(self, request: httpx.Request) -> None:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self._request = request
        self._chunks = aiter(request.stream)
        self._all_sent = False
        self._messages: asyncio.Queue[Any] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self._task: asyncio.Task[None] | None = None

    def start(self, app: Callable[..., Any]) -> None:
        self._task = asyncio.create_task(self._run(app))

    async def next_message(self) -> Any:
        """Return the next ASGI message of the application.

        If the application ends without a complete response, raise the exception of the application, or ReadError if
        there is none.
        """
        message = await self._messages.get()
        if message is None:
            assert self._task is not None
            await self._task
            raise httpx.ReadError("the response is incomplete", request=self._request)
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self.next_message()
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def aclose(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, app: Callable[..., Any]) -> None:
        try:
            await app(_scope(self._request), self._receive, self._messages.put)
        except Exception:
            await self._messages.put(None)
            raise
        await self._messages.put(None)

    async def _receive(self) -> dict[str, Any]:
        if self._all_sent:
            # The client in this process never disconnects before the response, so wait forever.
            await asyncio.Event().wait()
        async for chunk in self._chunks:
            return {"type": "http.request", "body": chunk, "more_body": True}
        self._all_sent = True
        return {"type": "http.request", "body": b"", "more_body": False}


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        # The caller is the user of this command line, without a network address.
        "client": None,
        "root_path": "",
    }
