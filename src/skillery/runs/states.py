"""The state of a run, for the caller that started it: while the code runs, and after the run has ended."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from skillery.backends import FailureType, Identity, Progress
from skillery.database import in_utc
from skillery.errors import RunNotFound, TaskNotFound
from skillery.runs.log_sources import LogSource
from skillery.runs.queries import find_run, record_of, result_in
from skillery.runs.results import RunError, Status, if_set

LAST_LINE_BYTES = 1024
LAST_LINE_CHARACTERS = 200
# Programs that draw a progress bar end each state of the bar with a carriage return, which is displayed escaped.
_LINE_ENDS = re.compile(r"\n|\\x0d")


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run."""

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
    """Return the state of a run. Raise TaskNotFound if the identity did not start such a run, even for an admin."""
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
    """Return the text of the progress and the last line of the log in one line."""
    text = progress.text if progress is not None else ""
    return ": ".join(part for part in (text, line) if part)


async def last_line(source: LogSource) -> str:
    """Return the last line of a log that is not blank, or "" if there is none. At most 200 characters."""
    part = await source.read(max(0, source.end - LAST_LINE_BYTES), LAST_LINE_BYTES)
    lines = [line.strip() for line in _LINE_ENDS.split(part.text) if line.strip()]
    return lines[-1][:LAST_LINE_CHARACTERS] if lines else ""


def _end_message(summary: str, error: RunError | None) -> str:
    return error.message or error.type if error is not None else summary


def _times(row: Row[Any]) -> tuple[datetime, datetime]:
    """Return the time at which the run was recorded, and the time of its last change."""
    created_at = in_utc(row.started_at)
    assert created_at is not None
    return created_at, in_utc(row.finished_at or row.begun_at) or created_at


def _absent(run_id: str) -> TaskNotFound:
    return TaskNotFound(
        f"there is no task '{run_id[:80]}'",
        hint="A task is a run that the same caller has started. Tasks are deleted after their ttlMs.",
        task_id=run_id[:80],
    )
