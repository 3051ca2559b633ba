"""The active runs of this server: runs that have not ended, by id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

from skillery.backends import CodeCall, Failure, FailureType, Identity, Job, Outcome
from skillery.context.queue import Slot
from skillery.context.request import note_task
from skillery.identity.idempotency import Claim, claimed
from skillery.registry.uses import present_client
from skillery.runs.live_output import LiveOutput
from skillery.runs.preparation import Prepared
from skillery.runs.run_host import CalledHost, Host
from skillery.runs.trials import Unpublished
from skillery.workspaces.usage import HeldWorkspace

T = TypeVar("T")
begun_runs: ContextVar[list[str] | None] = ContextVar("begun_runs", default=None)
"""If a caller has set a list here, each run that the caller's task starts appends its run id to the list."""


class Stop(msgspec.Struct, frozen=True):
    """The reason for stopping a run, for example a cancellation or the end of the server."""

    failure: Failure
    """The failure that the record of the run gets, if the run has a record."""
    by_request: bool = False
    """True if a caller cancelled the run. The record of such a run stays, even if the run never got a slot."""


SERVER_STOPPED = Stop(Failure(FailureType.SANDBOX_ERROR, "the server was stopped while this ran"))
CLIENT_GONE = Stop(Failure(FailureType.CANCELLED, "the client disconnected while the run waited"))
CALLER_ENDED = Stop(Failure(FailureType.CALLER_ENDED, "the run that called this has ended"))


def cancelled_by(name: str) -> Stop:
    """Return the stop for a run that the identity `name` cancelled."""
    return Stop(Failure(FailureType.CANCELLED, f"cancelled by '{name}'"), by_request=True)


class Stopped(Exception):
    """Raised in place of an outcome if a run is stopped, or if a run in the background cannot start.
    `stop` is the reason.
    """

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.failure.message)
        self.stop = stop


class ActiveRun:
    """One run of this server, from admission until its outcome is recorded."""

    def __init__(
        self,
        prepared: Prepared,
        identity: Identity,
        server: str,
        host: Host | CalledHost,
        *,
        in_background: bool = False,
    ) -> None:
        """`identity` is the caller. `server` is the id of this server. `host` serves the requests of the code."""
        self.prepared = prepared.for_caller(identity)
        self.identity = identity
        self.client = present_client()
        """The program of the caller as it names itself, or ""."""
        self.server = server
        self.host = host
        self.claim = _claim(prepared)
        self.slot: Slot | None = None
        self.is_waiting = False
        """True while the run waits for its packages, its workspace or a slot."""
        self.is_on_record = False
        self.in_background = in_background
        """True if the caller gets the run id before the run ends. The record then stays, however the run ends."""
        self.announced = asyncio.get_running_loop().create_future()
        """A future that is done when the run has a record. A caller of a run in the background waits for it."""
        self.was_stopped = False
        """True if a stop ended the run. The outcome then says nothing about the code."""
        self.workspace: HeldWorkspace | None = None
        """The workspace of the run. None until the run has taken the workspace."""
        self.progress_lock = asyncio.Lock()
        """Held while the progress is written to the row of the run, so that an old value never follows a newer one."""
        self._task: asyncio.Task[Any] | None = None
        self._stop: Stop | None = None
        self._work: asyncio.Future[Any] | None = None
        self._began: float | None = None

    @property
    def run_id(self) -> str:
        return self.prepared.job.run_id

    @property
    def job(self) -> Job:
        return self.prepared.job

    @property
    def live(self) -> LiveOutput:
        """The log and the progress of the run."""
        return self.host.live

    @property
    def task(self) -> asyncio.Task[Any]:
        """The task that executes and records the run."""
        assert self._task is not None, "the task is started before the run is added to the active runs"
        return self._task

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start the task that executes and records the run."""
        self._task = task = asyncio.create_task(work)
        note_task(task)
        return task

    @property
    def queued_bytes(self) -> int:
        """The size in bytes of the args and the code, which stay in memory while the run waits for a slot."""
        call = self.job.call
        return len(self.job.args) + (len(call.code) if isinstance(call, CodeCall) else 0)

    def stop(self, stop: Stop) -> None:
        """Cancel the work of `until_stopped`, now or as soon as it begins. Of two stops, the first one counts."""
        self._stop = self._stop or stop
        if self._work is not None:
            self._work.cancel()

    async def until_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raise Stopped if `stop` is called before `work` ends."""
        self._work = task = asyncio.create_task(work)
        note_task(task)
        if self._stop is not None:
            task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._work = None
        if task.cancelled():
            raise Stopped(self._stop or CALLER_ENDED)
        return task.result()

    async def wait_for_packages(self) -> None:
        """Wait for the packages of the run, and show the progress to callers."""
        try:
            self.prepared = await self.prepared.with_packages(self.live.set_packages)
        finally:
            self.live.set_packages(None)

    def announce(self) -> None:
        """Mark the run as recorded, which wakes the caller of a run in the background."""
        if not self.announced.done():
            self.announced.set_result(None)

    def start_clock(self) -> None:
        """Start to measure the duration of the run."""
        self._began = time.monotonic()

    def stopped_outcome(self, stop: Stop) -> Outcome:
        """Return the failed outcome of a stopped run: the failure of `stop`, the log and the duration up to now."""
        self.was_stopped = True
        duration_ms = 0.0 if self._began is None else (time.monotonic() - self._began) * 1000
        self.live.flush()
        return Outcome(failure=stop.failure, duration_ms=duration_ms, log=self.live.log())

    def leave_slot(self) -> None:
        """Give the slot back to the queue, if the run has one."""
        if self.slot is not None:
            self.slot.leave()


def _claim(prepared: Prepared) -> Claim | None:
    """Return the idempotency claim of the current request, or None. The end of this run then settles the claim."""
    # The runs of examples do not settle the claim of create_skill, and called runs do not settle that of their caller.
    is_own_call = prepared.parent_run_id is None and not isinstance(prepared.version, Unpublished)
    return claimed.get() if is_own_call else None


class ActiveRuns:
    """The active runs of this server."""

    def __init__(self) -> None:
        self._runs: dict[str, ActiveRun] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def ids(self) -> list[str]:
        """Return the run ids."""
        return list(self._runs)

    def find(self, run_id: str) -> ActiveRun | None:
        """Return the active run, or None if this server has no such run."""
        return self._runs.get(run_id)

    @property
    def with_slot(self) -> int:
        """The number of active runs that have a slot."""
        return sum(not run.is_waiting for run in self._runs.values())

    def add(self, run: ActiveRun) -> None:
        """Add a run whose task is started. The end of the task removes the run."""
        self._runs[run.run_id] = run
        run.task.add_done_callback(lambda _: self._runs.pop(run.run_id, None))

    def stop(self, run_id: str, stop: Stop) -> None:
        """Stop a run. Do nothing if this server has no such active run."""
        run = self._runs.get(run_id)
        if run is not None:
            run.stop(stop)

    def stop_all(self, stop: Stop) -> None:
        """Stop all active runs of this server. Do not wait for their ends."""
        for run in tuple(self._runs.values()):
            run.stop(stop)

    async def wait(self, seconds: float) -> None:
        """Wait until no run is active, but at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self._runs and (seconds_left := deadline - time.monotonic()) > 0:
            await asyncio.wait({run.task for run in self._runs.values()}, timeout=seconds_left)

    async def wait_for_all(self) -> None:
        """Wait without a time limit until all runs that are active now have ended. Ignore their errors."""
        await asyncio.gather(*(run.task for run in self._runs.values()), return_exceptions=True)
