"""execute_skill, call_tool and run_code: from a prepared run to a recorded one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from skillery.backends import (
    Capability,
    CodeCall,
    Events,
    Failure,
    FailureType,
    FinishedRun,
    Identity,
    Job,
    Log,
    Outcome,
    Sandbox,
    ScriptCall,
)
from skillery.contents.blobs import Blobs, output_files
from skillery.context.queue import Place, Queue
from skillery.database import Database
from skillery.environments import Environments
from skillery.environments.named import NamedEnvironments
from skillery.errors import QuotaExceeded, RunEnded, RunNotFound, SkilleryError, Unavailable
from skillery.identity.idempotency import claimed
from skillery.identity.quotas import Quotas
from skillery.registry import VersionRow
from skillery.runs.answering import (
    error_of,
    large_output,
    logs_preview,
    small_output,
    summary_of,
    whole_log,
)
from skillery.runs.cache import Cache
from skillery.runs.calling import CalledHost, Calls
from skillery.runs.granted_secrets import GrantedSecrets
from skillery.runs.hosting import Host
from skillery.runs.limits import LimitRules
from skillery.runs.outcomes import Outcomes
from skillery.runs.preparing import Prepared, Preparer
from skillery.runs.reading import get_run
from skillery.runs.recording import NewRun, begin_run, drop_run, finish_run, start_run
from skillery.runs.requests import CodeRequest, SkillRequest
from skillery.runs.results import ExactSkill, Run, RunRecord, ToolResult, if_set
from skillery.runs.scripts import fitting, script_summary
from skillery.runs.stopping import CALLER_ENDED, Stopped, Stopper, Stoppers, begun_runs, cancelled_by, request_cancel
from skillery.runs.tool_calls import ToolRequest, stub_result, tool_result
from skillery.runs.trying import Trial, Tried, Unpublished

log = logging.getLogger(__name__)
SERVER_STOPPED = Failure(FailureType.SANDBOX_ERROR, "the server was stopped while this ran")
CLIENT_GONE = Failure(FailureType.CANCELLED, "whoever asked for it went away while it waited for a place")
END_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)
"""Seconds between the tries to record how a run ended, where the database is away."""
CANCEL_SECONDS = 10.0
CANCEL_LOOK_SECONDS = 0.05
WAITED_MS = 5.0
"""A wait for packages that is shorter is not told."""
QUEUED_SECONDS = 0.2
"""A run that waits for a place longer than this is on record meanwhile, to be seen and cancelled."""


class _Recorded(NamedTuple):
    outcome: Outcome
    answer: Run


class _Turn(NamedTuple):
    """What became of a run that wanted a place: it got one, or why not."""

    place: Place | None
    on_record: bool = False
    error: Stopped | SkilleryError | None = None


class Runner:
    """Runs skills and code, each in a fresh sandbox, and records every run."""

    def __init__(
        self,
        *,
        database: Database,
        blobs: Blobs,
        cache: Cache,
        sandbox: Sandbox,
        sandbox_name: str,
        secrets: GrantedSecrets,
        events: Events,
        limits: LimitRules,
        queue: Queue,
        quotas: Quotas,
        server: str,
        environments: Environments,
        named: NamedEnvironments,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._sandbox = sandbox
        self._preparer = Preparer(database, cache, limits, environments, named)
        self._outcomes = Outcomes(sandbox, sandbox_name, secrets)
        self._events = events
        self._queue = queue
        self._quotas = quotas
        self._server = server
        self._active: set[asyncio.Task[_Recorded]] = set()
        self._waiting: set[str] = set()
        """Those of them that have no place yet."""
        self._stoppers = Stoppers(database, server)
        self._closed = False
        self.ended: Counter[tuple[str, str]] = Counter()
        """Runs that have ended, by method and status."""

    @property
    def active(self) -> int:
        """How many have their place."""
        return len(self._active) - len(self._waiting)

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    async def execute_skill(self, identity: Identity, request: SkillRequest) -> Run:
        """The run, as the protocol answers it. Raises SkilleryError only for what stands against starting it."""
        return (await self._run(identity, await self._preparer.skill(identity, request))).answer

    async def call_tool(self, identity: Identity, request: ToolRequest) -> ToolResult:
        """A fresh run of the tool's handler, as an agent is answered; of a tool without a handler no run at all."""
        tool = await self._preparer.find_tool(identity, request)
        if tool.script is None:
            return stub_result(tool)
        prepared = await self._preparer.tool(identity, request, tool, tool.script)
        return tool_result((await self._run(identity, prepared)).answer)

    async def run_code(self, identity: Identity, request: CodeRequest) -> Run:
        """As execute_skill, for code that came with the request."""
        return (await self._run(identity, await self._preparer.code(identity, request))).answer

    async def try_skill(self, identity: Identity, trial: Trial) -> Tried:
        """As execute_skill, for files that are no version yet. Raises Busy, Unavailable."""
        prepared = await self._preparer.trial(trial)
        return Tried(prepared.job.run_id, (await self._run(identity, prepared)).outcome)

    async def has(self, capability: Capability) -> bool:
        """Whether the sandbox can do that here; False where it cannot be started."""
        try:
            await self._sandbox.start()
        except SkilleryError:
            return False
        return capability in self._sandbox.capabilities

    async def close(self, grace_seconds: float) -> None:
        """Let the runs under way finish, up to a grace period; kill and record the rest, and start no more."""
        deadline = time.monotonic() + grace_seconds
        while self._active and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._active, timeout=left)
        self._closed = True
        self._stoppers.stop_all(SERVER_STOPPED)
        await asyncio.gather(*self._active, return_exceptions=True)
        self._stoppers.close()

    def under_way(self) -> list[str]:
        """The ids of the runs that this server works on."""
        return self._stoppers.ids()

    async def cancel_run(self, identity: Identity, run_id: str) -> RunRecord:
        """Stop a run, on whichever server of this database it is: the run as it ended, or as it is where that takes
        long. Raises RunNotFound, RunEnded."""
        await self._database.write(partial(request_cancel, identity=identity, run_id=run_id))
        self._stoppers.stop(run_id, cancelled_by(identity.name))
        until = time.monotonic() + CANCEL_SECONDS
        while True:
            run = await self._database.read(partial(get_run, identity=identity, run_id=run_id))
            if run.finished_at is not None or time.monotonic() > until:
                return run
            await asyncio.sleep(CANCEL_LOOK_SECONDS)

    async def take_back(self, identity: Identity, run_id: str) -> None:
        """Cancel a run of this server that its caller no longer waits for, on record or not; nothing where it ended."""
        try:
            await self.cancel_run(identity, run_id)
        except RunNotFound:
            self._stoppers.stop(run_id, cancelled_by(identity.name))
        except RunEnded:
            return

    # -- the three steps -----------------------------------------------------------------------------------------

    async def _run(self, identity: Identity, prepared: Prepared) -> _Recorded:
        """The run goes on and is recorded even where whoever asked for it has gone."""
        if self._closed:
            raise _stopping()
        prepared = prepared.asked_by(identity)
        run = self._new_run(identity, prepared)
        begun = begun_runs.get()
        if begun is not None:
            begun.append(run.run_id)
        host = Host(self._blobs, identity, prepared.job)
        if prepared.stubs:
            call = partial(self._run_called, identity, prepared.job, host)
            host.calls = Calls(prepared.stubs, prepared.job.limits, call)
        stopper = self._stoppers.add(run.run_id)
        task = self._begin(self._in_its_turn(run, prepared, host, stopper, self._queue.enter_now()), run.run_id)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if run.run_id in self._waiting:
                stopper.stop(CLIENT_GONE)
            raise

    def _begin(self, work: Coroutine[Any, Any, _Recorded], run_id: str) -> asyncio.Task[_Recorded]:
        task = asyncio.create_task(work)
        self._active.add(task)
        task.add_done_callback(partial(self._ended, run_id))
        return task

    def _ended(self, run_id: str, task: asyncio.Task[_Recorded]) -> None:
        self._active.discard(task)
        self._stoppers.discard(run_id)

    async def _in_its_turn(
        self, run: NewRun, prepared: Prepared, host: Host, stopper: Stopper, place: Place | None
    ) -> _Recorded:
        turn = _Turn(place) if place else await self._wait_for_place(run, _size(prepared.job), stopper)
        if turn.place is None:
            return await self._unbegun(run, prepared, host, turn)
        try:
            if self._closed:
                return await self._unbegun(run, prepared, host, turn._replace(error=Stopped(SERVER_STOPPED)))
            return await self._run_and_record(run, prepared, host, stopper, on_record=turn.on_record)
        finally:
            turn.place.leave()

    async def _wait_for_place(self, run: NewRun, size: int, stopper: Stopper) -> _Turn:
        """What waits for long is on record meanwhile: it is seen, and can be cancelled, on every server."""
        on_record = False
        entering = asyncio.ensure_future(stopper.wait(self._queue.enter(run.identity.name, size)))
        self._waiting.add(run.run_id)
        try:
            await asyncio.wait({entering}, timeout=QUEUED_SECONDS)
            if not entering.done():
                await self._database.write(partial(start_run, run=run, quotas=self._quotas, queued=True))
                on_record = True
            return _Turn(await entering, on_record)
        except (Stopped, SkilleryError) as error:
            entering.cancel()
            await asyncio.wait({entering})
            if not entering.cancelled() and entering.exception() is None:
                entering.result().leave()
            return _Turn(None, on_record, error)
        finally:
            self._waiting.discard(run.run_id)

    async def _unbegun(self, run: NewRun, prepared: Prepared, host: Host, turn: _Turn) -> _Recorded:
        """The end of a run that never got a place. Whoever cancelled it knows its id: then it is on record and an
        answer; else it is an error, for nothing was run."""
        stopped = turn.error.reason if isinstance(turn.error, Stopped) else None
        if turn.on_record and stopped is not None and stopped not in {SERVER_STOPPED, CLIENT_GONE}:
            return await self._record(run, prepared, host, Outcome(failure=stopped), stopped=True)
        if turn.on_record:
            await self._database.write(partial(drop_run, run_id=run.run_id))
        raise turn.error if isinstance(turn.error, SkilleryError) else _stopping()

    def _new_run(self, identity: Identity, prepared: Prepared) -> NewRun:
        version, parent = prepared.version, prepared.parent_run_id
        return NewRun(
            run_id=prepared.job.run_id,
            method=prepared.method,
            identity=identity,
            server=self._server,
            limits=prepared.job.limits,
            version_id=version.version_id if version else None,
            skill_id=version.skill_id if version else None,
            tool=prepared.tool,
            parent_run_id=parent,
            environment=prepared.environment,
            # The call that publishes is not answered by the runs that try its examples.
            claim=None if parent or isinstance(version, Unpublished) else claimed.get(),
        )

    async def _run_called(
        self, identity: Identity, caller: Job, host: Host, version: VersionRow, function: str, args: bytes, left_ms: int
    ) -> Outcome:
        """A run with the permissions of the called skill alone. It has its caller's place in the queue: waiting for
        another, while the caller holds one, could be for ever. It ends with its caller."""
        if self._closed:
            raise Unavailable("the server is stopping")
        prepared = (await self._preparer.called(identity, caller, version, function, args, left_ms)).asked_by(identity)
        run = self._new_run(identity, prepared)
        stopper = self._stoppers.add(run.run_id)
        work = self._run_and_record(run, prepared, CalledHost(host), stopper, on_record=False)
        task = self._begin(work, run.run_id)
        try:
            return (await asyncio.shield(task)).outcome
        except asyncio.CancelledError:
            stopper.stop(CALLER_ENDED)
            await asyncio.wait({task})
            raise

    async def _run_and_record(
        self, run: NewRun, prepared: Prepared, host: Host | CalledHost, stopper: Stopper, *, on_record: bool
    ) -> _Recorded:
        """What is stopped is the sandbox and nothing else: a run that was begun is always recorded to its end."""
        if on_record:
            await self._database.write(partial(begin_run, run=run))
        else:
            await self._database.write(partial(start_run, run=run, quotas=self._quotas))
        if self._closed:
            stopper.stop(SERVER_STOPPED)
        began = time.monotonic()
        try:
            outcome = await stopper.wait(self._outcomes.outcome(prepared, host))
        except Stopped as stopped:
            outcome = Outcome(failure=stopped.reason, duration_ms=(time.monotonic() - began) * 1000)
            return await self._record(run, prepared, host, outcome, stopped=True)
        return await self._record(run, prepared, host, outcome, stopped=False)

    async def _record(
        self, run: NewRun, prepared: Prepared, host: Host | CalledHost, outcome: Outcome, *, stopped: bool
    ) -> _Recorded:
        try:
            answer = await self._answer(prepared, outcome, host)
        except SkilleryError as error:  # a full disk or a quota, when the output became a blob
            kind = FailureType.QUOTA_EXCEEDED if isinstance(error, QuotaExceeded) else FailureType.SANDBOX_ERROR
            failure = Failure(kind, f"the output could not be stored: {error.message}")
            outcome = msgspec.structs.replace(outcome, result=None, failure=failure)
            answer = await self._answer(prepared, outcome, host)
        answer = await self._with_log(run, outcome.log, answer)
        await self._write_end(run, answer, stopped)
        self.ended[run.method, answer.status] += 1
        await self._events.run_finished(_finished(run.identity, prepared, answer))
        return _Recorded(outcome, answer)

    async def _write_end(self, run: NewRun, answer: Run, stopped: bool) -> None:
        """What has run cannot be run again for want of a database that is away for a moment."""
        work = partial(finish_run, run=run, answer=answer, stopped=stopped)
        for pause in END_PAUSES:
            try:
                await self._database.write(work)
            except Unavailable as error:
                log.warning("the end of %s could not be recorded, once more in %s s: %s", run.run_id, pause, error)
                await asyncio.sleep(pause)
                work = partial(work, again=True)
            else:
                return
        await self._database.write(work)

    async def _with_log(self, run: NewRun, log_: Log, answer: Run) -> Run:
        """The whole log as a blob, named in the answer, where the preview is not all of it. No run fails for want of
        room for its log."""
        whole = whole_log(log_, answer.logs_preview)
        if whole is None:
            return answer
        try:
            row = await self._blobs.keep_beside(run.identity, whole, "text/plain")
        except SkilleryError as error:
            log.warning("the log of %s could not be stored: %s", run.run_id, error.message)
            return answer
        return msgspec.structs.replace(answer, logs_blob=row.id)

    async def _answer(self, prepared: Prepared, outcome: Outcome, host: Host | CalledHost) -> Run:
        output: Any = None
        call, summary = prepared.job.call, None
        if outcome.result is not None and isinstance(call, ScriptCall):
            summary = script_summary(call.path, outcome.result)
            outcome = msgspec.structs.replace(outcome, result=await fitting(outcome.result, host.keep))
        if outcome.result is not None:
            output = small_output(outcome.result)
            if output is None:
                output = large_output(outcome.result, await host.keep(outcome.result, "application/json"))
        version, waited_ms = prepared.version, prepared.waited_ms
        return Run(
            status="failed" if outcome.failure else "completed",
            run_id=prepared.job.run_id,
            summary=summary or summary_of(outcome),
            output=output,
            output_blobs=[blob.id for blob in host.written],
            logs_preview=logs_preview(outcome.log),
            duration_ms=round(outcome.duration_ms, 3),
            error=error_of(outcome.failure) if outcome.failure else UNSET,
            skill=ExactSkill(version.name, version.version, version.digest) if version else UNSET,
            environment=prepared.environment or UNSET,
            waited_for_packages_ms=round(waited_ms, 3) if waited_ms >= WAITED_MS else UNSET,
            degraded=list(outcome.degraded) or UNSET,
            network=list(outcome.network) or UNSET,
            files=output_files(host.written),
        )


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping", hint="Nothing was run. Try again in a moment.")


def _size(job: Job) -> int:
    """Bytes that a job holds while it waits."""
    return len(job.args) + (len(job.call.code) if isinstance(job.call, CodeCall) else 0)


def _finished(identity: Identity, prepared: Prepared, answer: Run) -> FinishedRun:
    version, error = prepared.version, if_set(answer.error)
    return FinishedRun(
        run_id=prepared.job.run_id,
        method=prepared.method,
        status=answer.status,
        skill=version.name if version else None,
        version=version.version if version else None,
        duration_ms=answer.duration_ms,
        error_type=error.type if error else None,
        identity=identity,
        parent_run_id=prepared.parent_run_id,
        tool=prepared.tool,
    )
