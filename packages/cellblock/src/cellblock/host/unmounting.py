"""Unmounting the files of ended runs, several runs at a time.

The kernel unmounts when the last descriptor of a mount namespace is closed, and waits for all processors, often
milliseconds. So threads do this. Each call of a thread costs more than closing a descriptor, so the descriptors of some
milliseconds share one call.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

SHARED_SECONDS = 0.01
_THREADS = ThreadPoolExecutor(4, "unmounting")


class Unmounting:
    """Closes descriptors of mount namespaces in threads, for one event loop."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._closing: asyncio.Task[None] | None = None

    async def close(self, descriptor: int) -> None:
        """Close the descriptor of a mount namespace that no process uses. Return when its files are unmounted."""
        self._waiting.append(descriptor)
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_all())
        await asyncio.shield(self._closing)

    async def _close_all(self) -> None:
        await asyncio.sleep(SHARED_SECONDS)
        descriptors, self._waiting, self._closing = self._waiting, [], None
        await asyncio.get_running_loop().run_in_executor(_THREADS, _close, descriptors)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
