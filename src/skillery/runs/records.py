"""The records of runs. The outcome is added to the row of a run when the run ends. Old records are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, func, select, update

from skillery import events
from skillery.attestations.seals import Sealer
from skillery.audit import SERVER
from skillery.backends import Events, FailureType, FinishedRun, Identity, Log, Outcome
from skillery.contents.blob_rows import BlobRow, leave_blobs
from skillery.contents.blobs import Blobs
from skillery.context.threads import BIG_TEXT
from skillery.database import Change, Database, in_utc
from skillery.database.tables import run_code, runs, skill_versions, skills
from skillery.errors import SkilleryError, Unavailable
from skillery.formats.names import namespace_of
from skillery.formats.tracebacks import Shape, shape_of
from skillery.identity.holds import unheld_runs
from skillery.registry.usage import KnownShapes, count_failure, count_run
from skillery.registry.usage import Outcome as CountedOutcome
from skillery.registry.uses import User, Uses, count_use
from skillery.runs.active_run import ActiveRun
from skillery.runs.live_output import whole_log
from skillery.runs.rendering import Rendered
from skillery.runs.results import Run, if_set
from skillery.runs.statements import make_evidence
from skillery.skills.reach import count_reach

# -- The event `run_failed`, in the transaction that records the end of a run ------------------------------------------


_RUNS = (
    select(
        runs.c.id,
        runs.c.method,
        runs.c.tool,
        runs.c.identity,
        runs.c.identity_kind,
        runs.c.parent_run_id,
        skills.c.name.label("skill"),
        skill_versions.c.version,
    )
    .outerjoin(skills, skills.c.id == runs.c.skill_id)
    .outerjoin(skill_versions, skill_versions.c.id == runs.c.version_id)
)


def record_failure(connection: Connection, run: FinishedRun) -> None:
    """Record the event `run_failed`. It has no message of the run, because messages may contain confidential values."""
    events.record(
        connection,
        "run_failed",
        skill=run.skill,
        run_id=run.run_id,
        method=run.method,
        name=run.skill,
        namespace=namespace_of(run.skill) if run.skill else None,
        version=run.version,
        tool=run.tool,
        error_type=run.error_type,
        duration_ms=run.duration_ms,
        by=run.identity.name,
        by_kind=run.identity.kind,
        parent_run_id=run.parent_run_id,
    )


def record_closed(connection: Connection, run_ids: Sequence[str]) -> None:
    """Record the event `run_failed` for runs whose server died, or whose end could not be recorded."""
    for row in connection.execute(_RUNS.where(runs.c.id.in_(run_ids)).order_by(runs.c.started_at, runs.c.id)):
        run = FinishedRun(
            run_id=row.id,
            method=row.method,
            status="failed",
            skill=row.skill,
            version=row.version,
            duration_ms=0.0,
            error_type=FailureType.SANDBOX_ERROR,
            identity=Identity(row.identity, row.identity_kind),
            parent_run_id=row.parent_run_id,
            tool=row.tool,
        )
        record_failure(connection, run)


log = logging.getLogger(__name__)
END_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)
"""Seconds between the attempts to record the end of a run while the database is unavailable."""
_FINISHED = (
    "status",
    "summary",
    "output_json",
    "error_json",
    "logs_preview",
    "logs_blob",
    "log_head_bytes",
    "log_dropped_bytes",
    "duration_ms",
    "degraded_json",
    "network_json",
    "workspace_json",
    "used_json",
    "finished_at",
    "evidence_json",
    "seal_batch",
)
_FINISH = Change(
    dict.fromkeys(("sqlite", "postgresql"), update(runs).where(runs.c.id == bindparam("run_id"))), _FINISHED
)


def finish_run(
    connection: Connection,
    run: ActiveRun,
    answer: Run,
    outcome: Outcome,
    evidence: str | None = None,
    batch: int | None = None,
    *,
    user: User,
    shape: Shape | None = None,
    again: bool = False,
) -> None:
    """Store the outcome in the row of a run, save its workspace, and count its usage. `batch` is the batch of runs
    whose seal covers the run. `user` is the user to count it for, `shape` what a failure is counted as.

    With `again`, an earlier attempt raised an error but may have been committed. The function then does nothing if the
    row has an end.
    """
    if again and connection.scalar(select(runs.c.finished_at).where(runs.c.id == run.run_id)) is not None:
        return
    log_, error, finished_at = outcome.log, if_set(answer.error), datetime.now(UTC)
    _FINISH.run(
        connection,
        run_id=run.run_id,
        status=answer.status,
        summary=answer.summary,
        output_json=msgspec.json.encode(answer.output).decode(),
        error_json=msgspec.json.encode(error).decode() if error else None,
        logs_preview=answer.logs_preview,
        logs_blob=if_set(answer.logs_blob),
        log_head_bytes=len(log_.head) if log_.dropped else None,
        log_dropped_bytes=log_.dropped or None,
        duration_ms=answer.duration_ms,
        degraded_json=msgspec.json.encode(if_set(answer.degraded) or []).decode(),
        network_json=msgspec.json.encode(if_set(answer.network) or []).decode(),
        workspace_json=msgspec.json.encode(answer.workspace).decode() if if_set(answer.workspace) else None,
        used_json=msgspec.json.encode(outcome.used).decode(),
        finished_at=finished_at,
        evidence_json=evidence,
        seal_batch=batch,
    )
    if run.workspace is not None:
        run.workspace.finish(connection, run.run_id)
    if answer.end_status == "failed":
        record_failure(connection, _finished(run, answer))
    version = run.prepared.version
    version_id, skill_id = version.stored_ids if version else (None, None)
    if version_id is not None and skill_id is not None:
        counted: CountedOutcome = "cancelled" if run.was_stopped else answer.end_status
        count_run(connection, version_id, counted, answer.duration_ms, finished_at)
        count_use(connection, skill_id, version_id, user, counted, answer.duration_ms, finished_at)
        if shape is not None and counted == "failed":
            count_failure(connection, skill_id, version_id, shape, user.caller, run.run_id, finished_at)
        network, secrets = if_set(answer.network) or [], () if run.prepared.failure else run.prepared.secrets
        if network or secrets:
            refused = error is not None and error.type in _WITHOUT_SECRETS
            count_reach(connection, skill_id, network, secrets, finished_at, allowed=run.job.network, refused=refused)


_WITHOUT_SECRETS = (FailureType.SECRET_NOT_GRANTED, FailureType.SECRET_MISSING, FailureType.SECRET_UNAVAILABLE)


class Recorder:
    """Records the ends of runs, and passes the event `run_finished` to plugins."""

    def __init__(
        self, database: Database, blobs: Blobs, events: Events, sealer: Sealer, uses: Uses, sandbox: str, release: str
    ) -> None:
        """`sandbox` and `release` are the names of the sandbox and of the server, for statements about runs."""
        self._sealer = sealer
        self._uses = uses
        self._names = sandbox, release
        self._database = database
        self._blobs = blobs
        self._events = events
        self._shapes = KnownShapes()
        self.ended: Counter[tuple[str, str]] = Counter()
        """The number of ended runs since this server started, by method and status."""

    async def finish(self, run: ActiveRun, rendered: Rendered) -> Rendered:
        """Record the end of a run. Return `rendered`, with `logs_blob` in its answer if the log was stored as a blob.

        The log becomes a blob if the preview is not the whole log. The run does not fail if the log cannot be stored.
        """
        log_row = await self._keep_log(run, rendered.outcome.log, rendered.answer)
        answer, log_digest = rendered.answer, None
        if log_row is not None:
            answer, log_digest = msgspec.structs.replace(answer, logs_blob=log_row.id), log_row.sha256
        with self._sealer.batch() as batch:
            evidence = None
            if batch is not None:
                work = partial(make_evidence, run, *self._names, answer, rendered.outcome, log_digest)
                is_big = len(run.job.args) + len(rendered.outcome.result or b"") > BIG_TEXT
                evidence = await asyncio.to_thread(work) if is_big else work()
            await self._write_end(run, answer, rendered.outcome, evidence, batch)
        version = run.prepared.version
        if version is not None and (skill_id := version.stored_ids[1]) is not None:
            self._uses.note_skills([skill_id])
            self._uses.searches.open(run.identity.name, version.name)
        self.ended[run.prepared.method, answer.status] += 1
        await self._events.run_finished(_finished(run, answer))
        return rendered._replace(answer=answer)

    async def _keep_log(self, run: ActiveRun, log_: Log, answer: Run) -> BlobRow | None:
        """Return the blob with the log, if the log had to be stored as a blob and could be stored."""
        log_content = whole_log(log_, answer.logs_preview)
        if log_content is None:
            return None
        try:
            return await self._blobs.keep_log(run.identity, log_content, "text/plain")
        except SkilleryError as error:  # a run does not fail because its log has no room
            log.warning("the log of %s could not be stored: %s", run.run_id, error.message)
            return None

    async def _write_end(
        self, run: ActiveRun, answer: Run, outcome: Outcome, evidence: str | None, batch: int | None
    ) -> None:
        """Record the end of the run, in several attempts. Raise Unavailable if all attempts fail."""
        # Several attempts: if the database is unavailable for a moment, the outcome of the run must not be lost.
        version = run.prepared.version
        user = self._uses.user_of(version.name if version else "", run.identity.name, run.client)
        work = partial(finish_run, run=run, answer=answer, outcome=outcome, evidence=evidence, batch=batch, user=user)
        work = partial(work, shape=self._shape_of(run, answer))
        for pause in END_PAUSES:
            try:
                await self._database.write(work)
            except Unavailable as error:
                log.warning("the end of %s could not be recorded, next try in %s s: %s", run.run_id, pause, error)
                await asyncio.sleep(pause)
                work = partial(work, again=True)
            else:
                return
        await self._database.write(work)

    def _shape_of(self, run: ActiveRun, answer: Run) -> Shape | None:
        """Return what the failure of a run of a skill is counted as, or None for other runs.

        Failures with tasks of a held-out suite are not counted, because publishers of the skill read counted messages.
        """
        version, error = run.prepared.version, if_set(answer.error)
        if version is None or error is None or run.identity.name == SERVER.name:
            return None
        if (skill_id := version.stored_ids[1]) is None:
            return None
        shape = shape_of(version.name, error.type, error.message, if_set(error.traceback) or "")
        return self._shapes.bounded(skill_id, shape)


def _finished(run: ActiveRun, answer: Run) -> FinishedRun:
    """Return the end of the run in the form of the plugin event."""
    prepared, version, error = run.prepared, run.prepared.version, if_set(answer.error)
    return FinishedRun(
        run_id=run.run_id,
        method=prepared.method,
        status=answer.end_status,
        skill=version.name if version else None,
        version=version.version if version else None,
        duration_ms=answer.duration_ms,
        error_type=error.type if error else None,
        identity=run.identity,
        parent_run_id=prepared.parent_run_id,
        tool=prepared.tool,
    )


def forget_runs(connection: Connection, *, before: datetime, limit: int) -> int:
    """Delete the oldest `limit` ended runs that started before `before`. Return the number of deleted runs.

    Runs under a hold stay. The usage of their versions stays. Their blobs stay too, until their own lifetime ends.
    """
    ended = select(runs.c.id).where(*_old(before))
    ids = list(connection.scalars(ended.order_by(runs.c.started_at, runs.c.id).limit(limit)))
    if ids:
        leave_blobs(connection, ids)
        connection.execute(run_code.delete().where(run_code.c.run_id.in_(ids)))
        connection.execute(runs.delete().where(runs.c.id.in_(ids)))
    return len(ids)


def count_old_runs(connection: Connection, before: datetime) -> int:
    """Return the number of ended runs that started before `before`."""
    return connection.scalar(select(func.count()).select_from(runs).where(*_old(before))) or 0


def _old(before: datetime) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for ended runs that started before `before` and that no hold keeps."""
    return runs.c.started_at < before, runs.c.status != "started", *unheld_runs()


def cutoff_of(connection: Connection, keep: int) -> datetime | None:
    """Return the start time of the `keep`-th newest run, or None if there are fewer runs or `keep` is 0.

    If a database keeps at most `keep` runs, earlier runs are deleted.
    """
    newest = select(runs.c.started_at).order_by(runs.c.started_at.desc(), runs.c.id.desc())
    return in_utc(connection.scalar(newest.offset(keep - 1).limit(1))) if keep else None


def span_of_count(connection: Connection, days: int, count: int) -> timedelta | None:
    """Return the age of the `count`-th newest run if it is less than `days`, else None.

    Runs are kept for this time if the server keeps `count` runs and `days` days.
    """
    oldest = cutoff_of(connection, count)
    span = datetime.now(UTC) - oldest if oldest is not None else None
    return span if span is not None and days and span < timedelta(days=days) else None
