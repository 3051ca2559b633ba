"""get_run and list_runs: the records of runs, for their callers and for admins."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, literal_column, select, tuple_

from skillery.backends import Identity
from skillery.contents.blobs import output_blobs
from skillery.database import in_utc
from skillery.database.tables import runs, skill_versions, skills
from skillery.errors import InvalidParams, NotAllowed, RunNotFound
from skillery.formats.timestamps import parse_timestamp
from skillery.identity import access
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.pages import fitting_items
from skillery.runs.rendering import tool_answer

Status = Literal["queued", "started", "completed", "failed"]
_SKILL = (
    skills.c.name.label("skill_name"),
    skill_versions.c.version.label("skill_version"),
    skill_versions.c.digest.label("skill_digest"),
)
_WITH_SKILL = runs.outerjoin(skill_versions, skill_versions.c.id == runs.c.version_id).outerjoin(
    skills, skills.c.id == skill_versions.c.skill_id
)
_RUN = select(runs, *_SKILL).select_from(_WITH_SKILL)
_LISTED = select(
    runs.c.id,
    runs.c.parent_run_id,
    runs.c.method,
    runs.c.tool,
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


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs are listed; "" means all."""

    skill: str = ""
    status: Status | Literal[""] = ""
    since: str = ""
    """A timestamp, or an age like `24h`."""
    identity: str = ""


def find_run(connection: Connection, identity: Identity, run_id: str) -> Row[Any]:
    """Return the row of a run. Raise RunNotFound, also for the runs of other identities, which only admins see."""
    if "\0" in run_id:
        raise InvalidParams("the run id holds a NUL", hint="Pass the run_id of an answer.", param="run_id")
    found = connection.execute(_RUN.where(runs.c.id == run_id)).one_or_none()
    if found is None or (found.identity != identity.name and not access.is_admin(identity)):
        raise RunNotFound(f"there is no run '{run_id[:80]}'", hint="list_runs shows yours.", run_id=run_id[:80])
    return found


def get_run(connection: Connection, *, identity: Identity, run_id: str) -> dict[str, Any]:
    """Return the answer of a run with the rest of its record. Raise RunNotFound."""
    return record_of(connection, find_run(connection, identity, run_id))


def record_of(connection: Connection, row: Row[Any]) -> dict[str, Any]:
    """Return the answer of a run with the rest of its record."""
    found = answer_of(connection, row) | {
        "method": row.method,
        "tool": row.tool,
        "identity": {"name": row.identity, "kind": row.identity_kind},
        "parent_run_id": row.parent_run_id,
        "started_at": _started_at(row),
        "finished_at": in_utc(row.finished_at),
        "limits": _raw(row.limits_json),
        "network": _raw(row.network_json),
        "logs_blob": row.logs_blob,
    }
    if row.cancel_requested_at is not None and row.status == "started":
        found["cancel_requested_at"] = in_utc(row.cancel_requested_at)
    return found


def answer_of(connection: Connection, row: Row[Any]) -> dict[str, Any]:
    """Return what the caller of the run was told; for an open run, what is known now."""
    answer: dict[str, Any] = {
        "status": _status(row),
        "run_id": row.id,
        "summary": row.summary,
        "output": _raw(row.output_json),
        **output_blobs(connection, row.id),
        "logs_preview": row.logs_preview,
        "duration_ms": row.duration_ms,
    }
    if row.error_json:
        answer["error"] = _raw(row.error_json)
    if row.skill_name is not None:
        answer["skill"] = _skill(row)
    if row.environment_json:
        answer["environment"] = _raw(row.environment_json)
    for field, text in (("degraded", row.degraded_json), ("network", row.network_json)):
        if text != "[]":
            answer[field] = _raw(text)
    if row.logs_blob:
        answer["logs_blob"] = row.logs_blob
    return answer


def result_of(connection: Connection, run_id: str) -> str | None:
    """Return the answer of an ended run as JSON; None if the run has not ended or does not exist."""
    row = connection.execute(_RUN.where(runs.c.id == run_id)).one_or_none()
    if row is None or row.status == "started":
        return None
    answer = answer_of(connection, row)
    return msgspec.json.encode(tool_answer(answer) if row.method == "call_tool" else answer).decode()


