"""Calls of functions of plugins. A call that fails or hangs fails alone: it is counted and logged by plugin name."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Literal, NamedTuple

log = logging.getLogger(__name__)
AT_ONCE = 4
"""Calls of one function of one plugin at the same time."""
MOST_HANGING = 4
"""Calls of one function that have exceeded their time and not returned. With so many, the function is not called."""

Reason = Literal["raised", "timed_out", "hangs", "invalid"]


class PluginFailed(Exception):
    """Raised for a failed call. The failure is already counted and logged. The message contains no details."""

    def __init__(self, plugin: str, function: str, reason: Reason) -> None:
        super().__init__(f"the plugin '{plugin}' failed in {function}: {reason}")
        self.plugin = plugin
        self.reason: Reason = reason


class Failure(NamedTuple):
    """The plugin, the function and the reason of failures that `Failures` counts together."""

    plugin: str
    function: str
    reason: Reason


class Failures:
    """Counts and logs the failures of all plugins of a server, from any thread."""

    def __init__(self) -> None:
        self.counts: Counter[Failure] = Counter()
        self._lock = threading.Lock()

    def note(self, plugin: str, function: str, reason: Reason, error: BaseException | str) -> PluginFailed:
        """Count and log a failure. Return the exception to raise, if the caller needs one."""
        with self._lock:
            self.counts[Failure(plugin, function, reason)] += 1
        if isinstance(error, str):
            log.error("plugin '%s' failed in %s: %s", plugin, function, error)
        else:
            log.error("plugin '%s' failed in %s: %s", plugin, function, type(error).__name__, exc_info=error)
        return PluginFailed(plugin, function, reason)


class PluginFunction:
    """A blocking function of a plugin, called in separate threads. A hanging plugin occupies no shared thread.

    `seconds` limits a call. After that, the caller gets PluginFailed, and the thread is abandoned: Python cannot end a
    thread. While MOST_HANGING threads are abandoned, all calls fail at once.
    """

    def __init__(self, plugin: str, name: str, function: Callable[..., Any], failures: Failures) -> None:
        self.plugin = plugin
        self._name = name
        self._function = function
        self._failures = failures
        self._free = asyncio.Semaphore(AT_ONCE)
        self._hanging = 0

    async def call(self, seconds: float, **arguments: Any) -> Any:
        """Call the function with the arguments and return its result. Raise PluginFailed if it raises or hangs.

        A cancelled caller does not wait, but the call counts until it ends.
        """
        outcome = await asyncio.shield(asyncio.ensure_future(self._call(seconds, arguments)))
        if isinstance(outcome, PluginFailed):
            raise outcome
        return outcome

    async def _call(self, seconds: float, arguments: dict[str, Any]) -> Any:
        """Return the result of the call, or a PluginFailed. The error is not raised, because a cancelled caller would
        not retrieve it.
        """
        async with self._free:
            if self._hanging >= MOST_HANGING:
                return self._failed("hangs", f"not called, because {self._hanging} earlier calls have not returned")
            ended = self._begin(arguments)
            try:
                async with asyncio.timeout(seconds):
                    return await asyncio.shield(ended)
            except TimeoutError as error:
                if ended.done():
                    return self._failed("raised", error)
                self._hanging += 1
                ended.add_done_callback(self._returned)
                return self._failed("timed_out", f"no answer within {seconds:g} seconds")
            except Exception as error:  # noqa: BLE001 - any error of a plugin
                return self._failed("raised", error)

    def _failed(self, reason: Reason, error: BaseException | str) -> PluginFailed:
        return self._failures.note(self.plugin, self._name, reason, error)

    def _returned(self, ended: asyncio.Future[Any]) -> None:
        self._hanging -= 1
        ended.cancelled() or ended.exception()  # retrieved, so that asyncio does not log it

    def _begin(self, arguments: dict[str, Any]) -> asyncio.Future[Any]:
        """Start the call in a new thread. The thread is a daemon, so that a hanging plugin does not delay the exit."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        context = copy_context()

        def run() -> None:
            try:
                result, error = context.run(self._function, **arguments), None
            except BaseException as raised:  # noqa: BLE001 - SystemExit of a plugin must not end the thread silently
                result, error = None, raised
            try:
                loop.call_soon_threadsafe(_end, ended, result, error)
            except RuntimeError:
                return  # the server has ended

        threading.Thread(target=run, name=f"{self.plugin} {self._name}", daemon=True).start()
        return ended


def _end(ended: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Settle the future with the result or the error, unless it is done."""
    if ended.done():
        return
    if error is None:
        ended.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        ended.set_exception(error)
    else:
        # asyncio would end the event loop for SystemExit, and refuses StopIteration.
        ended.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
