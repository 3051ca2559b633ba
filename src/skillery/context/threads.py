"""Pools of threads for work that would block the event loop.

Work on large texts has small pools of its own. A run can cause much of this work, and the work must not occupy the
threads on which the server opens files and transfers blobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar, cast

log = logging.getLogger(__name__)
Result = TypeVar("Result")
BIG_TEXT = 256 * 1024
"""Bytes above which JSON is checked or converted in a worker thread, not on the event loop."""


class Workers:
    """A pool of threads. Threads start when they are needed.

    The executors of the standard library make a future with a lock for each call, and copy its result to the future of
    the event loop. That costs more than a short write to SQLite.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._most = threads
        self._threads: list[Thread] = []
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unfinished = 0
        self._counting = Lock()
        self._closed = False

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run the function in a worker thread and return its result.

        If the caller is cancelled before the function has started, the function does not run.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            if ended.cancelled():
                return
            result: Any = None
            problem: BaseException | None = None
            try:
                result = function(*args)
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                problem = error
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits
                loop.call_soon_threadsafe(_settle, ended, result, problem)

        self.submit(work)
        return cast(Result, await ended)

    def run_now(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run the function in a worker thread and return its result. Blocking."""
        ended: Future[Result] = Future()

        def work() -> None:
            try:
                ended.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                ended.set_exception(error)

        self.submit(work)
        return ended.result()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, in a worker thread. Raise RuntimeError after `close`."""
        with self._counting:
            if self._closed:
                raise RuntimeError(f"the threads `{self._name}` are closed")
            self._unfinished += 1
            if len(self._threads) < min(self._most, self._unfinished):
                name = f"{self._name}_{len(self._threads)}"
                thread = Thread(target=self._loop, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(work)

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("work in a thread of `%s` raised", self._name)
            del work  # a waiting thread must not keep a result in memory
            with self._counting:
                self._unfinished -= 1

    def close(self) -> None:
        """Wait until all submitted work is done, and end the threads. Blocking."""
        with self._counting:
            self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()


def _settle(ended: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if ended.done():  # the caller was cancelled
        return
    if problem is None:
        ended.set_result(result)
    else:
        ended.set_exception(problem)


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
