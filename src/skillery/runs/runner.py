"""execute_skill, call_tool and run_code: from a request to a recorded run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

from skillery.backends import Capability, Identity, Limits, Log, Outcome
from skillery.contents.blobs import Blobs
from skillery.context.queue import until_client_gone
from skillery.context.tallies import Histogram
from skillery.database import Database
from skillery.errors import Unavailable
from skillery.registry.version_rows import VersionRow
from skillery.runs.active_run import (
    CALLER_ENDED,
    CLIENT_GONE,
    SERVER_STOPPED,
    ActiveRun,
    ActiveRuns,
    Stopped,
    begun_runs,
)
from skillery.runs.admission import Admission
from skillery.runs.ended_runs import Cancellation, Polling
from skillery.runs.execution import Execution
from skillery.runs.followed_runs import Following
from skillery.runs.live_output import marked
from skillery.runs.preparation import Prepared, Preparer
from skillery.runs.records import Recorder
from skillery.runs.relay import Relay
from skillery.runs.rendering import (
    Rendered,
    answer_after,
    answer_at_start,
    answer_within,
    render,
    stub_answer,
    tool_answer,
)
from skillery.runs.requests import CallTool, ExecuteSkill, RunCode
from skillery.runs.results import EndStatus, Run, ToolResult
from skillery.runs.run_host import CalledHost, Calls, Host
from skillery.runs.trials import Trial, TrialResult
from skillery.workspaces.usage import RunWorkspaces


class Runner:
    """Runs skills and code, each in a fresh sandbox, and records every run."""

    def __init__(
        self,
        *,
        database: Database,
        server: str,
        blobs: Blobs,
        preparer: Preparer,
        admission: Admission,
        execution: Execution,
        recorder: Recorder,
        workspaces: RunWorkspaces,
    ) -> None:
        """`server` is the id of this server."""
        self._server = server
        self._workspaces = workspaces
        self._blobs = blobs
        self._preparer = preparer
        self._admission = admission
        self._execution = execution
        self._recorder = recorder
        self._active = ActiveRuns()
        self.cancellation = Cancellation(database, server, self._active)
        self._relay = Relay(database, server, self._active)
        self._polling = Polling(self._active, [self.cancellation.stop_cancelled, self._relay.look])
        self.following = Following(database, blobs, self._active)

    async def execute_skill(self, identity: Identity, request: ExecuteSkill) -> Run:
        """Run a skill and return the answer. A failed run has an answer too.

        Raise SkilleryError only if the run could not be started, or if its end could not be recorded.
        """
        return await self._answer(identity, await self._preparer.skill(identity, request), request.background)

    async def call_tool(self, identity: Identity, request: CallTool) -> ToolResult:
        """Run the handler of a tool and return its result for an agent.

        A tool without a handler starts no run: its result tells the agent to read the instructions.
        """
        tool = await self._preparer.find_tool(identity, request)
        if tool.script is None:
            return stub_answer(tool)
        prepared = await self._preparer.tool(identity, request, tool, tool.script)
        return tool_answer(await self._answer(identity, prepared, request.background))

    async def run_code(self, identity: Identity, request: RunCode) -> Run:
        """Run the code of the request and return the answer, like `execute_skill`."""
        return await self._answer(identity, await self._preparer.code(identity, request), request.background)

    async def try_skill(self, identity: Identity, trial: Trial) -> TrialResult:
        """Run the files of a trial and return the outcome. The run is recorded like any other.

        Raise Busy if the queue is full, and Unavailable if the server is stopping.
        """
        prepared = await self._preparer.trial(identity, trial)
        return TrialResult(prepared.job.run_id, (await self._run(identity, prepared)).outcome)

    async def has(self, capability: Capability) -> bool:
        """Return whether the sandbox has the capability. Return False if the sandbox cannot be started."""
        return await self._execution.has(capability)

    async def secrets_problem(self, skill: str, declared: Sequence[str]) -> str:
        """Return why a run of the skill would not get its secrets, or ""."""
        return await self._execution.secrets_problem(skill, declared)

    @property
    def default_limits(self) -> Limits:
        """The limits of a run if neither its skill nor its caller sets limits."""
        return self._preparer.default_limits

    @property
    def active(self) -> int:
        """The number of active runs that have a slot."""
        return self._active.with_slot

    @property
    def waiting(self) -> int:
        """The number of runs in the queue."""
        return self._admission.waiting

    @property
    def has_room(self) -> bool:
        """Whether a run would have a slot at once."""
        return self._admission.has_room()

    @property
    def waits(self) -> Histogram:
        """The times that runs have waited for a slot."""
        return self._admission.waits

    @property
    def ended(self) -> Counter[tuple[str, str]]:
        """The number of ended runs since this server started, by method and status."""
        return self._recorder.ended

    def active_ids(self) -> list[str]:
        """Return the ids of the runs of this server that have not ended."""
        return self._active.ids()

    async def close(self, grace_seconds: float) -> None:
        """Wait up to `grace_seconds` for the active runs to end. Then stop and record those that have not ended, and
        admit no more.
        """
        self.following.close()
        await self._active.wait(grace_seconds)
        self._admission.close()
        self._active.stop_all(SERVER_STOPPED)
        await self._active.wait_for_all()
        self._polling.close()

    # -- one run -----------------------------------------------------------------------------------------------------

    async def _answer(self, identity: Identity, prepared: Prepared, in_background: bool) -> Run:
        """Start the run. Return its answer at its end, at once if `in_background`, or after the seconds of
        `answer_within`.
        """
        if in_background:
            return await self._begin(identity, prepared)
        seconds = answer_within.get()
        if seconds is not None:
            run = self._new_run(identity, prepared)
            return await answer_after(run, self._start(run), seconds)
        return (await self._run(identity, prepared)).answer

    async def _begin(self, identity: Identity, prepared: Prepared) -> Run:
        """Start a run in the background. Return the answer when the run has a record.

        Raise SkilleryError if the run is refused: no code was executed then. If the client disconnects, the run
        continues.
        """
        waits_for_client = until_client_gone.set(None)
        try:
            run = self._new_run(identity, prepared, in_background=True)
            task = self._start(run)
        finally:
            until_client_gone.reset(waits_for_client)
        return await answer_at_start(run, task)

    async def _run(self, identity: Identity, prepared: Prepared) -> Rendered:
        """Execute a run and return its outcome and answer at its end.

        If the caller disconnects, a run with a slot continues and is recorded, but a waiting run is stopped.
        """
        run = self._new_run(identity, prepared)
        task = self._start(run)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if run.is_waiting:
                run.stop(CLIENT_GONE)
            raise

    def _new_run(self, identity: Identity, prepared: Prepared, *, in_background: bool = False) -> ActiveRun:
        """Return an active run that is not started, with a slot if one is free now."""
        host = Host(self._blobs, identity, prepared.job)
        run = ActiveRun(prepared, identity, self._server, host, in_background=in_background)
        if prepared.stubs:
            host.calls = Calls(prepared.stubs, prepared.job.limits, partial(self._run_called, run, host))
        # A run waits for its packages and its workspace first.
        if prepared.workspace is None and prepared.waiting is None:
            run.slot = self._admission.take_free_slot()
        run_ids = begun_runs.get()
        if run_ids is not None:
            run_ids.append(run.run_id)
        return run

    async def _run_called(
        self, caller: ActiveRun, host: Host, version: VersionRow, function: str, args: bytes, left_ms: int
    ) -> Outcome:
        """Run `function` of a skill that the code of the run `caller` calls, and return the outcome.

        `host` is the host of the caller. If the run of the caller is stopped, the called run is stopped too. Raise
        Unavailable if the server is stopping.
        """
        if self._admission.is_closed:
            raise Unavailable("the server is stopping")
        prepared = await self._preparer.called(caller.identity, caller.job, version, function, args, left_ms)
        called_host = CalledHost(host, prepared.job)
        run = ActiveRun(prepared, caller.identity, self._server, called_host)
        if prepared.stubs:
            called_host.calls = Calls(prepared.stubs, prepared.job.limits, partial(self._run_called, run, host))
        task = self._start(run)
        try:
            outcome = (await asyncio.shield(task)).outcome
        except asyncio.CancelledError:
            run.stop(CALLER_ENDED)
            await asyncio.wait({task})
            raise
        host.live.note(marked(outcome.log, version.name))
        return outcome

    def _start(self, run: ActiveRun) -> asyncio.Task[Rendered]:
        """Start the task of a run, and add the run to the active runs."""
        task = run.start(self._complete(run))
        self._active.add(run)
        self._polling.watch()
        # The server may have begun to stop while the run was prepared.
        if self._admission.is_closed:
            run.stop(SERVER_STOPPED)
        return task

    async def _complete(self, run: ActiveRun) -> Rendered:
        """Admit, execute, render and record a run. Return its outcome and answer.

        At the end, also after an error, release the slot and the workspace, and wake the readers of the log.
        """
        log: Log | None = None
        status: EndStatus = "failed"
        is_recorded = False
        try:
            outcome = await self._outcome(run)
            if run.workspace is not None:
                await run.workspace.settle(self._workspaces.quotas, outcome.failure.type if outcome.failure else None)
            rendered = await render(run, outcome)
            await self._relay.finish(run)
            rendered = await self._recorder.finish(run, rendered)
            is_recorded = True
            log, status = rendered.outcome.log, rendered.answer.end_status
            return rendered
        finally:
            run.leave_slot()
            if run.workspace is not None:
                run.workspace.close()
            # The record of the end also releases the workspace, if the run has taken it.
            if run.prepared.workspace is not None and (not is_recorded or run.workspace is None):
                await self._workspaces.release(run.run_id, run.prepared.workspace)
            run.live.finish(log, status)

    async def _outcome(self, run: ActiveRun) -> Outcome:
        """Return the outcome of a run. A stopped run has an outcome too, because each admitted run is recorded."""
        try:
            await self._admission.admit(run)
            return await self._execution.execute(run)
        except Stopped as stopped:
            return run.stopped_outcome(stopped.stop)
