"""A run from the start of its code to its result, in any sandbox."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from cellblock.host.dialogue import STACK_SECONDS, Dialogue
from cellblock.runtime._failure import STACK
from cellblock.values import Failure, FailureKind, Limits, Log, NetworkUse, Result, Used

# -- The end of a run's process as a failure, and a clean-up that cancellation cannot interrupt ------------------------


def ended_early(status: int) -> Failure:
    """Return the failure of a process that ended without a result. `status` comes from wait()."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return Failure(FailureKind.CPU_TIME, "the process used more CPU time than the run allows")
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return Failure(FailureKind.KILLED, f"the process was killed by {name} before it returned a result")
    code = os.WEXITSTATUS(status)
    return Failure(FailureKind.EXITED, f"the process exited with status {code} before it returned a result")


End = TypeVar("End")
End_co = TypeVar("End_co", covariant=True)


async def finish_whole(ending: Coroutine[Any, Any, End]) -> End:
    """Await `ending` completely, and only then raise a cancellation. Otherwise, parts of a run could be left behind."""
    task = asyncio.create_task(ending)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()


GUARD_SECONDS = 0.04
TIMER_SECONDS = 0.001
"""uvloop counts whole milliseconds, so its timers may end this much early."""


MOST_NAME = 200
_MOST_STACK = 8 * 1024
_FRAME = re.compile(r'^  File "([^"\n]{1,300})", line (\d{1,9}), in ([^\n]{1,200})$', re.MULTILINE)
_FRAME_LINES = re.compile(r'^  File "[^"\n]{1,300}", line \d{1,9}, in [^\n]{1,200}\n(?:    [^\n]*\n)*', re.MULTILINE)


