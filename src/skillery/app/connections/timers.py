"""A timer that can be started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls a function once, some seconds after `start`, unless `stop` is called earlier."""

    __slots__ = ("_call", "_handle", "_loop", "_seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer. Do nothing if the timer runs: its end stays the same."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._end)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _end(self) -> None:
        self._handle = None
        self._call()
