"""Deadlines: a limit on the time of a whole call, with its retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx

from skillery.client.errors import DeadlineExceeded


class Deadline:
    """The end of one call. With `seconds` None, the call has no end."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the seconds until the end, at least 0. None means no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def is_before(self, wait: float) -> bool:
        """Return whether the deadline is before the end of a wait of `wait` seconds."""
        left = self.left()
        return left is not None and wait >= left

    def exceeded(self, http: httpx.Client | httpx.AsyncClient) -> DeadlineExceeded:
        """Return the error for a call that was not answered before the deadline."""
        return DeadlineExceeded(f"{http.base_url} did not answer the call within {self.seconds:g} s")


async def exchange_async(
    http: httpx.AsyncClient, deadline: Deadline, method: str, address: str, **parts: Any
) -> httpx.Response:
    """Send a request and return the response. Raise DeadlineExceeded if the deadline passes first."""
    try:
        async with asyncio.timeout(deadline.left()):
            return await http.request(method, address, **parts)
    except TimeoutError:
        raise deadline.exceeded(http) from None


def exchange(http: httpx.Client, deadline: Deadline, method: str, address: str, **parts: Any) -> httpx.Response:
    """Send a request and return the response. Raise DeadlineExceeded if the deadline passes first.

    The deadline is checked after each piece of the response. If a server sends some pieces and then stops, the call may
    take up to twice the deadline.
    """
    left = deadline.left()
    if left is None:
        return http.request(method, address, **parts)
    try:
        with http.stream(method, address, timeout=_shorter(http.timeout, left), **parts) as response:
            content = b"".join(_in_time(response, deadline, http))
    except httpx.TimeoutException:
        if deadline.is_before(0):
            raise deadline.exceeded(http) from None
        raise
    return httpx.Response(response.status_code, headers=response.headers, content=content, request=response.request)


def _in_time(response: httpx.Response, deadline: Deadline, http: httpx.Client) -> Iterator[bytes]:
    for piece in response.iter_raw():
        if deadline.is_before(0):
            raise deadline.exceeded(http)
        yield piece


def _shorter(timeout: httpx.Timeout, left: float) -> httpx.Timeout:
    return httpx.Timeout(**{name: min(left, seconds or left) for name, seconds in timeout.as_dict().items()})
