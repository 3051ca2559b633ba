"""The event `run_failed`, in the transaction that records the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from skillery import events
from skillery.backends import FailureType, FinishedRun, Identity
from skillery.database.tables import runs, skill_versions, skills
from skillery.formats.names import namespace_of

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
    """Record that a run has failed. The event has no message of the run, which may contain confidential values."""
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
    """Record the failure of runs whose server died, or whose end could not be recorded."""
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
