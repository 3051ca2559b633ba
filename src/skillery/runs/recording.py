"""What is written down of a run: a row when it starts, its outcome when it ends. Its blobs have rows as they come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select, update

from skillery.backends import Identity, Limits
from skillery.contents.blobs import leave_blobs
from skillery.database import Change, in_utc
from skillery.database.tables import runs
from skillery.identity.idempotency import Claim, note_run
from skillery.identity.quotas import Quotas, check_run
from skillery.registry.usage import Outcome, count_run
from skillery.runs.packages import GivenEnvironment
from skillery.runs.results import Run, if_set

Method = Literal["execute_skill", "run_code", "call_tool"]


class NewRun(msgspec.Struct, frozen=True):
    run_id: str
    method: Method
    identity: Identity
    server: str
    limits: Limits
    version_id: int | None = None
    skill_id: int | None = None
    tool: str | None = None
    parent_run_id: str | None = None
    environment: GivenEnvironment | None = None
    claim: Claim | None = None
    """Of the call that is to be made only once, and becomes this run."""


_STARTED = (
    "id",
    "parent_run_id",
    "method",
    "version_id",
    "skill_id",
    "tool",
    "status",
    "identity",
    "identity_kind",
    "server",
    "limits_json",
    "started_at",
    "queued",
    "environment_json",
)
_FINISHED = (
    "status",
    "summary",
    "output_json",
    "error_json",
    "logs_preview",
    "logs_blob",
    "duration_ms",
    "degraded_json",
    "network_json",
    "finished_at",
)
_START = Change(insert(runs), _STARTED)
_FINISH = Change(update(runs).where(runs.c.id == bindparam("run_id")), _FINISHED)
_limits = msgspec.json.Encoder()


def start_run(connection: Connection, run: NewRun, *, quotas: Quotas, queued: bool = False) -> None:
    """Put it on record. Raises RateLimited, and then it is not: for a run that its identity started itself, where those
    are as many as they may be. Runs that the code of a run calls are its own."""
    if run.parent_run_id is None:
        check_run(connection, quotas, run.identity.name)
    _START.run(
        connection,
        id=run.run_id,
        parent_run_id=run.parent_run_id,
        method=run.method,
        version_id=run.version_id,
        skill_id=run.skill_id,
        tool=run.tool,
        status="started",
        identity=run.identity.name,
        identity_kind=run.identity.kind,
        server=run.server,
        limits_json=_limits.encode(run.limits).decode(),
        started_at=datetime.now(UTC),
        queued=queued,
        environment_json=msgspec.json.encode(run.environment).decode() if run.environment else None,
    )
    if run.claim is not None and not queued:
        note_run(connection, run.claim, run.run_id)


def begin_run(connection: Connection, run: NewRun) -> None:
    """A run that was on record while it waited has got its place."""
    began = update(runs).where(runs.c.id == run.run_id)
    connection.execute(began.values(queued=False, begun_at=datetime.now(UTC)))
    if run.claim is not None:
        note_run(connection, run.claim, run.run_id)


def drop_run(connection: Connection, run_id: str) -> None:
    """A run that waited for a place and is no longer wanted: nothing was run, and nobody knows of it."""
    connection.execute(runs.delete().where(runs.c.id == run_id))


def finish_run(connection: Connection, run: NewRun, answer: Run, *, stopped: bool, again: bool = False) -> None:
    """`stopped`: it was ended from outside. `again`: the try before this one failed, perhaps after it had counted."""
    if again and connection.scalar(select(runs.c.finished_at).where(runs.c.id == run.run_id)) is not None:
        return
    error, finished_at = if_set(answer.error), datetime.now(UTC)
    _FINISH.run(
        connection,
        run_id=run.run_id,
        status=answer.status,
        summary=answer.summary,
        output_json=msgspec.json.encode(answer.output).decode(),
        error_json=msgspec.json.encode(error).decode() if error else None,
        logs_preview=answer.logs_preview,
        logs_blob=if_set(answer.logs_blob),
        duration_ms=answer.duration_ms,
        degraded_json=msgspec.json.encode(if_set(answer.degraded) or []).decode(),
        network_json=msgspec.json.encode(if_set(answer.network) or []).decode(),
        finished_at=finished_at,
    )
    if run.version_id is not None:
        outcome: Outcome = "cancelled" if stopped else answer.status
        count_run(connection, run.version_id, outcome, answer.duration_ms, finished_at)


def forget_runs(connection: Connection, *, before: datetime, limit: int) -> int:
    """Delete at most `limit` runs that have ended and began before that moment, oldest first. Their number.

    The counts of their versions stay, and so do their blobs, which have a lifetime of their own.
    """
    ended = select(runs.c.id).where(*_old(before))
    ids = list(connection.scalars(ended.order_by(runs.c.started_at, runs.c.id).limit(limit)))
    if ids:
        leave_blobs(connection, ids)
        connection.execute(runs.delete().where(runs.c.id.in_(ids)))
    return len(ids)


def count_old_runs(connection: Connection, before: datetime) -> int:
    """How many `forget_runs` would delete."""
    return connection.scalar(select(func.count()).select_from(runs).where(*_old(before))) or 0


def _old(before: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return runs.c.started_at < before, runs.c.status != "started"


def cutoff_of(connection: Connection, keep: int) -> datetime | None:
    """Before which moment runs began that are not among the newest `keep`; None where there are no more than that."""
    newest = select(runs.c.started_at).order_by(runs.c.started_at.desc(), runs.c.id.desc())
    return in_utc(connection.scalar(newest.offset(keep - 1).limit(1))) if keep else None
