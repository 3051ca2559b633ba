"""Admission of a run: wait for a slot, check the quotas of the caller, and insert the row of the run."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from functools import partial

import msgspec
from sqlalchemy import Connection, insert, update

from skillery.backends import CodeCall, Failure, FailureType, LimitsRuns, Sandbox, ScriptCall
from skillery.context.queue import Queue, Slot
from skillery.context.tallies import Histogram
from skillery.database import Change, Database
from skillery.database.tables import run_code, runs
from skillery.errors import SkilleryError, Unavailable
from skillery.identity.idempotency import note_run
from skillery.identity.quotas import Quotas, check_run
from skillery.registry.version_rows import VersionRow
from skillery.runs.active_run import SERVER_STOPPED, ActiveRun, Stop, Stopped
from skillery.runs.log_sources import shown_json
from skillery.runs.scripts import args_of
from skillery.runs.trials import Unpublished
from skillery.workspaces.usage import RunWorkspaces

log = logging.getLogger(__name__)
_STARTED = (
    "id",
    "parent_run_id",
    "method",
    "version_id",
    "skill_id",
    "tool",
    "script",
    "check_of",
    "status",
    "identity",
    "identity_kind",
    "client",
    "server",
    "limits_json",
    "args_json",
    "started_at",
    "queued",
    "environment_json",
    "progress_json",
)
_START = Change(insert(runs), _STARTED)
_limits = msgspec.json.Encoder()

_KEEP_CODE = Change(insert(run_code), ("run_id", "language", "entrypoint", "code", "is_cut"))
KEPT_CODE = 64 * 1024
"""Bytes of the code of `run_code` that are kept with the record of a run."""
KEPT_ARGS = 16 * 1024
"""Bytes of the args of a run that are kept with its record. Larger args are not kept."""

WAITS = (0.1, 0.5, 1, 5, 10, 30, 60, 300)
"""The upper bounds of the histogram of waits for a slot, in seconds."""
QUEUED_SECONDS = 0.2
"""A run that waits longer than this gets a record with the status queued, so that callers can see and cancel it."""

BACKGROUND_SECONDS = 0.02
"""Like QUEUED_SECONDS, for a run in the background. Its caller waits only for the record, or for the error of a full
queue.
"""


class Admission:
    """Admits runs in the order of the queue, until the server stops."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        quotas: Quotas,
        workspaces: RunWorkspaces,
        sandbox: Sandbox,
        *,
        keeps_code: bool,
    ) -> None:
        self._keeps_code = keeps_code
        self._limits_runs = sandbox if isinstance(sandbox, LimitsRuns) else None
        self._workspaces = workspaces
        self._database = database
        self._queue = queue
        self._quotas = quotas
        self.is_closed = False
        self.waits = Histogram(WAITS)
        """The times that runs have waited for a slot."""

    @property
    def waiting(self) -> int:
        """The number of runs in the queue."""
        return self._queue.waiting

    def has_room(self) -> bool:
        """Return whether a run would have a slot at once."""
        return not self.is_closed and self._queue.has_room()

    def close(self) -> None:
        """Admit no more runs. The server calls this when it stops."""
        self.is_closed = True

    def take_free_slot(self) -> Slot | None:
        """Return a slot at once, or None if all slots are taken. Raise Unavailable if the server is stopping."""
        if self.is_closed:
            raise _stopping()
        slot = self._queue.enter_now()
        if slot is not None:
            self.waits.note(0.0)
        return slot

    async def admit(self, run: ActiveRun) -> None:
        """Wait for a slot and record the start of the run. The caller then executes the run.

        Raise Busy if the queue or the sandbox is full, RateLimited if the run would exceed a quota of the caller,
        WorkspaceHeld if another run holds the workspace too long, and Unavailable if the server is stopping, the client
        has disconnected or the sandbox is unavailable. The run then has no record, and no code was executed.

        Raise Stopped if a run with a record was cancelled, or if a run in the background was stopped or cannot start.
        The record then stays.
        """
        # A called run uses the slot of the run that calls it. With separate slots, all slots could belong to runs that
        # wait for called runs, which would then never start.
        if run.prepared.parent_run_id is None:
            await self._take_turn(run)
        elif run.prepared.waiting is not None:
            await run.until_stopped(run.wait_for_packages())
        if run.is_on_record:
            async with run.progress_lock:
                await self._database.write(partial(begin_run, run=run))
        else:
            # A single statement needs no transaction of its own, which is faster.
            write = self._database.write if self._writes_more(run) else self._database.write_statement
            await write(partial(start_run, run=run, quotas=self._quotas, keeps_code=self._keeps_code))
            run.is_on_record = True
        run.announce()

    def _writes_more(self, run: ActiveRun) -> bool:
        """Return whether the transaction of the start has more statements than the INSERT of the run."""
        has_code = self._keeps_code and isinstance(run.job.call, CodeCall)
        return has_code or run.claim is not None or self._quotas.of(run.identity.name).limits_runs

    async def _take_turn(self, run: ActiveRun) -> None:
        """Give the run a slot, and check that the sandbox has room. Raise the errors of `admit`.
        The record of a queued run is deleted unless its caller may know the run id.
        """
        try:
            if run.slot is None:
                run.slot = await self._wait_for_slot(run)
            if self.is_closed:
                raise Stopped(SERVER_STOPPED)
            if self._limits_runs is not None:
                self._limits_runs.check_room(run.job)
        except Stopped as stopped:
            # A run whose id the caller knows stays on record: it was cancelled, or it is in the background.
            if run.is_on_record and (stopped.stop.by_request or run.in_background):
                raise
            await self._drop(run)
            raise _stopping() from None
        except SkilleryError as error:
            if run.is_on_record and run.in_background:
                raise Stopped(Stop(Failure(FailureType.SANDBOX_ERROR, f"was not started: {error.message}"))) from None
            await self._drop(run)
            raise

    async def _wait_for_slot(self, run: ActiveRun) -> Slot:
        """Return a slot. If this takes longer than QUEUED_SECONDS or BACKGROUND_SECONDS, record the run as queued.

        Raise Stopped if the run is stopped, and the errors of the queue and of the workspace.
        """
        waiting = asyncio.ensure_future(run.until_stopped(self._enter(run)))
        run.is_waiting = True
        try:
            await asyncio.wait({waiting}, timeout=BACKGROUND_SECONDS if run.in_background else QUEUED_SECONDS)
            if not waiting.done():
                await self._record(run)
            return await waiting
        except (Stopped, SkilleryError):
            await _give_up(waiting)
            raise
        finally:
            run.is_waiting = False

    async def _record(self, run: ActiveRun) -> None:
        """Record the run as queued, with the packages that it waits for."""
        progress = run.live.shown
        await self._database.write(
            partial(
                start_run,
                run=run,
                quotas=self._quotas,
                keeps_code=self._keeps_code,
                queued=True,
                progress=shown_json(progress),
            )
        )
        run.is_on_record = True
        run.announce()
        if progress is not None and run.live.shown is None:
            await self._clear_progress(run)

    async def _clear_progress(self, run: ActiveRun) -> None:
        """Record that the run waits for its packages no longer, for other servers."""
        try:
            async with run.progress_lock:
                await self._database.write(partial(clear_progress, run_id=run.run_id))
        except SkilleryError as error:  # the start of the run clears it too
            log.debug("the end of the wait for packages of %s is not recorded: %s", run.run_id, error.message)

    async def _enter(self, run: ActiveRun) -> Slot:
        """Wait for the packages of the run, then for its workspace, then for a slot: a run that waits for an
        installation or for another run takes no slot.
        """
        if run.prepared.waiting is None:
            return await self._enter_line(run)
        # The place stays held until the run has its slot: a full queue must not refuse a run that has waited already.
        with self._queue.place(run.queued_bytes) as arrival:
            await run.wait_for_packages()
            if run.is_on_record:
                await self._clear_progress(run)
            return await self._enter_line(run, arrival)

    async def _enter_line(self, run: ActiveRun, arrival: float | None = None) -> Slot:
        """Wait for the workspace of the run, then for a slot. `arrival` is that of a place which the run holds."""
        target = run.prepared.workspace
        if target is not None:
            # A function, because a run may become a run in the background while it waits.
            taking = self._workspaces.take(run.identity, target, run.run_id, lambda: run.in_background)
            run.workspace = await taking
        begun = time.monotonic()
        slot = await self._queue.enter(run.identity.name, run.queued_bytes, arrival)
        self.waits.note(time.monotonic() - begun)
        return slot

    async def _drop(self, run: ActiveRun) -> None:
        """Delete the record of a run that never started, if the run has a record."""
        if run.is_on_record:
            await self._database.write(partial(drop_run, run_id=run.run_id))


