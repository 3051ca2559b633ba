"""An event loop in a separate thread, so that requests share connections and have a limit on their whole time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from skillery_openbao.failures import ServiceFailed

T = TypeVar("T")


class PrivateLoop:
    """A loop that starts at the first call. Any number of threads may call at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._thread: threading.Thread | None = None

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop and return its result. Blocking. Raise ServiceFailed if the loop ends first."""
        with self._lock:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        try:
            return future.result()
        except CancelledError:
            raise ServiceFailed("", "the server of Skillery ends") from None

    def close(self) -> None:
        """End the loop and its thread, if they run. Calls that wait end too."""
        with self._lock:
            runner, thread = self._runner, self._thread
            self._runner = self._thread = None
        if runner is not None and thread is not None:
            loop = runner.get_loop()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._runner.get_loop()  # before another thread uses it
            self._thread = threading.Thread(target=_serve, args=(self._runner,), name="openbao", daemon=True)
            self._thread.start()
        return self._runner.get_loop()


def _serve(runner: asyncio.Runner) -> None:
    with runner:  # cancels all tasks at the end
        runner.get_loop().run_forever()
