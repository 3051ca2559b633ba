"""`python -m bench records`: how many runs per second a database can record, alone and with several runs in one commit.

The two statements and the two counts of a run are those of the server. Nothing executes, so the figures are the limit
of one database for any number of servers and nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, bindparam, insert, select, update

from bench.report import Report, median
from skillery.database import Change, Database
from skillery.database.tables import runs, skill_versions
from skillery.registry.usage import count_run
from skillery.registry.uses import User, count_use
from tests.conftest import Server
from tests.support.postgres import running_postgres

TOGETHER = (1, 10, 100)
"""Runs in one transaction."""
START = Change(
    insert(runs),
    (
        "id",
        "method",
        "version_id",
        "skill_id",
        "status",
        "identity",
        "identity_kind",
        "server",
        "limits_json",
        "args_json",
        "started_at",
    ),
)
END = Change(
    dict.fromkeys(("sqlite", "postgresql"), update(runs).where(runs.c.id == bindparam("run_id"))),
    ("status", "summary", "duration_ms", "finished_at"),
)
ROUNDS = 5
TEXT = "x" * 200
"""Output, log and summary of a small run together."""


def measure(report: Report, folder: Path, small: bool) -> None:
    report.heading("Records of runs")
    report.text(
        "The writes of a run without the run: one transaction at its start (one row), and one at its end (one row and "
        "two counts). `together` is the number of runs in one transaction. `bytes` is what a run adds to the database."
    )
    amount = 200 if small else 2000
    rows: list[Sequence[object]] = []
    with running_postgres() as url:
        for name, address, callers in (("SQLite", "", 1), ("Postgres", url, 1), ("Postgres", url, 8)):
            database = _database(folder / f"{name}-{callers}", address)
            try:
                size = _size(database, folder / f"{name}-{callers}")
                found = {
                    one: median([_rate(database, amount, one, callers) for _ in range(ROUNDS)]) for one in TOGETHER
                }
                grown = _size(database, folder / f"{name}-{callers}") - size
                added = grown / (amount * ROUNDS * len(TOGETHER))
            finally:
                database.close()
            alone = found[TOGETHER[0]]
            rows += [
                [name, callers, together, f"{rate:,.0f}", f"{rate / alone:.1f}", f"{added:,.0f}"]
                for together, rate in found.items()
            ]
    report.table(["database", "callers", "together", "runs/s", "ratio to one", "bytes"], rows)


def _database(folder: Path, url: str) -> Database:
    """Return a database with the bundled skills."""
    storage = folder.parent / f"contents-{folder.name.partition('-')[0]}"
    server = Server(folder, env={"SKILLERY_DATABASE": url, "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(storage)})
    server.stop()
    return Database(url or f"sqlite:///{folder / 'skillery.db'}")


def _size(database: Database, folder: Path) -> int:
    if database.url.get_backend_name() == "sqlite":
        return sum(path.stat().st_size for path in folder.glob("skillery.db*"))
    statement = "SELECT pg_database_size(current_database())"
    return int(database.read_now(lambda connection: connection.exec_driver_sql(statement).scalar_one()))


def _rate(database: Database, amount: int, together: int, callers: int) -> float:
    """Return the runs per second that `callers` threads record."""
    asked = select(skill_versions.c.id, skill_versions.c.skill_id).order_by(skill_versions.c.id)
    versions = database.read_now(lambda connection: connection.execute(asked).all())
    begun = time.perf_counter()
    threads = [
        threading.Thread(
            target=_record,
            # Callers of one version would wait for its counts.
            args=(database, f"{begun}-{one}", amount // callers, together, *versions[one % len(versions)]),
        )
        for one in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return amount // callers * callers / (time.perf_counter() - begun)


def _record(database: Database, prefix: str, amount: int, together: int, version_id: int, skill_id: int) -> None:
    for at in range(0, amount, together):
        ids = [f"run_{prefix}-{number}" for number in range(at, min(at + together, amount))]

        def start(connection: Connection, ids: Sequence[str] = ids) -> None:
            for run_id in ids:
                START.run(connection, **_row(run_id, version_id, skill_id))

        def end(connection: Connection, ids: Sequence[str] = ids) -> None:
            now = datetime.now(UTC)
            for run_id in ids:
                END.run(connection, run_id=run_id, status="completed", summary=TEXT, duration_ms=5.0, finished_at=now)
                count_run(connection, version_id, "completed", 5.0, now)
                count_use(connection, skill_id, version_id, User("ann", "agent"), "completed", 5.0, now)

        database.write_now(start)
        database.write_now(end)


def _row(run_id: str, version_id: int, skill_id: int) -> dict[str, object]:
    return {
        "id": run_id,
        "method": "execute_skill",
        "version_id": version_id,
        "skill_id": skill_id,
        "status": "started",
        "identity": "bench",
        "identity_kind": "agent",
        "server": "bench",
        "limits_json": "{}",
        "args_json": "{}",
        "started_at": datetime.now(UTC),
    }
