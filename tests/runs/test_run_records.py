"""Recorded runs, on both databases: get_run, list_runs, cancel_run, whole logs, usage, and retention."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, insert, select, text

from skillery.database import Database
from skillery.database.tables import blobs, events, objects, run_code, runs, servers
from skillery.registry.usage import bucket_of, duration_of, percentile
from skillery.runs.ended_runs import close_of_dead, note_seen
from skillery.runs.queries import RunFilter, behind, listing
from skillery.runs.records import cutoff_of, forget_runs
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, publisher
from tests.support.people import Caller, Who
from tests.support.processes import eventually

NOT_ALLOWED, NOT_FOUND, CONFLICT, INVALID = -32002, -32003, -32004, -32602
OTHER_ARGS: tuple[dict[str, Any], ...] = ({"name": "a", "rows": 3}, {"name": "b", "rows": 4})
SLEEP = "import time\ndef main(args):\n    print('asleep', flush=True)\n    time.sleep(args['s'])\n    return 'slept'\n"


def run(rpc: Rpc, code: str, **params: Any) -> dict[str, Any]:
    answer: dict[str, Any] = rpc("run_code", language="python", code=code, **params)
    return answer


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def wait_for(rpc: Rpc, status: str, **asked: Any) -> str:
    """Return the id of the newest run with this status, once one exists."""
    [run] = eventually(lambda: rpc("list_runs", status=status, limit=1, **asked)["runs"])
    run_id: str = run["run_id"]
    return run_id


@pytest.fixture
def alice(org: Server, new_name: str) -> Caller:
    return Caller(org.url, Who(f"alice-{new_name}"))


@pytest.fixture
def admin(org: Server) -> Caller:
    return Caller(org.url, Who("admin", "admin", "*"))


# -- get_run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "def main(args):\n    print('hello')\n    return {'a': [1, None]}\n",
        "def main(args):\n    raise ValueError('no')\n",
        "from runtime import blobs\ndef main(args):\n    blobs.write_text('x')\n    return 'y' * 9000\n",
        "def main(args):\n    print('line\\n' * 1000)\n",
    ],
)
def test_a_run_is_shown_as_it_was_answered(alice: Caller, code: str) -> None:
    before = datetime.now(UTC)
    answer = run(alice, code, limits={"timeout_ms": 200_000})

    shown = alice("get_run", run_id=answer["run_id"])

    assert {name: shown[name] for name in answer} == answer
    assert shown["method"] == "run_code"
    assert shown["identity"] == {"name": alice.http.headers["x-who"].split(";")[0], "kind": "person"}
    assert before <= datetime.fromisoformat(shown["started_at"]) <= datetime.fromisoformat(shown["finished_at"])
    assert shown["limits"]["timeout_ms"] == 200_000
    assert shown["limits"]["memory_mb"] == 512
    assert shown["network"] == []
    assert shown["parent_run_id"] is None
    assert shown["logs_blob"] == answer.get("logs_blob")


def test_a_run_of_a_skill_names_it(rpc: Rpc, new_name: str) -> None:
    publisher(rpc)(new_name)
    answer = rpc("execute_skill", name=new_name, args={"x": 1})

    shown = rpc("get_run", run_id=answer["run_id"])

    assert shown["skill"] == answer["skill"]
    assert {name: shown[name] for name in answer} == answer


def test_a_run_belongs_to_its_identity(org: Server, alice: Caller, admin: Caller, new_name: str) -> None:
    bob = Caller(org.url, Who(f"bob-{new_name}"))
    run_id = run(alice, "def main(args): return 1")["run_id"]

    for method in ("get_run", "cancel_run"):
        hidden, absent = bob.error(method, run_id=run_id), bob.error(method, run_id="run_none")
        assert hidden["code"] == absent["code"] == NOT_FOUND
        assert hidden["data"]["type"] == absent["data"]["type"] == "run_not_found"
    assert admin("get_run", run_id=run_id)["output"] == 1
    assert bob("list_runs")["runs"] == []
    assert run_id in [row["run_id"] for row in admin("list_runs", limit=1000)["runs"]]
    assert bob.error("list_runs", identity=f"alice-{new_name}")["code"] == NOT_ALLOWED
    assert [row["run_id"] for row in admin("list_runs", identity=f"alice-{new_name}")["runs"]] == [run_id]


def test_an_id_that_is_no_text_is_refused(alice: Caller) -> None:
    assert alice.error("get_run", run_id="run_\0")["code"] == INVALID
    assert alice.error("get_run", run_id="x" * 10_000)["code"] == NOT_FOUND


# -- list_runs ------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_page_by_page(alice: Caller, new_name: str) -> None:
    made = [run(alice, f"def main(args): return {number}")["run_id"] for number in range(5)]
    made.append(run(alice, "def main(args): raise KeyError('k')")["run_id"])

    found, cursor = [], ""
    while True:
        page = alice("list_runs", limit=2, cursor=cursor)
        found += page["runs"]
        cursor = page["next_cursor"]
        if not cursor:
            break

    assert [row["run_id"] for row in found] == made[::-1]
    assert found[0]["error_type"] == "KeyError"
    assert found[0]["status"] == "failed"
    assert {"output", "logs_preview", "output_blobs"}.isdisjoint(found[0])
    assert [row["run_id"] for row in alice("list_runs", status="failed")["runs"]] == made[-1:]
    assert [row["run_id"] for row in alice("list_runs", status="completed", since="1h")["runs"]] == made[4::-1]
    assert alice("list_runs", since="2099-01-01")["runs"] == []
    assert alice("list_runs", skill=f"{new_name}.none")["runs"] == []


def test_compare_runs_returns_values_and_files_that_differ(alice: Caller, admin: Caller, org: Server) -> None:
    code = """
