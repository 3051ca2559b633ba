"""Small pools of threads for work on large texts, separate from the threads that all requests share.

A run can cause much of this work. The work must not occupy the threads on which the server opens files and transfers
blobs.
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
"""Bytes above which JSON is checked or converted in a worker thread, not on the event loop."""


class Workers:
    def __init__(self, name: str, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, name)

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run the function in a worker thread and return its result.

        If the caller is cancelled before the function has started, the function does not run.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


_lock = Lock()
_pauses = 0


@contextmanager
def without_collecting() -> Iterator[None]:
    """Context manager: pause Python's garbage collector in the `with` block.

    Decoding JSON makes no garbage. A collection that visits millions of new objects takes longer than decoding, and
    stops all threads.
    """
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
ARCHIVES = Workers("archives", 2)