class RunSession:
    """A run, from the start of its code to its result. Call `follow` when the code can start, and `result` after the
    run has ended.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.dialogue: Dialogue | None = None
        """None until the code can start."""
        self._duration_ms = 0.0
        self._opened = self._started = time.monotonic()
        self._prepared_ms: float | None = None
        self.stopped: Failure | None = None
        """The failure of a run that was stopped, or that did not start."""
        self.status: int | None = None
        """The wait status of the code's process, if it ended without a result."""

    async def follow(
        self,
        dialogue: Dialogue,
        ended: Callable[[], Awaitable[int | None]],
        exceeds: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        """Wait until the code has sent its result or has ended, or until its time is over. Also return when `exceeds`
        returns: its memory limit is then exceeded, and the value is the message, or None for the usual one.

        The measured time ends with the last byte of the result; the check of the result does not count, and the time
        limit does not end it. `ended` waits for the end of the code's process, and returns its wait status or None.
        """
        self.dialogue = dialogue
        started = self._started = time.monotonic()
        self._prepared_ms = round((started - self._opened) * 1000, 3)
        limit = asyncio.timeout(self._limits.timeout_ms / 1000 + TIMER_SECONDS)
        dialogue.when_heard = lambda: limit.reschedule(None)
        guard = _Guard(exceeds, limit) if exceeds else None
        try:
            async with limit:
                await self._listen(dialogue, ended)
        except TimeoutError:
            if not limit.expired():
                raise
            if guard is not None and guard.has_ended:
                self.stopped = self._too_much_memory(guard.result())
            else:
                message = f"the run took longer than {self._limits.timeout_ms} ms"
                self.stopped = Failure(FailureKind.TIMEOUT, message, TimeoutError.__name__)
        finally:
            self._duration_ms = ((dialogue.heard_at or time.monotonic()) - started) * 1000
            if guard is not None:
                await guard.close()

    async def _listen(self, dialogue: Dialogue, ended: Callable[[], Awaitable[int | None]]) -> None:
        await dialogue.listen()
        if dialogue.result is None and dialogue.failure is None:
            # The code closed the channel or has ended. In both cases only the end of the process counts.
            self.status = await ended()
            if self._is_of_stack_timer(self.status):
                await asyncio.Event().wait()  # until the limit

    def _is_of_stack_timer(self, status: int | None) -> bool:
        """Return whether the signal that writes the stack has ended the process.

        The timer survives exec, but its handler does not. Code can also restore the default handler. Both end the
        process shortly before its time is over.
        """
        left = self._limits.timeout_ms / 1000 - (time.monotonic() - self._started)
        is_alarm = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        return is_alarm and left < 2 * STACK_SECONDS

    def _too_much_memory(self, message: str | None = None) -> Failure:
        usual = f"the run and its processes used more than {self._limits.memory_mb} MiB of memory"
        return Failure(FailureKind.MEMORY, message or usual)

    @property
    def disk_bytes(self) -> int | None:
        """The size of the files in the workspace, as the process of the code has measured it at its end."""
        return self.dialogue.disk_bytes if self.dialogue is not None else None

    def result(
        self,
        *,
        log: Log,
        degraded: tuple[str, ...],
        oom_killed: bool = False,
        network: tuple[NetworkUse, ...] = (),
        used: Used | None = None,
    ) -> Result:
        dialogue, failure = self.dialogue, self._failure(oom_killed=oom_killed)
        if failure is not None and failure.kind is FailureKind.TIMEOUT:
            failure, log = with_stack(failure, log)
        return Result(
            raw=dialogue.result if dialogue and failure is None else None,
            failure=failure,
            summary=dialogue.summary if dialogue else None,
            log_parts=log,
            duration_ms=self._duration_ms,
            degraded=degraded,
            network=network,
            used=replace(used or Used(), prepared_ms=self._prepared_ms),
        )

    def _failure(self, *, oom_killed: bool) -> Failure | None:
        if self.stopped is not None:
            return self.stopped
        if oom_killed:
            return self._too_much_memory()
        if self.dialogue is not None and self.dialogue.failure is not None:
            return self.dialogue.failure
        if self.dialogue is not None and self.dialogue.result is not None:
            return None
        if self.status is None:
            return Failure(FailureKind.SANDBOX, "the sandbox was ended from outside")
        return ended_early(self.status)


def with_stack(stopped: Failure, log: Log) -> tuple[Failure, Log]:
    """Return the failure of a run that was stopped with the stack of its code, and the log without the stack.

    The code writes its stack to the end of the log, shortly before it is stopped. A stack that the failure already has
    stays.
    """
    if stopped.traceback:
        return stopped, log
    whole = log.tail or log.head
    at = whole.rfind(STACK.encode())
    frames = whole[at:][:_MOST_STACK].decode("utf-8", "replace")
    matches = list(_FRAME.finditer(frames)) if at >= 0 else []
    if not matches:
        return stopped, log
    file, line, function = matches[-1].groups()
    bare = file.split("/", 3)[-1]  # without the target of a mount, which is /POINT/NAME
    text = "".join(match[0] for match in _FRAME_LINES.finditer(frames))
    traceback = f"Traceback (most recent call last):\n{text}{stopped.type}: {stopped.message}"
    message = f"{stopped.message}; the code was at {printable(bare)}:{line}, in {printable(function)}"
    kept = Log(log.head, whole[:at], log.dropped) if log.tail else Log(whole[:at], b"", log.dropped)
    return replace(stopped, message=message, traceback=traceback), kept


def printable(text: str) -> str:
    """Return a name of the code cut to 200 characters, with unprintable characters escaped."""
    shown = text if len(text) <= MOST_NAME else text[: MOST_NAME - 1] + "…"
    return repr(shown)[1:-1].replace("\\'", "'")


class _Guard:
    """Watches the memory of a run from GUARD_SECONDS after the start of its code, and ends `limit` if it is exceeded.

    Most runs are shorter, and their guard starts no task. Limits of the kernel apply from the start.
    """

    def __init__(self, exceeds: Callable[[], Awaitable[str | None]], limit: asyncio.Timeout) -> None:
        self._exceeds = exceeds
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Future[str | None] | None = None
        self._closed = False
        self._waiting = self._loop.call_later(GUARD_SECONDS, self._start)

    def _start(self) -> None:
        self._task = asyncio.ensure_future(self._exceeds())
        self._task.add_done_callback(self._end_run)

    def _end_run(self, task: asyncio.Future[str | None]) -> None:
        if not (self._closed or task.cancelled() or self._limit.expired()):
            self._limit.reschedule(self._loop.time())

    @property
    def has_ended(self) -> bool:
        return self._task is not None and self._task.done()

    def result(self) -> str | None:
        """Return what `exceeds` has returned, or raise its error."""
        return self._task.result() if self._task is not None else None

    async def close(self) -> None:
        self._closed = True
        self._waiting.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class LiveRun(Protocol[End_co]):
    """A job in a sandbox of a backend, for `run_whole`. Call `live`, then always `end`."""

    async def live(self) -> None: ...

    async def end(self) -> End_co: ...


async def run_whole(run: LiveRun[End]) -> End:
    """Run a job to its end, and return what `end` returns. A cancellation also ends the run completely."""
    try:
        await run.live()
    except BaseException:
        await finish_whole(run.end())
        raise
    return await finish_whole(run.end())