import pathlib
import runtime
def main(args):
    out = pathlib.Path("/workspace/out")
    out.mkdir()
    (out / "equal.txt").write_text("equal")
    (out / f"{args['name']}.txt").write_text("x")
    (out / "sum.txt").write_text(str(args["rows"]))
    note = runtime.blobs.write_text("note")
    deep = args["rows"]
    for _ in range(100):
        deep = {"in": deep}
    return {"rows": {"count": args["rows"]}, "note": note, "deep": deep}
"""
    old, new = (alice("run_code", language="python", code=code, args=args)["run_id"] for args in OTHER_ARGS)
    diff = alice("compare_runs", run_id=new, other=old)

    assert (diff["old"]["run_id"], diff["new"]["run_id"], diff["has_inputs"], diff["left_out"]) == (old, new, True, 0)
    [deep] = [change for change in diff["values"] if change["path"].startswith("output.deep.in")]
    assert (deep["old"] != deep["new"], len(deep["path"]) < 110) == (True, True)
    assert [(change["path"], change["old"], change["new"]) for change in diff["values"] if change != deep] == [
        ("inputs.name", '"a"', '"b"'),
        ("inputs.rows", "3", "4"),
        ("output.rows.count", "3", "4"),
    ]
    changed_files = [(file["path"], file["old"] is None, file["new"] is None) for file in diff["files"]]
    assert changed_files == [("a.txt", False, True), ("b.txt", True, False), ("sum.txt", False, False)]
    assert alice("read_blob", blob_id=diff["files"][2]["new"]["blob_id"])["content"] == "4"
    assert admin("compare_runs", run_id=new, other=new)["values"] == []
    levels = [{"value": json.loads(f"{'[' * 800}{number}{']' * 800}")} for number in (1, 2)]
    first, second = (alice("run_code", language="python", code="def main(args): ...", args=args) for args in levels)
    [value] = alice("compare_runs", run_id=first["run_id"], other=second["run_id"])["values"]
    assert value["path"] == "inputs.value"
    assert Caller(org.url, Who("mallory")).error("compare_runs", run_id=new, other=old)["code"] == NOT_FOUND


def test_list_runs_of_a_skill_includes_all_versions(org: Server, alice: Caller, admin: Caller, new_name: str) -> None:
    for version in ("1.0.0", "1.1.0"):
        admin.create(new_name, version)
    made = [alice("execute_skill", name=new_name, version=one)["run_id"] for one in ("1.0.0", "1.1.0", "1.0.0")]
    run(alice, "def main(args): return 1")
    theirs = admin("execute_skill", name=new_name)["run_id"]

    assert [row["run_id"] for row in alice("list_runs", skill=new_name)["runs"]] == made[::-1]
    assert [row["skill"]["version"] for row in alice("list_runs", skill=new_name)["runs"]] == [
        "1.0.0",
        "1.1.0",
        "1.0.0",
    ]
    assert [row["run_id"] for row in admin("list_runs", skill=new_name)["runs"]] == [theirs, *made[::-1]]


def test_a_cursor_is_good_for_its_question_and_its_caller(org: Server, alice: Caller, new_name: str) -> None:
    for _ in range(2):
        run(alice, "def main(args): return 1")
    cursor = alice("list_runs", limit=1)["next_cursor"]
    bob = Caller(org.url, Who(f"bob-{new_name}"))

    assert alice("list_runs", limit=1, cursor=cursor)["runs"]
    for rpc, asked in ((alice, {"status": "completed"}), (alice, {"since": "1h"}), (bob, {})):
        assert rpc.error("list_runs", cursor=cursor, **asked)["data"]["type"] == "invalid_cursor"


@pytest.mark.parametrize(
    "since", ["yesterday", "2026-13-01", "2026-11-22T10:00:61", "-1h", "9999-12-31T23:59:59-14:00"]
)
def test_list_runs_rejects_an_invalid_since(alice: Caller, since: str) -> None:
    error = alice.error("list_runs", since=since)

    assert error["code"] == INVALID
    assert "24h" in error["data"]["hint"]


@pytest.mark.parametrize(
    ("whose", "asked", "index"),
    [
        ("alice", RunFilter(), "ix_runs_identity "),
        ("", RunFilter(), "ix_runs_time"),
        ("alice", RunFilter(skill="a.b"), "ix_runs_identity_skill"),
        ("", RunFilter(skill="a.b"), "ix_runs_skill"),
        ("alice", RunFilter(status="failed"), "ix_runs_identity_failed"),
        ("", RunFilter(status="failed", since="1h"), "ix_runs_failed"),
        ("alice", RunFilter(status="completed"), "ix_runs_identity "),
    ],
)
@pytest.mark.full(after=2)
def test_each_run_listing_reads_a_single_index_range(
    database: Database, whose: str, asked: RunFilter, index: str
) -> None:
    statement = behind(listing(whose, asked, datetime.now(UTC)), b"", (), "").limit(51)
    with database.engine.begin() as connection:
        _fill(connection, 6000)
        dialect = connection.dialect
        sql = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        if database.is_sqlite:
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}")]
        else:
            connection.execute(text("ANALYZE runs"))
            # Sorting so few rows is as fast as an index, so the other plans are disabled to show that an index can give
            # the order.
            for way in ("sort", "bitmapscan", "hashjoin", "seqscan"):
                connection.execute(text(f"SET LOCAL enable_{way} = off"))
            plan = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {sql}".replace("%", "%%"))]
    shown = "\n".join(plan) + " "
    assert index in shown, shown
    assert "TEMP B-TREE" not in shown
    assert "Sort" not in shown
    assert "Seq Scan on runs" not in shown


def _fill(connection: Any, count: int) -> None:
    """Insert runs of many skills and identities. Every tenth run has failed."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    connection.execute(
        insert(runs),
        [
            {
                "id": f"run_{number:06}",
                "method": "execute_skill",
                "skill_id": number % 50,
                "status": "failed" if number % 10 == 0 else "completed",
                "identity": "alice" if number % 60 < 2 else f"name{number % 7}",
                "identity_kind": "person",
                "server": "s",
                "started_at": began + timedelta(seconds=number),
            }
            for number in range(count)
        ],
    )