async def _give_up(waiting: asyncio.Future[Slot]) -> None:
    """Cancel the wait for a slot. If the run has just got a slot, give the slot back."""
    waiting.cancel()
    await asyncio.wait({waiting})
    if not waiting.cancelled() and waiting.exception() is None:
        waiting.result().leave()


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping", hint="Nothing was run. Try again in a few seconds.")


# -- the row of a run ------------------------------------------------------------------------------------------------


def start_run(
    connection: Connection,
    run: ActiveRun,
    *,
    quotas: Quotas,
    keeps_code: bool,
    queued: bool = False,
    progress: str | None = None,
) -> None:
    """Insert the row of a run, with the state queued or started, and its code. `progress` is the JSON of a Shown.

    Raise RateLimited if the run would exceed a quota of the caller. A called run counts as a part of the calling run,
    so it is not checked.
    """
    prepared, version = run.prepared, run.prepared.version
    version_id, skill_id = version.stored_ids if version else (None, None)
    if prepared.parent_run_id is None:
        check_run(connection, quotas, run.identity.name)
    call, args = run.job.call, args_of(run.job)
    if keeps_code and isinstance(call, CodeCall):
        content = call.code.replace("\0", "\ufffd").encode("utf-8", "replace")
        _KEEP_CODE.run_later(
            connection,
            run_id=run.run_id,
            language=call.language,
            entrypoint=call.function[:255],
            code=content[:KEPT_CODE].decode("utf-8", "ignore"),
            is_cut=len(content) > KEPT_CODE,
        )
    _START.run(
        connection,
        id=run.run_id,
        parent_run_id=prepared.parent_run_id,
        method=prepared.method,
        version_id=version_id,
        skill_id=skill_id,
        tool=prepared.tool,
        script=_script_of(call),
        check_of=_check_of(prepared.version),
        status="started",
        identity=run.identity.name,
        identity_kind=run.identity.kind,
        client=run.client,
        server=run.server,
        limits_json=_limits.encode(run.job.limits).decode(),
        args_json=args.decode() if len(args) <= KEPT_ARGS else None,
        started_at=datetime.now(UTC),
        queued=queued,
        environment_json=_environment_of(run),
        progress_json=progress,
    )
    if run.claim is not None and not queued:
        note_run(connection, run.claim, run.run_id)


