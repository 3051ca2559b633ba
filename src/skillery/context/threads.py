"""Threads for work on large texts: few, and none that anybody else waits for.

A run can make its host work for as long as its limits allow; that must not take the threads on which the server opens
files and hands over blobs.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

Result = TypeVar("Result")
BIG_TEXT = 256 * 1024
"""Bytes of JSON from which on it is not looked through on the event loop."""


class Workers:
    def __init__(self, name: str, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, name)

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """What the function returns or raises; work that has not begun is dropped where this is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


_lock = Lock()
_pauses = 0


@contextmanager
def without_collecting() -> Iterator[None]:
    """Pause the garbage collector: JSON that is decoded makes no garbage, and a walk through millions of new objects
    takes longer than making them, with all threads waiting."""
    _pause(1)
    try:
        yield
    finally:
        _pause(-1)


def _pause(more: int) -> None:
    global _pauses  # noqa: PLW0603 - the collector is one for the whole process too
    with _lock:
        _pauses += more
        (gc.disable if _pauses else gc.enable)()


JSON = Workers("json", 2)
BODIES = Workers("bodies", 2)
REDACTION = Workers("redaction", 2)