# -- cancel_run -----------------------------------------------------------------------------------------------------


def test_a_running_run_is_cancelled_and_its_caller_notified(alice: Caller) -> None:
    thread, results = in_background(lambda: run(Caller.same(alice), SLEEP, args={"s": 600}))
    run_id = wait_for(alice, "started")

    alice("cancel_run", run_id=run_id)

    thread.join()
    cancelled = alice("get_run", run_id=run_id)
    (answer,) = results
    assert answer["run_id"] == run_id
    assert answer["status"] == cancelled["status"] == "failed"
    assert answer["error"]["type"] == "Cancelled"
    assert "alice" in answer["error"]["message"]
    assert cancelled["finished_at"]
    assert answer["duration_ms"] > 0
    again = alice.error("cancel_run", run_id=run_id)
    assert (again["code"], again["data"]["type"], again["data"]["status"]) == (CONFLICT, "run_ended", "failed")


def test_a_run_that_has_ended_is_not_cancelled(alice: Caller) -> None:
    run_id = run(alice, "def main(args): return 1")["run_id"]

    error = alice.error("cancel_run", run_id=run_id)

    assert error["code"] == CONFLICT
    assert "completed" in error["message"]
    assert alice("get_run", run_id=run_id)["status"] == "completed"


def test_a_waiting_run_is_seen_and_leaves_the_queue(configured_server: Callable[..., Server]) -> None:
    server = configured_server(SKILLERY_CONCURRENT_RUNS="1")
    first, _ = in_background(lambda: run(Rpc(server.url), SLEEP, args={"s": 600}))
    running = wait_for(server.rpc, "started")
    second, cancelled = in_background(lambda: run(Rpc(server.url), SLEEP, args={"s": 600}))
    waiting = wait_for(server.rpc, "queued")
    third, completed = in_background(lambda: run(Rpc(server.url), SLEEP, args={"s": 0}))
    eventually(lambda: len(server.rpc("list_runs", status="queued")["runs"]) == 2)
    shown = server.rpc("get_run", run_id=waiting)

    answer = server.rpc("cancel_run", run_id=waiting)

    server.rpc("cancel_run", run_id=running)
    for thread in (first, second, third):
        thread.join()
    assert (shown["status"], shown["started_at"], shown["output"]) == ("queued", None, None)
    assert (answer["status"], answer["started_at"]) == ("failed", None)
    assert cancelled[0]["run_id"] == waiting
    assert cancelled[0]["error"]["type"] == "Cancelled"
    assert completed[0]["output"] == "slept"
    assert server.rpc("get_run", run_id=completed[0]["run_id"])["started_at"] is not None
    assert server.rpc("list_runs", status="queued")["runs"] == []


