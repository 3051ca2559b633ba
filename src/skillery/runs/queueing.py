"""How many runs at once, and what happens to one more."""

from __future__ import annotations

import asyncio

from skillery.errors import Busy


class Queue:
    """`at_once` runs go on together, `waiting` more wait for a place in the order in which they came; past that a call
    is told at once to come back later."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._at_once = at_once
        self._most_waiting = waiting
        self._waiting = 0

    async def enter(self) -> None:
        """Wait for a place, to be given back by `leave`. Raises Busy where the queue is full."""
        if self._places.locked() and self._waiting >= self._most_waiting:
            raise Busy(
                f"{self._waiting} runs are waiting already",
                hint="Try again after retry_after_ms.",
                retry_after_ms=min(60_000, 100 * (1 + self._waiting // self._at_once)),
            )
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        self._places.release()
