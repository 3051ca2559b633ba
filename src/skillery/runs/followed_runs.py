"""Following a run: reading its log, its progress and its end, on any server of the database."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from skillery.backends import FailureType, Identity, Progress
from skillery.contents.blob_rows import BlobRow, find_blob
from skillery.contents.blobs import Blobs
from skillery.context.queue import until_client_gone
from skillery.database import Database, in_utc
from skillery.errors import RunNotFound, TaskNotFound
from skillery.identity import access
from skillery.runs.active_run import ActiveRuns
from skillery.runs.live_output import LogPart, logs_preview
from skillery.runs.log_sources import EndedRun, FollowedRun, LocalRun, LogSource, StoredLog
from skillery.runs.queries import find_run, get_run, record_of, result_in
from skillery.runs.relay import RemoteRuns
from skillery.runs.results import RunError, RunLog, RunRecord, Status, if_set, waiting_for

# -- The state of a run, for the caller that started it: while the code runs, and after the run has ended --------------


LAST_LINE_BYTES = 1024
LAST_LINE_CHARACTERS = 200
# Programs that draw a progress bar end each state of the bar with a carriage return, which is displayed escaped.
_LINE_ENDS = re.compile(r"\n|\\x0d")


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run, as its caller polls it."""

    run_id: str
    method: str
    status: Status
    is_cancelled: bool
    created_at: datetime
    changed_at: datetime
    """The time of the last change of the status."""
    message: str
    """The progress and the last line of the log while the code runs, then the summary or the error."""
    has_ended: bool
    answer: msgspec.Raw
    """The answer of the method as JSON, or `null` if the run has not ended."""


def find_state(connection: Connection, *, identity: Identity, run_id: str) -> RunState:
    """Return the state of a run that `identity` has started.

    Raise TaskNotFound for any other run, also if the identity is an admin.
    """
    try:
        row = find_run(connection, identity, run_id)
    except RunNotFound:
        raise _absent(run_id) from None
    if row.identity != identity.name or row.parent_run_id is not None:
        raise _absent(run_id)
    # From the same row as the status: the run may end between two reads.
    answer = result_in(connection, row)
    record = record_of(connection, row)
    error = if_set(record.error)
    created_at, changed_at = _times(row)
    return RunState(
        run_id=run_id,
        method=row.method,
        status=record.status,
        is_cancelled=error is not None and error.type == FailureType.CANCELLED,
        created_at=created_at,
        changed_at=changed_at,
        message=_end_message(record.summary, error) if answer else progress_message(if_set(record.progress), ""),
        has_ended=answer is not None,
        answer=msgspec.Raw(answer.encode() if answer else b"null"),
    )


def progress_message(progress: Progress | None, line: str) -> str:
    """Return `TEXT: LINE`, the text of the progress and the last log line. An empty part is omitted."""
    text = progress.text if progress is not None else ""
    return ": ".join(part for part in (text, line) if part)


async def last_line(source: LogSource) -> str:
    """Return the last line of a log that is not blank, at most LAST_LINE_CHARACTERS of it, or "" if there is none."""
    part = await source.read(max(0, source.end - LAST_LINE_BYTES), LAST_LINE_BYTES)
    lines = [line.strip() for line in _LINE_ENDS.split(part.text) if line.strip()]
    return lines[-1][:LAST_LINE_CHARACTERS] if lines else ""


def _end_message(summary: str, error: RunError | None) -> str:
    """Return the message of the error, or the summary if there is no error."""
    return error.message or error.type if error is not None else summary


def _times(row: Row[Any]) -> tuple[datetime, datetime]:
    """Return two times of a run in UTC: of its record, and of the last change of its status."""
    created_at = in_utc(row.started_at)
    assert created_at is not None
    return created_at, in_utc(row.finished_at or row.begun_at) or created_at


def _absent(run_id: str) -> TaskNotFound:
    return TaskNotFound(
        f"there is no task '{run_id[:80]}'",
        hint="A task is a run that the same caller has started. Tasks are deleted after their ttlMs.",
        task_id=run_id[:80],
    )


FOLLOWED_SECONDS = 3.0
"""How long a run is followed after a call of `Following.state`, or of `Following.get_run` for a run that waits for
packages. So the next call has the last log line, or the progress of the packages.
"""