def test_called_runs_end_with_the_run_that_is_cancelled(rpc: Rpc, new_name: str) -> None:
    publisher(rpc)(new_name, code=SLEEP, permissions={"network": ["https://example.org"]})
    module = new_name.replace("-", "_")
    code = f"from skills.{module} import main as slow\ndef main(args): return slow({{'s': 600}})\n"
    thread, results = in_background(lambda: run(Rpc(rpc.url), code, mount_skills=[new_name]))
    called = wait_for(rpc, "started", skill=new_name)
    parent = rpc("get_run", run_id=called)["parent_run_id"]

    rpc("cancel_run", run_id=parent)

    thread.join()
    assert results[0]["error"]["type"] == "Cancelled"
    eventually(lambda: rpc("get_run", run_id=called)["status"] != "started")
    assert rpc("get_run", run_id=called)["error"]["type"] == "CallerEnded"
    assert rpc("describe_skill", name=new_name)["skill"]["usage"]["cancelled"] == 1


@pytest.mark.full
def test_cancel_run_stops_a_run_of_another_server(
    start_server: Callable[..., Server], new_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    env = {
        "SKILLERY_DATABASE": new_postgres_database(),
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "contents"),
    }
    one, two = (start_server(home=home, env=env) for home in ("one", "two"))
    thread, results = in_background(lambda: run(Rpc(one.url), SLEEP, args={"s": 600}))
    run_id = wait_for(two.rpc, "started")

    two.rpc("cancel_run", run_id=run_id)

    thread.join()
    assert two.rpc("get_run", run_id=run_id)["status"] == "failed"
    assert results[0]["error"]["type"] == "Cancelled"


