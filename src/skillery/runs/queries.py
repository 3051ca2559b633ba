"""get_run and list_runs: the records of runs, for the callers of the runs, admins and auditors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET
from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, literal_column, select, tuple_

from skillery.backends import Identity, NetworkUse, Progress, Scope, Used
from skillery.contents.blob_rows import output_blobs, output_files
from skillery.context.queue import PackageWait
from skillery.database import in_utc
from skillery.database.tables import run_code, runs, skill_versions, skills
from skillery.errors import InvalidParams, NotAllowed, RunNotFound
from skillery.formats.timestamps import parse_timestamp
from skillery.formats.tracebacks import shape_of
from skillery.identity import access
from skillery.identity.access import Who
from skillery.registry.cursors import fitting_items, make_cursor, read_cursor
from skillery.runs.failures import FailureGroup, read_failure
from skillery.runs.live_output import Shown
from skillery.runs.packages import GivenEnvironment
from skillery.runs.rendering import tool_answer
from skillery.runs.results import (
    ExactSkill,
    KeptCode,
    Run,
    RunError,
    RunPage,
    RunRecord,
    RunRow,
    RunUse,
    Status,
    if_set,
    waiting_for,
)
from skillery.workspaces.usage import WorkspaceUse

_SKILL = (
    skills.c.name.label("skill_name"),
    skill_versions.c.version.label("skill_version"),
    skill_versions.c.digest.label("skill_digest"),
)
_WITH_SKILL = runs.outerjoin(skill_versions, skill_versions.c.id == runs.c.version_id).outerjoin(
    skills, skills.c.id == skill_versions.c.skill_id
)
_RUN = select(runs, *_SKILL).select_from(_WITH_SKILL)
LISTED = select(
    runs.c.id,
    runs.c.parent_run_id,
    runs.c.method,
    runs.c.tool,
    runs.c.check_of,
    runs.c.status,
    runs.c.queued,
    runs.c.identity,
    runs.c.identity_kind,
    runs.c.summary,
    runs.c.error_json,
    runs.c.duration_ms,
    runs.c.started_at,
    runs.c.begun_at,
    runs.c.finished_at,
    *_SKILL,
).select_from(_WITH_SKILL)
MOST_CALLS = 100
_CALLED = select(runs.c.id).where(runs.c.parent_run_id == bindparam("run_id")).order_by(runs.c.started_at)
_errors = msgspec.json.Decoder(RunError)
_environments = msgspec.json.Decoder(GivenEnvironment)
_workspace_uses = msgspec.json.Decoder(WorkspaceUse)
_degraded = msgspec.json.Decoder(list[str])
_network = msgspec.json.Decoder(list[NetworkUse])
_used = msgspec.json.Decoder(Used)


class RunFilter(msgspec.Struct, frozen=True):
    """The filters of `list_runs`. An empty text matches all runs."""

    skill: str = ""
    status: Status | Literal[""] = ""
    since: str = ""
    """Only runs that started since then. A timestamp, or an age such as `24h`."""
    identity: str = ""


def find_run(connection: Connection, identity: Identity, run_id: str, *, needs: Scope = "audit") -> Row[Any]:
    """Return the row of a run, with the columns of its skill.

    Raise RunNotFound if there is no such run, or if it is a run of another identity and the caller does not have the
    scope `needs`. Raise InvalidParams if the id contains a NUL.
    """
    if "\0" in run_id:
        raise InvalidParams("the run id contains a NUL character", hint="Pass the run_id of an answer.", param="run_id")
    row = connection.execute(_RUN.where(runs.c.id == run_id)).one_or_none()
    if row is None or (row.identity != identity.name and not access.allows(identity, needs)):
        raise RunNotFound(f"there is no run '{run_id[:80]}'", hint="list_runs shows yours.", run_id=run_id[:80])
    return row


def get_run(connection: Connection, *, identity: Identity, run_id: str) -> RunRecord:
    """Return the record of a run. Raise RunNotFound if the identity may not see the run or it does not exist."""
    row = find_run(connection, identity, run_id)
    return msgspec.structs.replace(record_of(connection, row), same_failure=_same_failure(connection, identity, row))


def _same_failure(connection: Connection, identity: Identity, row: Row[Any]) -> FailureGroup | msgspec.UnsetType:
    error = _error(row)
    if error is None or row.skill_name is None:
        return UNSET
    shape = shape_of(row.skill_name, error.type, error.message, if_set(error.traceback) or "")
    return read_failure(connection, identity, row.skill_id, row.skill_name, shape.key) or UNSET


def args_of(connection: Connection, *, identity: Identity, run_id: str) -> str | None:
    """Return the args of a run as JSON, or None if they were larger than KEPT_ARGS. Raise the errors of `find_run`."""
    args: str | None = find_run(connection, identity, run_id).args_json
    return args


def record_of(connection: Connection, row: Row[Any]) -> RunRecord:
    """Return the record of the run in `row`, a row of `find_run`."""
    written = output_blobs(connection, row.id)
    is_being_cancelled = row.cancel_requested_at is not None and row.status == "started"
    return RunRecord(
        status=_status(row),
        run_id=row.id,
        summary=row.summary,
        output=_raw(row.output_json),
        output_blobs=[blob.id for blob in written],
        logs_preview=row.logs_preview,
        duration_ms=row.duration_ms,
        error=_error(row) or UNSET,
        skill=_skill(row) or UNSET,
        environment=_environment(row),
        workspace=_workspace(row),
        degraded=_degraded.decode(row.degraded_json) or UNSET,
        network=_network.decode(row.network_json),
        logs_blob=row.logs_blob,
        method=row.method,
        tool=row.tool,
        script=row.script or UNSET,
        check_of=row.check_of,
        identity=Who(row.identity, row.identity_kind),
        client=row.client,
        parent_run_id=row.parent_run_id,
        called_runs=list(connection.scalars(_CALLED, {"run_id": row.id})) or UNSET,
        started_at=_started_at(row),
        finished_at=in_utc(row.finished_at),
        limits=_raw(row.limits_json),
        cancel_requested_at=in_utc(row.cancel_requested_at) if is_being_cancelled else UNSET,
        progress=_progress(row),
        files=output_files(written),
        used=_run_use(row),
        code=_kept_code(connection, row),
        **waiting_for(_packages(row)),
    )


def _kept_code(connection: Connection, row: Row[Any]) -> KeptCode | msgspec.UnsetType:
    columns = select(run_code.c.language, run_code.c.entrypoint, run_code.c.code, run_code.c.is_cut)
    of_run = columns.where(run_code.c.run_id == row.id)
    kept = connection.execute(of_run).one_or_none() if row.method == "run_code" else None
    return KeptCode(*kept) if kept else UNSET


def _run_use(row: Row[Any]) -> RunUse | msgspec.UnsetType:
    """Return what the run used of time, memory and disk, or UNSET if it was not recorded."""
    if not row.used_json:
        return UNSET
    used, begun_at = _used.decode(row.used_json), row.begun_at
    queued_ms = round((begun_at - row.started_at).total_seconds() * 1000, 3) if begun_at else None
    return RunUse(queued_ms, used.prepared_ms, used.memory_bytes, used.processes, used.disk_bytes)


def _progress(row: Row[Any]) -> Progress | msgspec.UnsetType:
    """Return the last progress of an active run, or UNSET."""
    is_live = row.status == "started" and row.progress_json is not None
    return msgspec.json.decode(row.progress_json, type=Progress) if is_live else UNSET


def _packages(row: Row[Any]) -> PackageWait | None:
    is_waiting = row.status == "started" and row.queued and row.progress_json is not None
    return msgspec.json.decode(row.progress_json, type=Shown).packages if is_waiting else None


def _ended_run(connection: Connection, row: Row[Any]) -> Run:
    """Return the answer of an ended run, rebuilt from its row."""
    written = output_blobs(connection, row.id)
    return Run(
        status=row.status,
        run_id=row.id,
        summary=row.summary,
        output=_raw(row.output_json),
        output_blobs=[blob.id for blob in written],
        logs_preview=row.logs_preview or "",
        duration_ms=row.duration_ms,
        error=_error(row) or UNSET,
        skill=_skill(row) or UNSET,
        environment=_environment(row),
        workspace=_workspace(row),
        degraded=_degraded.decode(row.degraded_json) or UNSET,
        network=_network.decode(row.network_json) or UNSET,
        logs_blob=row.logs_blob or UNSET,
        files=output_files(written),
    )


def result_of(connection: Connection, run_id: str) -> str | None:
    """Return the answer of an ended run as JSON, or None if the run has not ended or does not exist."""
    row = connection.execute(_RUN.where(runs.c.id == run_id)).one_or_none()
    return None if row is None else result_in(connection, row)


def result_in(connection: Connection, row: Row[Any]) -> str | None:
    """Return the answer of the run in `row` as JSON, or None if the run had not ended when the row was read."""
    if row.status == "started":
        return None
    run = _ended_run(connection, row)
    return msgspec.json.encode(tool_answer(run) if row.method == "call_tool" else run).decode()


def read_runs(
    connection: Connection, *, identity: Identity, key: bytes, filters: RunFilter, limit: int, cursor: str
) -> RunPage:
    """Return a page of the runs that match `filters`, newest first. Only admins and auditors get the runs of other
    identities.

    `key` signs the cursors. Raise NotAllowed if `filters` names another identity and the caller is neither. Raise
    InvalidCursor if the cursor belongs to another listing, and InvalidParams if `since` is not a time.
    """
    sees_all = access.is_auditor(identity)
    if filters.identity not in {"", identity.name} and not sees_all:
        raise NotAllowed(
            f"only admins and auditors list the runs of '{filters.identity[:80]}'",
            hint="Leave 'identity' out for your own.",
            scope="audit",
        )
    owner = filters.identity if sees_all else identity.name
    bound_to = ("list_runs", owner, filters.skill, filters.status, filters.since)
    statement = listing(owner, filters, datetime.now(UTC))
    rows = connection.execute(behind(statement, key, bound_to, cursor).limit(limit + 1)).all()
    page = fitting_items([listed(row) for row in rows[:limit]])
    has_more = len(rows) > len(page)
    next_cursor = make_cursor(key, bound_to, position_of(rows[len(page) - 1])) if has_more else None
    return RunPage(page, next_cursor)


def behind(statement: Select[Any], key: bytes, bound_to: tuple[str, ...], cursor: str) -> Select[Any]:
    """Return the runs of a SELECT, newest first, that follow the position of a cursor, or all of them without one."""
    if cursor:
        instant, run_id = read_cursor(key, bound_to, cursor, 2)
        position = tuple_(datetime.fromisoformat(instant), run_id, types=[runs.c.started_at.type, runs.c.id.type])
        statement = statement.where(tuple_(runs.c.started_at, runs.c.id) < position)
    return statement.order_by(runs.c.started_at.desc(), runs.c.id.desc())


def read_calls(connection: Connection, *, identity: Identity, run_id: str) -> list[RunRow]:
    """Return the first MOST_CALLS runs that a run has called, oldest first. Raise the errors of `find_run`."""
    find_run(connection, identity, run_id)
    called: Select[Any] = LISTED.where(runs.c.parent_run_id == run_id).order_by(runs.c.started_at).limit(MOST_CALLS)
    return [listed(row) for row in connection.execute(called)]


def listing(owner: str, filters: RunFilter, now: datetime) -> Select[Any]:
    """Return the SELECT of the runs of the identity `owner` that match `filters`, without an order.

    An `owner` of "" selects all identities. Each filter uses an index by time, or removes only few rows of such an
    index.
    """
    conditions: list[ColumnElement[bool]] = []
    if owner:
        conditions.append(runs.c.identity == owner)
    if filters.skill:
        # A subquery, not a join: so the database reads one range of one index.
        skill_id = select(skills.c.id).where(skills.c.name == filters.skill).scalar_subquery()
        conditions += [runs.c.skill_id == skill_id, runs.c.skill_id.is_not(None)]
    if filters.status:
        # A literal instead of a parameter, so that the database can use the partial index.
        status = "started" if filters.status == "queued" else filters.status
        conditions.append(runs.c.status == literal_column(f"'{status}'"))
    if filters.status in {"queued", "started"}:
        conditions.append(runs.c.queued.is_(filters.status == "queued"))
    if filters.since:
        conditions.append(runs.c.started_at >= parse_timestamp(filters.since, "since", now))
    return LISTED.where(*conditions)


def listed(row: Row[Any]) -> RunRow:
    """Return the item of list_runs for a row."""
    error = _error(row)
    return RunRow(
        run_id=row.id,
        status=_status(row),
        method=row.method,
        tool=row.tool,
        skill=_skill(row),
        check_of=row.check_of,
        summary=row.summary,
        error_type=error.type if error else None,
        identity=Who(row.identity, row.identity_kind),
        parent_run_id=row.parent_run_id,
        started_at=_started_at(row),
        finished_at=in_utc(row.finished_at),
        duration_ms=row.duration_ms,
    )


def position_of(row: Row[Any]) -> tuple[str, str]:
    """Return the start time and the id of a run, which are its position in the cursor of a list."""
    instant = in_utc(row.started_at)
    assert instant is not None
    return instant.isoformat(), row.id


def _status(row: Row[Any]) -> Status:
    """Return the public status. In the table, a queued run is a started run with the flag `queued`."""
    status: Status = row.status
    return "queued" if status == "started" and row.queued else status


def _started_at(row: Row[Any]) -> datetime | None:
    """Return the start time, or None if the run has no slot yet or never got one."""
    return None if row.queued else in_utc(row.begun_at or row.started_at)


def _skill(row: Row[Any]) -> ExactSkill | None:
    return None if row.skill_name is None else ExactSkill(row.skill_name, row.skill_version, row.skill_digest)


def _error(row: Row[Any]) -> RunError | None:
    return _errors.decode(row.error_json) if row.error_json else None


def _environment(row: Row[Any]) -> GivenEnvironment | msgspec.UnsetType:
    return _environments.decode(row.environment_json) if row.environment_json else UNSET


def _workspace(row: Row[Any]) -> WorkspaceUse | msgspec.UnsetType:
    return _workspace_uses.decode(row.workspace_json) if row.workspace_json else UNSET


def _raw(text: str | None) -> msgspec.Raw:
    return msgspec.Raw((text or "null").encode())


__all__ = ["RunFilter", "find_run", "get_run", "read_runs", "record_of", "result_of"]
