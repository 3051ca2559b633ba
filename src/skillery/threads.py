"""Threads for work on large texts: few, and none that anybody else waits for.

A run can make its host work for as long as its limits allow; that must not take the threads on which the server opens
files and hands over blobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


JSON = Workers("json", 2)
REDACTION = Workers("redaction", 2)