def test_run_of_a_dead_server_is_closed_with_a_run_failed_event(database: Database) -> None:
    def leave(connection: Connection) -> None:
        for server, age in (("gone", 600), ("here", 1)):
            note_seen(connection, server)
            seen = datetime.now(UTC) - timedelta(seconds=age)
            connection.execute(servers.update().where(servers.c.id == server).values(seen_at=seen))
            values = {"id": f"run_{server}", "method": "run_code", "status": "started", "server": server}
            more = {"identity": "a", "identity_kind": "person", "started_at": seen}
            connection.execute(insert(runs).values(**values, **more))

    database.write_now(leave)
    closed = database.write_now(close_of_dead)

    found = dict(database.read_now(lambda connection: connection.execute(select(runs.c.id, runs.c.status)).all()))
    [told] = database.read_now(lambda connection: connection.execute(select(events)).all())
    assert closed == 1
    assert found == {"run_gone": "failed", "run_here": "started"}
    assert told.type == "run_failed"
    assert json.loads(told.data_json)["run_id"] == "run_gone"


# -- logs -----------------------------------------------------------------------------------------------------------


def test_a_log_longer_than_its_preview_is_a_blob(org: Server, alice: Caller, new_name: str) -> None:
    short = run(alice, "def main(args): print('short')")
    long = run(alice, "def main(args): print('zeile ä\\n' * 1000, end='')")

    assert "logs_blob" not in short
    assert alice("get_run", run_id=short["run_id"])["logs_blob"] is None
    blob = alice("read_blob", blob_id=long["logs_blob"], mode="full")
    assert blob["content"] == "zeile ä\n" * 1000
    assert blob["kind"] == "text/plain"
    assert long["logs_blob"] not in long["output_blobs"]
    bob = Caller(org.url, Who(f"bob-{new_name}"))
    assert bob.error("read_blob", blob_id=long["logs_blob"])["code"] == NOT_FOUND


def test_truncated_log_blob_states_the_number_of_missing_bytes(sqlite_rpc: Rpc) -> None:
    answer = run(sqlite_rpc, "def main(args):\n    for n in range(200_000): print(f'line {n:07}')\n")

    content = sqlite_rpc.http.get(f"/blobs/{answer['logs_blob']}").content
    head, line, tail = content.partition(b"\n\xe2\x80\xa6 ")
    missing = int(tail.split()[0])
    kept = len(head) + len(tail.partition(b"\xe2\x80\xa6\n")[2])
    assert line
    assert content.startswith(b"line 0000000\n")
    assert content.endswith(b"line 0199999\n")
    assert kept + missing == 200_000 * 13
    assert kept == 1 << 20


# -- usage ----------------------------------------------------------------------------------------------------------


def test_usage_counts_the_runs_of_each_version(rpc: Rpc, new_name: str) -> None:
    publisher(rpc)(new_name, code="def main(args):\n    if args.get('bad'): raise ValueError\n    return 1\n")
    publisher(rpc)(new_name, "1.1.0")
    unused = rpc("describe_skill", name=new_name, version="1.1.0")["skill"]["usage"]
    for bad in (False, False, False, True):
        rpc("execute_skill", name=new_name, version="1.0.0", args={"bad": bad})
    code = f"from skills.{new_name} import main as one\ndef main(args): return one(args)\n"
    assert run(rpc, code, mount_skills=[f"{new_name}@1.0.0"])["output"] == 1  # this call is not a separate run

    usage = rpc("describe_skill", name=new_name, version="1.0.0")["skill"]["usage"]

    assert unused == {
        "runs": 0, "completed": 0, "failed": 0, "cancelled": 0,
        "success_rate": None, "p50_ms": None, "p95_ms": None, "last_run_at": None,
    }  # fmt: skip
    assert (usage["runs"], usage["completed"], usage["failed"], usage["cancelled"]) == (4, 3, 1, 0)
    assert usage["success_rate"] == 0.75
    assert 0 < usage["p50_ms"] <= usage["p95_ms"]
    assert datetime.now(UTC) - datetime.fromisoformat(usage["last_run_at"]) < timedelta(minutes=5)
    assert "usage" not in rpc("describe_skill", name=new_name, detail="manifest")["skill"]
    assert rpc("describe_skill", name=new_name, version="1.1.0", detail="full")["skill"]["usage"] == unused