def _script_of(call: object) -> str | None:
    if not isinstance(call, ScriptCall):
        return None
    return f"-m {call.module}"[:255] if call.module else call.path


def _check_of(version: VersionRow | Unpublished | None) -> str | None:
    return f"{version.name}@{version.version}" if isinstance(version, Unpublished) else None


def _environment_of(run: ActiveRun) -> str | None:
    environment = run.prepared.environment
    return msgspec.json.encode(environment).decode() if environment else None


def begin_run(connection: Connection, run: ActiveRun) -> None:
    """Record that a queued run got its slot."""
    began = update(runs).where(runs.c.id == run.run_id)
    environment = _environment_of(run)
    values = {"queued": False, "begun_at": datetime.now(UTC), "progress_json": None, "environment_json": environment}
    connection.execute(began.values(values))
    if run.claim is not None:
        note_run(connection, run.claim, run.run_id)


def clear_progress(connection: Connection, run_id: str) -> None:
    """Remove the progress of a run from its row."""
    connection.execute(update(runs).where(runs.c.id == run_id).values(progress_json=None))


def drop_run(connection: Connection, run_id: str) -> None:
    """Delete the row of a queued run that never started, and its code."""
    connection.execute(run_code.delete().where(run_code.c.run_id == run_id))
    connection.execute(runs.delete().where(runs.c.id == run_id))
