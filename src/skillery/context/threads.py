"""Pools of threads for work that would block the event loop.

Work on large texts has small pools of its own. A run can cause much of this work, and the work must not occupy the
threads on which the server opens files and transfers blobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar, cast

log = logging.getLogger(__name__)
Result = TypeVar("Result")
BIG_TEXT = 256 * 1024
"""Bytes above which JSON is checked or converted in a worker thread, not on the event loop."""


class Workers:
    """A pool of threads. Threads start when they are needed.

    An executor of the standard library makes a future with a lock for each call, and copies its result to a future of
    the event loop. A run makes two such calls, and this pool saves 1 % of its processor time (measured).
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
            try:
                result = function(*args)
            except BaseException as error:  # noqa: BLE001 - the caller, who waits for `ended`, raises it
                tell(ended.set_exception, error)
            else:
                tell(ended.set_result, result)

        def tell(end: Callable[[Any], None], outcome: Any) -> None:
            # If the event loop is closed, no caller waits for the outcome.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_unless_done, ended, end, outcome)

        self.submit(work)
        return cast(Result, await ended)

    def run_now(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run the function in a worker thread and return its result. Blocking."""
        ended: Future[Result] = Future()
        self.submit(partial(settle, ended, partial(function, *args)))
        return ended.result()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in a worker thread. If it raises an error, the error is logged. Raise RuntimeError after
        `close`.
        """
        with self._counting:
            if self._closed:
                raise RuntimeError(f"the threads `{self._name}` are closed")
            self._unfinished += 1
            if len(self._threads) < min(self._most, self._unfinished):
                name = f"{self._name}_{len(self._threads)}"
                thread = Thread(target=self._loop, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            # Still with the lock: work after the end mark of `close` would never be done.
            self._work.put(work)

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # no caller waits for this work, and the thread must do the work of others
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


def settle(ended: Future[Result], work: Callable[[], Result]) -> None:
    """Do the work, and give its result or its error to the future."""
    try:
        ended.set_result(work())
    except BaseException as error:  # noqa: BLE001 - the caller, who waits for the future, raises it
        ended.set_exception(error)


def _unless_done(ended: asyncio.Future[Any], end: Callable[[Any], None], outcome: Any) -> None:
    if not ended.done():  # it is done if the caller was cancelled
        end(outcome)


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
IMPORTS = Workers("imports", 4)
COMPARISONS = Workers("comparisons", 2)


# -- Time limits for coroutines that seldom wait -----------------------------------------------------------------------


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