def list_runs(
    connection: Connection, *, identity: Identity, key: bytes, asked: RunFilter, limit: int, cursor: str
) -> dict[str, Any]:
    """Return a page of runs, newest first: `runs` and `next_cursor`. Only admins see the runs of other identities.

    Raise InvalidCursor, InvalidParams, and NotAllowed if the filter names another identity.
    """
    sees_all = access.is_admin(identity)
    if asked.identity not in {"", identity.name} and not sees_all:
        raise NotAllowed(
            f"only an admin lists the runs of '{asked.identity[:80]}'", hint="Leave 'identity' out for your own."
        )
    whose = asked.identity if sees_all else identity.name
    bound_to = ("list_runs", whose, asked.skill, asked.status, asked.since)
    statement = listing(whose, asked, datetime.now(UTC))
    if cursor:
        moment, run_id = read_cursor(key, bound_to, cursor, 2)
        position = tuple_(datetime.fromisoformat(moment), run_id, types=[runs.c.started_at.type, runs.c.id.type])
        statement = statement.where(tuple_(runs.c.started_at, runs.c.id) < position)
    rows = connection.execute(statement.limit(limit + 1)).all()
    page = fitting_items([_listed(row) for row in rows[:limit]])
    more = len(rows) > len(page)
    next_cursor = make_cursor(key, bound_to, _position(rows[len(page) - 1])) if more else None
    return {"runs": page, "next_cursor": next_cursor}


def listing(whose: str, asked: RunFilter, now: datetime) -> Select[Any]:
    """Return the statement for the runs of one identity ("": of all) that match a filter, newest first.

    Each filter uses an index by time, or drops few rows of such an index.
    """
    where: list[ColumnElement[bool]] = []
    if whose:
        where.append(runs.c.identity == whose)
    if asked.skill:
        # A subquery, not a join: so the database reads one range of one index.
        skill_id = select(skills.c.id).where(skills.c.name == asked.skill).scalar_subquery()
        where += [runs.c.skill_id == skill_id, runs.c.skill_id.is_not(None)]
    if asked.status:
        # A literal, not a parameter: so the database can use the partial index for it.
        status = "started" if asked.status == "queued" else asked.status
        where.append(runs.c.status == literal_column(f"'{status}'"))
    if asked.status in {"queued", "started"}:
        where.append(runs.c.queued.is_(asked.status == "queued"))
    if asked.since:
        where.append(runs.c.started_at >= parse_timestamp(asked.since, "since", now))
    return _LISTED.where(*where).order_by(runs.c.started_at.desc(), runs.c.id.desc())


def _listed(row: Row[Any]) -> dict[str, Any]:
    return {
        "run_id": row.id,
        "status": _status(row),
        "method": row.method,
        "tool": row.tool,
        "skill": _skill(row) if row.skill_name is not None else None,
        "summary": row.summary,
        "error_type": msgspec.json.decode(row.error_json)["type"] if row.error_json else None,
        "identity": {"name": row.identity, "kind": row.identity_kind},
        "parent_run_id": row.parent_run_id,
        "started_at": _started_at(row),
        "finished_at": in_utc(row.finished_at),
        "duration_ms": row.duration_ms,
    }


def _position(row: Row[Any]) -> tuple[str, str]:
    moment = in_utc(row.started_at)
    assert moment is not None
    return moment.isoformat(), row.id


def _status(row: Row[Any]) -> str:
    return "queued" if row.status == "started" and row.queued else str(row.status)


def _started_at(row: Row[Any]) -> datetime | None:
    """Return None if the run has no slot yet, or never got one."""
    return None if row.queued else in_utc(row.begun_at or row.started_at)


def _skill(row: Row[Any]) -> dict[str, str]:
    return {"name": row.skill_name, "version": row.skill_version, "digest": row.skill_digest}


def _raw(text: str | None) -> msgspec.Raw:
    return msgspec.Raw((text or "null").encode())


__all__ = ["RunFilter", "find_run", "get_run", "list_runs", "record_of", "result_of"]