class Followed:
    """A run that one caller follows. The owner must call `close`."""

    def __init__(self, source: LogSource, closing: asyncio.Event, leave: Callable[[], None] = lambda: None) -> None:
        """`closing` is set when the server stops. `leave` is called by `close`."""
        self.source = source
        self._closing = closing
        self.close = leave

    async def part(self, after: int, size: int, seconds: float) -> LogPart:
        """Return at most `size` bytes of the log from the offset `after`.

        If there are no such bytes, wait up to `seconds` for them. The part is empty if none arrive.
        """
        deadline = time.monotonic() + seconds
        while True:
            changed = self.source.changed()
            part = await self.source.read(after, size)
            if part.next > after or self.source.has_ended or not await self._wait_until(changed, deadline):
                changed.cancel()
                return part

    async def until_ended(self, seconds: float) -> None:
        """Wait up to `seconds` for the end of the run. Return early if the client disconnects or the server stops."""
        await self._wait_until(self.source.ended(), time.monotonic() + seconds)

    async def _wait_until(self, changed: asyncio.Future[None], deadline: float) -> bool:
        """Wait for the future `changed` until the monotonic time `deadline`.

        Return False if the time is over, the client has disconnected or the server stops.
        """
        watch = until_client_gone.get()
        client_gone: asyncio.Future[None] = asyncio.ensure_future(watch()) if watch else asyncio.Future()
        try:
            return await self.wait(changed, client_gone, max(0.0, deadline - time.monotonic())) and changed.done()
        finally:
            changed.cancel()
            client_gone.cancel()

    async def wait(self, changed: asyncio.Future[None], gone: asyncio.Future[Any], seconds: float) -> bool:
        """Wait up to `seconds` for the future `changed`.

        Return False if the future `gone` (of the client) is done or the server stops. After a timeout, return True.
        """
        closing = asyncio.ensure_future(self._closing.wait())
        events: set[asyncio.Future[Any]] = {changed, gone, closing}
        try:
            await asyncio.wait(events, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return not (gone.done() or closing.done())
        finally:
            closing.cancel()


class Following:
    """Reads the logs of runs for callers, and waits for the ends of runs."""

    def __init__(self, database: Database, blobs: Blobs, active: ActiveRuns) -> None:
        self._database = database
        self._blobs = blobs
        self._active = active
        self._remote = RemoteRuns(database)
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all waiting for runs. The server calls this when it stops."""
        self._closing.set()
        self._remote.close()

    async def read_log(self, identity: Identity, run_id: str, *, after: int, max_bytes: int, wait_ms: int) -> RunLog:
        """Return at most `max_bytes` of the log of a run from the offset `after`.

        If there are no such bytes, wait up to `wait_ms` for them.

        Raise RunNotFound if the identity may not see the run or the run does not exist. Raise BlobNotFound if the log
        has expired.
        """
        followed = await self.open(identity, run_id)
        try:
            part = await followed.part(after, max_bytes, wait_ms / 1000)
        finally:
            followed.close()
        source = followed.source
        return RunLog(
            run_id=run_id,
            status=source.status,
            text=part.text,
            start=part.start,
            next=part.next,
            dropped_bytes=max(0, part.start - after),
            ended=source.has_ended and part.next >= source.end,
            progress=source.progress or msgspec.UNSET,
            **waiting_for(source.packages),
        )

    async def get_run(self, identity: Identity, run_id: str, wait_ms: int = 0) -> RunRecord:
        """Return the record of a run when the run has ended, or its present record after `wait_ms`.

        The record of an active run of this server has its log and progress up to now. Raise RunNotFound if the identity
        may not see the run or the run does not exist.
        """
        run = await self._record(identity, run_id)
        if run.finished_at is None and wait_ms:
            followed = await self.open(identity, run_id)
            try:
                await followed.until_ended(wait_ms / 1000)
            finally:
                followed.close()
            run = await self._record(identity, run_id)
        active = self._active.find(run_id)
        if run.finished_at is None and active is None and run.packages:
            # The other server writes the progress only while the run is followed.
            followed = await self.open(identity, run_id)
            asyncio.get_running_loop().call_later(FOLLOWED_SECONDS, followed.close)
        if run.finished_at is not None or active is None:
            return run
        preview, progress = logs_preview(active.live.log()), active.live.progress
        run = msgspec.structs.replace(run, state=msgspec.UNSET, packages=msgspec.UNSET)
        waiting = waiting_for(active.live.packages)
        return msgspec.structs.replace(run, logs_preview=preview, progress=progress or msgspec.UNSET, **waiting)

    async def state(self, identity: Identity, run_id: str) -> RunState:
        """Return the state of a run that this identity has started. Raise TaskNotFound if there is no such run.

        If another server executes the run, this server follows the run from the first call on. So the message of the
        first call may lack the last log line.
        """
        state = await self._database.read(partial(find_state, identity=identity, run_id=run_id))
        if state.has_ended:
            return state
        followed = await self.open(identity, run_id)
        try:
            message = progress_message(followed.source.progress, await last_line(followed.source))
        finally:
            asyncio.get_running_loop().call_later(FOLLOWED_SECONDS, followed.close)
        return msgspec.structs.replace(state, message=message or state.message)

    async def _record(self, identity: Identity, run_id: str) -> RunRecord:
        return await self._database.read(partial(get_run, identity=identity, run_id=run_id))

    async def open(self, identity: Identity, run_id: str) -> Followed:
        """Start to follow a run, on any server. The caller must call `close` of the returned object.

        Raise RunNotFound if the identity may not see the run or the run does not exist. Raise BlobNotFound if its log
        has expired.
        """
        active = self._active.find(run_id)
        if active is not None and (active.identity.name == identity.name or access.is_auditor(identity)):
            return Followed(LocalRun(active), self._closing)
        row, blob = await self._database.read(partial(_run_and_log, identity=identity, run_id=run_id))
        if row.finished_at is not None:
            return Followed(EndedRun(row.status, StoredLog(row, blob, self._blobs)), self._closing)
        remote = self._remote.follow(FollowedRun(row.id, row.status, row.queued, row.progress_json, None))
        return Followed(remote, self._closing, partial(self._remote.leave, run_id))


def _run_and_log(connection: Connection, *, identity: Identity, run_id: str) -> tuple[Row[Any], BlobRow | None]:
    row = find_run(connection, identity, run_id)
    # Auditors read the log as a part of the run, and no other blobs.
    owner = Identity(row.identity)
    blob = find_blob(connection, identity=owner, blob_id=row.logs_blob) if row.logs_blob else None
    return row, blob
