"""What is written down of a run: a row when it starts, its outcome when it ends. Its blobs have rows as they come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, bindparam, insert, update

from skillery.backends import Identity
from skillery.quotas import Quotas, check_run
from skillery.tables import runs

Method = Literal["execute_skill", "run_code"]


_START = insert(runs)
_FINISH = update(runs).where(runs.c.id == bindparam("run_id"))


def start_run(
    connection: Connection,
    run_id: str,
    method: Method,
    version_id: int | None,
    identity: Identity,
    server: str,
    quotas: Quotas,
    parent_run_id: str | None = None,
) -> None:
    """Raises RateLimited."""
    if parent_run_id is None:
        check_run(connection, quotas, identity.name)
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


def finish_run(connection: Connection, run_id: str, answer: dict[str, Any]) -> None:
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
    error = {"type": "SandboxError", "message": "the server stopped before the run ended"}
    result = connection.execute(
        update(runs)
        .where(runs.c.status == "started", runs.c.server == server)
        .values(
            status="failed",
            summary=error["message"],
            error_json=msgspec.json.encode(error).decode(),
            finished_at=datetime.now(UTC),
        )
    )
    return int(result.rowcount)
