"""The token of a client: a text, or a function that returns the current token before each request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import httpx

from skillery.client.wire import authorization

Token = str | Callable[[], str | None]


def credentials(token: Token | None) -> dict[str, Any]:
    """Return the arguments of an httpx client that send the token. If `token` is None, the token is SKILLERY_TOKEN."""
    return {"auth": _TokenAuth(token)} if callable(token) else {"headers": authorization(token)}


class _TokenAuth(httpx.Auth):
    """Calls a function before each request, and sends the token that it returns."""

    def __init__(self, source: Callable[[], str | None]) -> None:
        self._source = source

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers.update(authorization(self._source() or ""))
        yield request

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        # In a thread, because the function may wait for an identity provider.
        request.headers.update(authorization(await asyncio.to_thread(self._source) or ""))
        yield request