@given(st.lists(st.floats(0.02, 3_600_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_a_percentile_of_the_histogram_is_off_by_five_percent_at_most(durations: list[float], part: float) -> None:
    histogram: dict[int, int] = {}
    for one in durations:
        histogram[bucket_of(one)] = histogram.get(bucket_of(one), 0) + 1

    found = percentile(sorted(histogram.items()), len(durations), part)

    exact = sorted(durations)[max(0, -(-len(durations) * int(part * 100) // 100) - 1)]
    assert found is not None
    assert abs(found - exact) <= 0.05 * exact


@given(st.floats(0, 10**9), st.floats(0, 10**9))
def test_a_longer_run_is_in_no_lower_bucket(one: float, two: float) -> None:
    assert (bucket_of(one) <= bucket_of(two)) or one > two
    assert duration_of(bucket_of(one)) > 0


# -- retention ------------------------------------------------------------------------------------------------------


def test_old_runs_are_forgotten_in_batches_and_their_blobs_stay(database: Database) -> None:
    with database.engine.begin() as connection:
        _fill(connection, 100)
        connection.execute(insert(objects).values(sha256="0" * 64, size_bytes=1, data=b"x"))
        blob = {"id": "blob:x", "kind": "text/plain", "size_bytes": 1, "sha256": "0" * 64, "is_text": True}
        more = {"owner": "a", "run_id": "run_000003", "position": 0, "created_at": datetime.now(UTC)}
        connection.execute(insert(blobs).values(**blob, **more))
        connection.execute(runs.update().where(runs.c.id == "run_000005").values(status="started"))
        cutoff = cutoff_of(connection, 60)
        assert cutoff is not None
        assert cutoff_of(connection, 100) is not None
        assert cutoff_of(connection, 101) is None
        assert cutoff_of(connection, 0) is None

        of_code = {"language": "python", "entrypoint": "main", "code": "", "is_cut": False}
        for number in (3, 70):
            connection.execute(insert(run_code).values(run_id=f"run_{number:06}", **of_code))
        batches = [forget_runs(connection, before=cutoff, limit=25) for _ in range(3)]

        left = set(connection.scalars(select(runs.c.id)))
        row = connection.execute(select(blobs.c.run_id, blobs.c.position)).one()
        with_code = list(connection.scalars(select(run_code.c.run_id)))
    assert batches == [25, 14, 0]
    assert left == {"run_000005", *(f"run_{number:06}" for number in range(40, 100))}
    assert tuple(row) == (None, None)
    assert with_code == ["run_000070"]


@pytest.mark.parametrize(("code", "is_cut"), [(SLEEP, False), ("# ä\n" * 20_000 + SLEEP, True)])
def test_get_run_has_the_code_of_run_code(rpc: Rpc, code: str, is_cut: bool) -> None:
    answer = run(rpc, code, args={"s": 0})

    kept = rpc("get_run", run_id=answer["run_id"])["code"]

    assert (kept["language"], kept["entrypoint"], kept["is_cut"]) == ("python", "main", is_cut)
    assert code.startswith(kept["code"])
    assert len(kept["code"].encode()) in range(64 * 1024 - 3, 64 * 1024 + 1) if is_cut else kept["code"] == code
    assert "code" not in rpc("get_run", run_id=answer["run_id"], wait_ms=1)


def test_code_with_a_nul_is_kept_without_the_nul(rpc: Rpc) -> None:
    answer = run(rpc, "# \0\n" + SLEEP, args={"s": 0})

    assert rpc("get_run", run_id=answer["run_id"])["code"]["code"] == "# \ufffd\n" + SLEEP


def test_no_code_is_kept_if_the_setting_says_so(configured_server: Callable[..., Server]) -> None:
    server = configured_server(SKILLERY_RUNS_KEEP_CODE="false")
    answer = run(server.rpc, SLEEP, args={"s": 0})

    assert "code" not in server.rpc("get_run", run_id=answer["run_id"])


def test_collect_garbage_deletes_excess_runs_and_keeps_usage_counts(start_server: Callable[..., Server]) -> None:
    rpc = start_server(env={"SKILLERY_RUNS_KEEP_COUNT": "2", "SKILLERY_GC_INTERVAL_MINUTES": "0"}).rpc
    publisher(rpc)("a.b")
    made = [rpc("execute_skill", name="a.b")["run_id"] for _ in range(5)]

    would = rpc("collect_garbage", dry_run=True)["removed"]["runs"]
    swept = rpc("collect_garbage")["removed"]["runs"]
    again = rpc("collect_garbage")["removed"]["runs"]

    assert (would["count"], swept["count"], again["count"]) == (3, 3, 0)
    assert [row["run_id"] for row in rpc("list_runs")["runs"]] == made[:-3:-1]
    assert rpc.error("get_run", run_id=made[0])["code"] == NOT_FOUND
    assert rpc("describe_skill", name="a.b")["skill"]["usage"]["runs"] == 5


@pytest.mark.full
def test_a_count_that_shortens_the_days_is_warned_of(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_RUNS_KEEP_COUNT": "2", "SKILLERY_GC_INTERVAL_MINUTES": "0"})

    def probe(count: str) -> Any:
        found = skillery("doctor", "--home", str(server.home), "--json", SKILLERY_RUNS_KEEP_COUNT=count).json
        return next(one for one in found["probes"] if one["name"] == "runs")

    words = "Runs are kept for 1 hour only"
    assert words not in server.rpc.http.get("/admin").text
    for _ in range(3):
        run(server.rpc, "def main(args): return 1")

    assert words in server.rpc.http.get("/admin").text
    assert "keep_count = 2 shortens runs.keep_days = 90" in probe("2")["detail"]
    assert probe("0")["ok"] is True


# -- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_runs_on_the_command_line(sqlite_server: Server) -> None:
    made = run(sqlite_server.rpc, "def main(args): print('zeile\\n' * 500, end='')")
    url = ("--url", sqlite_server.url)

    listed = skillery("runs", "list", "--limit", "1", "--json", *url)
    plain = skillery("runs", "list", "--limit", "1", *url)
    shown = skillery("runs", "show", made["run_id"], *url)
    logs = skillery("runs", "logs", made["run_id"], *url)
    cancelled = skillery("runs", "cancel", made["run_id"], *url)

    assert listed.json["runs"][0]["run_id"] == made["run_id"]
    assert plain.out.startswith(f"{made['run_id']}\tcompleted\trun_code\t")
    assert "logs_blob" in shown.out
    assert logs.out == "zeile\n" * 500
    assert cancelled.code != 0
    assert "completed" in cancelled.err


def test_runs_cancel_prints_its_end(sqlite_server: Server) -> None:
    code = "import time\ndef main(args): time.sleep(600)"
    made = [sqlite_server.rpc("run_code", language="python", code=code, background=True)["run_id"] for _ in range(2)]
    plain = skillery("runs", "cancel", made[0], "--url", sqlite_server.url)
    as_json = skillery("runs", "cancel", made[1], "--url", sqlite_server.url, "--json").json

    assert (plain.out, plain.err) == (f"cancelled {made[0]} at {sqlite_server.url}\n", "")
    assert as_json["error"]["type"] == "Cancelled"


def test_get_run_returns_resource_usage(rpc: Rpc) -> None:
    code = "def main(args):\n    open('data', 'wb').write(bytes(3_000_000))\n    held = bytearray(40_000_000)\n"
    used = rpc("get_run", run_id=run(rpc, code)["run_id"])["used"]

    assert used["memory_bytes"] > 40_000_000
    assert 3_000_000 <= used["disk_bytes"] < 4_000_000
    assert used["prepared_ms"] >= 0
    assert used["queued_ms"] is None
    assert used["processes"] in {None, 1}
