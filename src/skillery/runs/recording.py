"""What is written down of a run: a row when it starts, its outcome and its blobs in one transaction when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, insert, update

from skillery.backends import Identity
from skillery.blobs import BlobRow, insert_blobs
from skillery.tables import runs

Method = Literal["execute_skill", "run_code"]


SERVER_DIED = "the server stopped before the run ended"
_START = insert(runs)
_FINISH = update(runs).where(runs.c.id == bindparam("run_id"))


def start_run(
    connection: Connection,
    run_id: str,
    method: Method,
    version_id: int | None,
    identity: Identity,
    server: str,
    parent_run_id: str | None = None,
) -> None:
    connection.execute(
        _START,
        {
            "id": run_id,
            "parent_run_id": parent_run_id,
            "method": method,
            "version_id": version_id,
            "status": "started",
            "identity": identity.name,
            "identity_kind": identity.kind,
            "server": server,
            "started_at": datetime.now(UTC),
        },
    )


def finish_run(connection: Connection, run_id: str, answer: dict[str, Any], blobs: Sequence[BlobRow]) -> None:
    insert_blobs(connection, blobs, run_id)
    error = answer.get("error")
    connection.execute(
        _FINISH,
        {
            "run_id": run_id,
            "status": answer["status"],
            "summary": answer["summary"],
            "output_json": msgspec.json.encode(answer["output"]).decode(),
            "error_json": msgspec.json.encode(error).decode() if error else None,
            "logs_preview": answer["logs_preview"],
            "duration_ms": answer["duration_ms"],
            "degraded_json": msgspec.json.encode(answer.get("degraded", [])).decode(),
            "network_json": msgspec.json.encode(answer.get("network", [])).decode(),
            "finished_at": datetime.now(UTC),
        },
    )


def close_left_over(connection: Connection, server: str) -> int:
    """Runs that this server left 'started' when it died are failed. Their number."""
    return close_started(connection, SERVER_DIED, runs.c.server == server)


def close_started(connection: Connection, why: str, *which: ColumnElement[bool]) -> int:
    """Of the runs that are recorded as 'started', these will never end: they are failed. Their number."""
    error = {"type": "SandboxError", "message": why}
    result = connection.execute(
        update(runs)
        .where(runs.c.status == "started", *which)
        .values(
            status="failed",
            summary=error["message"],
            error_json=msgspec.json.encode(error).decode(),
            finished_at=datetime.now(UTC),
        )
    )
    return int(result.rowcount)
