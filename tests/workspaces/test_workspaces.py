"""Workspaces: files that stay from run to run, as callers see them."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillery.workspaces.rows import SNAPSHOTS
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.runs.test_run_files import blob
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

WRITES = """
import pathlib, time
def main(args):
    for path, text in args.get("write", {}).items():
        file = pathlib.Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for path in args.get("remove", []): pathlib.Path(path).unlink()
    print("written", flush=True)
    time.sleep(args.get("sleep", 0))
    if args.get("fail"): raise KeyError("x")
    return {str(path): path.read_text() for path in sorted(pathlib.Path().rglob("*")) if path.is_file()}
"""


def run(rpc: Rpc, workspace: str, *, more: dict[str, Any] | None = None, **args: Any) -> dict[str, Any]:
    found: dict[str, Any] = rpc(
        "run_code", language="python", code=WRITES, args=args, workspace=workspace, **(more or {})
    )
    return found


def begin(rpc: Rpc, workspace: str, **args: Any) -> str:
    """Begin a run in the background. Return its id when it has written its files."""
    run_id = str(run(rpc, workspace, more={"background": True}, **args)["run_id"])
    eventually(lambda: rpc("read_run_log", run_id=run_id, wait_ms=1000)["text"])
    return run_id


def create(rpc: Rpc, **given: Any) -> dict[str, Any]:
    made: dict[str, Any] = rpc("create_workspace", **given)
    return made


def test_files_stay_from_run_to_run(server: Server) -> None:
    rpc = server.rpc
    made = create(rpc, name="orders")
    first = run(rpc, made["id"], write={"a.txt": "one", "data/large": "x" * 100_000})
    second = run(rpc, made["id"], write={"b.txt": "two"}, remove=["a.txt"])

    use, later = first["workspace"], second["workspace"]
    assert (use["id"], use["before"], use["changed"], use["left_out"]) == (made["id"], made["snapshot"], 2, [])
    assert (later["before"], later["changed"]) == (use["after"], 2)
    assert rpc("get_run", run_id=first["run_id"])["workspace"] == use
    described = rpc("describe_workspace", workspace=made["id"])
    assert [(one["path"], one["size_bytes"]) for one in described["entries"]] == [("b.txt", 3), ("data/large", 100_000)]
    assert [one["snapshot"] for one in described["snapshots"]] == [later["after"], use["after"]]
    about = described["workspace"]
    assert (about["name"], about["files"], about["size_bytes"], about["run_id"]) == ("orders", 2, 100_003, None)
    assert rpc("read_workspace_file", workspace=made["id"], path="b.txt") == {"content": "two", "encoding": "utf-8"}
    assert rpc.error("read_workspace_file", workspace=made["id"], path="a.txt")["code"] == -32003
    page = rpc("describe_workspace", workspace=made["id"], limit=1)
    rest = rpc("describe_workspace", workspace=made["id"], limit=1, cursor=page["next_cursor"])
    assert ([one["path"] for one in rest["entries"]], rest["next_cursor"]) == (["data/large"], None)


def test_a_run_that_changes_nothing_leaves_no_snapshot(sqlite_rpc: Rpc) -> None:
    made = create(sqlite_rpc, files=[{"path": "a/b.txt", "blob_id": blob(sqlite_rpc, "one")}])

    answer = run(sqlite_rpc, made["id"])

    assert answer["output"] == {"a/b.txt": "one"}
    assert answer["workspace"]["before"] == answer["workspace"]["after"] == made["snapshot"]
    assert len(sqlite_rpc("describe_workspace", workspace=made["id"])["snapshots"]) == 1


def test_failed_and_stopped_runs_save_their_files_and_reset_takes_them_back(sqlite_rpc: Rpc) -> None:
    made = create(sqlite_rpc)
    good = run(sqlite_rpc, made["id"], write={"a": "1"})["workspace"]["after"]
    failed = run(sqlite_rpc, made["id"], write={"b": "2"}, fail=True)
    late: dict[str, Any] = {}
    for timeout_ms in (500, 5_000, 50_000):  # on a loaded machine, the code needs time until it begins
        late = run(sqlite_rpc, made["id"], write={"c": "3"}, sleep=60, more={"limits": {"timeout_ms": timeout_ms}})
        if late["logs_preview"]:
            break

    assert (failed["status"], late["error"]["type"]) == ("failed", "TimeoutError")
    assert run(sqlite_rpc, made["id"], more={"workspace_mode": "read"})["output"] == {"a": "1", "b": "2", "c": "3"}
    back = sqlite_rpc("reset_workspace", workspace=made["id"], snapshot=good)
    assert (back["snapshot"], run(sqlite_rpc, made["id"])["output"]) == (good, {"a": "1"})
    unknown = sqlite_rpc.error("reset_workspace", workspace=made["id"], snapshot="sha256:" + "0" * 64)
    assert (unknown["code"], unknown["data"]["type"]) == (-32003, "snapshot_not_found")


def test_reading_and_snapshots_save_nothing(sqlite_rpc: Rpc) -> None:
    made = create(sqlite_rpc)
    snapshot = run(sqlite_rpc, made["id"], write={"a": "1"})["workspace"]["after"]

    for how in ({"workspace": made["id"], "workspace_mode": "read"}, {"workspace": snapshot}):
        answer = sqlite_rpc("run_code", language="python", code=WRITES, args={"write": {"b": "2"}}, **how)
        assert (answer["output"], answer["workspace"]["after"]) == ({"a": "1", "b": "2"}, snapshot)
    assert run(sqlite_rpc, made["id"])["output"] == {"a": "1"}


def test_a_workspace_keeps_its_newest_snapshots(server: Server) -> None:
    workspace = create(server.rpc)["id"]
    file = f"/v1/workspaces/{workspace}/files/a"
    left = [server.rpc.http.put(file, content=b"%d" % number).json()["snapshot"] for number in range(SNAPSHOTS + 2)]
    kept = server.rpc("describe_workspace", workspace=workspace)["snapshots"]

    assert [one["snapshot"] for one in kept] == left[:1:-1]
    assert server.rpc("reset_workspace", workspace=workspace, snapshot=left[2])["snapshot"] == left[2]
    older = server.rpc.error("reset_workspace", workspace=workspace, snapshot=left[1])
    assert older["data"]["type"] == "snapshot_not_found"


def test_a_fork_of_a_fork_outlives_the_workspaces_before_it(server: Server) -> None:
    rpc = server.rpc
    first = create(rpc)
    ran = run(rpc, first["id"], write={"a": "1", "large": "x" * 100_000})
    second = create(rpc, origin=first["id"])
    third = create(rpc, origin=run(rpc, second["id"], write={"b": "2"})["run_id"])
    by_digest = create(rpc, origin=ran["workspace"]["after"])
    for one in (first, second):
        rpc("delete_workspace", workspace=one["id"])
    rpc("collect_garbage")

    found = run(rpc, third["id"])
    assert (third["parent"].startswith("run_"), second["parent"]) == (True, first["id"])
    assert set(rpc("read_workspace_file", workspace=third["id"], path="large")["content"]) == {"x"}
    assert found["workspace"]["changed"] == 0
    assert run(rpc, by_digest["id"], remove=["large"])["output"] == {"a": "1"}
    assert rpc.error("describe_workspace", workspace=first["id"])["data"]["type"] == "workspace_not_found"
    gone = rpc.error("create_workspace", origin=ran["run_id"])
    assert gone["data"]["type"] == "snapshot_not_found"


def test_busy_workspace_serializes_runs_and_refuses_reset_and_delete(sqlite_server: Server) -> None:
    rpc = sqlite_server.rpc
    made = create(rpc)
    begun = begin(rpc, made["id"], write={"a": "1"}, sleep=600)

    for method, given in (
        ("delete_workspace", {}),
        ("reset_workspace", {"snapshot": made["snapshot"]}),
    ):
        busy = rpc.error(method, workspace=made["id"], **given)
        assert (busy["code"], busy["data"]["type"]) == (-32006, "workspace_busy")
    assert create(rpc, origin=made["id"])["parent"] == made["id"]
    later = run(rpc, made["id"], write={"b": "2"}, more={"background": True})["run_id"]
    rpc("cancel_run", run_id=begun)
    second = rpc("get_run", run_id=later, wait_ms=60_000)

    assert second["output"] == {"a": "1", "b": "2"}
    assert second["workspace"]["before"] == rpc("get_run", run_id=begun)["workspace"]["after"]


@pytest.mark.full
def test_a_run_that_waits_too_long_for_its_workspace_is_refused(start_server: Callable[..., Server]) -> None:
    rpc = start_server(env={"SKILLERY_RUNS_WORKSPACE_SECONDS": "0.2"}).rpc
    made = create(rpc)
    writer = begin(rpc, made["id"], write={"a": "1"}, sleep=60)

    given = {"language": "python", "code": WRITES, "workspace": made["id"]}
    busy = rpc.error("run_code", **given)
    patient = rpc("run_code", **given, background=True)["run_id"]
    assert (busy["code"], busy["data"]["type"], busy["data"]["run_id"]) == (-32006, "workspace_busy", writer)
    assert busy["data"]["retry_after_ms"] > 0
    assert "fork" in busy["data"]["hint"]
    rpc("run_code", **given, workspace_mode="read")
    rpc("cancel_run", run_id=writer)
    assert rpc("get_run", run_id=patient, wait_ms=60_000)["output"] == {"a": "1"}
    assert [one["run_id"] for one in rpc("list_runs")["runs"] if one["status"] == "failed"] == [writer]


def test_workspaces_belong_to_their_identity(org: Server) -> None:
    mine, other = Caller(org.url, Who("owner")), Caller(org.url, Who("other"))
    made = create(mine)
    snapshot = run(mine, made["id"], write={"a": "1"})["workspace"]["after"]

    for text in (made["id"], snapshot):
        assert other.error("run_code", language="python", code=WRITES, workspace=text)["code"] == -32003
        assert other.error("create_workspace", origin=text)["code"] == -32003
    assert other.error("describe_workspace", workspace=made["id"])["code"] == -32003
    assert made["id"] not in [one["id"] for one in other("list_workspaces")["workspaces"]]
    assert made["id"] in [one["id"] for one in mine("list_workspaces")["workspaces"]]


@pytest.mark.parametrize("accepts", [True, False])
def test_skill_with_permissions_needs_runtime_workspace(sqlite_rpc: Rpc, new_name: str, accepts: bool) -> None:
    runtime = {"language": "python", "entrypoint": "code/main.py", **({"workspace": True} if accepts else {})}
    permissions = {"network": ["https://example.com"]}
    manifest = {
        "name": new_name,
        "version": "1.0.0",
        "description": "D.",
        "runtime": runtime,
        "permissions": permissions,
    }
    files = [{"path": "code/main.py", "content": WRITES}]
    sqlite_rpc("create_skill", manifest=manifest, skill_md="# S\n", files=files)
    other = {**manifest, "version": "1.1.0", "runtime": {**runtime, "workspace": True}}
    diff = sqlite_rpc("check_skill", manifest=other, skill_md="# S\n", files=files)["permissions_diff"]
    assert diff["added"].get("workspace", False) is not accepts
    made = create(sqlite_rpc)
    given: dict[str, Any] = {"name": new_name, "args": {"write": {"a": "1"}}, "workspace": made["id"]}

    if accepts:
        assert sqlite_rpc("execute_skill", **given)["workspace"]["changed"] == 1
        assert sqlite_rpc("describe_skill", name=new_name)["skill"]["manifest"]["runtime"]["workspace"] is True
    else:
        error = sqlite_rpc.error("execute_skill", **given)
        assert (error["code"], error["data"]["type"]) == (-32602, "workspace_not_accepted")


def test_an_expired_workspace_does_not_exist(sqlite_server: Server) -> None:
    rpc = sqlite_server.rpc
    assert rpc.error("create_workspace", ttl=1)["code"] == -32602
    error = rpc.error("run_code", language="python", code=WRITES, workspace="ws_none")
    assert (error["code"], error["data"]["type"]) == (-32003, "workspace_not_found")
    assert rpc.error("run_code", language="python", code=WRITES, workspace="none")["code"] == -32602


@pytest.mark.full
def test_an_expired_workspace_is_swept_with_its_contents(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server(env={"SKILLERY_GC_GRACE_MINUTES": "0", "SKILLERY_GC_INTERVAL_MINUTES": "0"})
    kept, gone = create(server.rpc)["id"], create(server.rpc)["id"]
    for workspace, letter in ((kept, "k"), (gone, "g")):
        run(server.rpc, workspace, write={"large": letter * 100_000, "small": letter})
    with sqlite3.connect(tmp_path / "home" / "skillery.db") as database:
        database.execute("UPDATE workspaces SET expires_at = '2020-01-01 00:00:00.000000' WHERE id = ?", (gone,))

    assert server.rpc.error("describe_workspace", workspace=gone)["data"]["type"] == "workspace_not_found"
    assert server.rpc("collect_garbage", dry_run=True)["removed"]["expired_workspaces"] == {"count": 1, "bytes": 0}
    removed = server.rpc("collect_garbage")["removed"]
    assert removed["expired_workspaces"]["count"] == 1
    assert removed["unused_contents"]["count"] >= 3  # two files and the manifest
    assert run(server.rpc, kept)["workspace"]["changed"] == 0
    assert server.rpc("collect_garbage")["removed"]["unused_contents"]["count"] == 0


@pytest.mark.full
def test_quotas_limit_workspaces_and_their_bytes(start_server: Callable[..., Server], tmp_path: Path) -> None:
    more = {"SKILLERY_QUOTAS_WORKSPACES": "2", "SKILLERY_QUOTAS_WORKSPACES_MB": "1"}
    rpc = Caller(start_server(env=people_settings(tmp_path / "people", **more)).url, Who("owner"))
    made = create(rpc)["id"]
    full = run(rpc, made, write={"a": "x" * 900_000})["workspace"]

    over = run(rpc, made, write={"b": "x" * 900_000})["workspace"]
    assert (over["after"], over["changed"]) == (full["after"], 0)
    assert "quota" in over["not_saved"]
    assert rpc.error("create_workspace", origin=made)["data"]["quota"] == "workspace_bytes"
    create(rpc)
    error = rpc.error("create_workspace")
    assert (error["code"], error["data"]["quota"]) == (-32005, "workspaces")


def test_the_command_line_runs_in_a_workspace(sqlite_server: Server, tmp_path: Path) -> None:
    workspace = create(sqlite_server.rpc)["id"]
    code = tmp_path / "write.py"
    code.write_text("def main(args): open('a', 'w').write('1')")

    ran = skillery("code", str(code), "--workspace", workspace, "--url", sqlite_server.url)

    assert ran.code == 0, ran.err
    assert run(sqlite_server.rpc, workspace)["output"] == {"a": "1"}


@pytest.mark.full
def test_kill_9_while_a_run_saves_loses_nothing(start_server: Callable[..., Server]) -> None:
    """The killed run may have stored contents. The current snapshot is the one before it or its own, and is whole."""
    server = start_server()
    made = create(server.rpc)
    state = {"a": "0" * 100_000}
    run(server.rpc, made["id"], write=state)
    for number, pause in enumerate((0.0, 0.03, 0.06)):
        write = {"a": str(number + 1) * 100_000, f"b{number}": "x"}
        begun = run(server.rpc, made["id"], write=write, more={"background": True})["run_id"]
        while server.rpc("describe_workspace", workspace=made["id"])["workspace"]["run_id"] is None:
            if server.rpc("get_run", run_id=begun)["finished_at"]:
                break
        time.sleep(pause)
        server.stop(signal.SIGKILL)
        server = start_server()
        server.rpc("collect_garbage")

        ended = server.rpc("get_run", run_id=begun)
        found = server.rpc("run_code", language="python", code=LETTER, workspace=made["id"])
        assert ended["status"] in {"completed", "failed"}
        assert found["output"] in [state["a"][0], write["a"][0]]
        assert (ended["status"] == "failed") == (found["output"] == state["a"][0])
        state["a"] = found["output"] * 100_000


LETTER = "def main(args):\n    [letter] = set(open('a').read())\n    return letter"


@pytest.mark.full
def test_background_run_is_recorded_as_failed_if_it_cannot_start(
    start_server: Callable[..., Server],
) -> None:
    rpc = start_server(env={"SKILLERY_CONCURRENT_RUNS": "1", "SKILLERY_QUEUED_MB": "1"}).rpc
    made = create(rpc)
    first = run(rpc, made["id"], sleep=600, more={"background": True})["run_id"]
    large = run(rpc, made["id"], unused="x" * 2_000_000, more={"background": True})["run_id"]
    sleeps = "import time\ndef main(args): time.sleep(600)"
    second = rpc("run_code", language="python", code=sleeps, background=True)["run_id"]
    eventually(lambda: second in [row["run_id"] for row in rpc("list_runs", status="queued")["runs"]])
    # The second run gets the slot of the first. When the large run gets the workspace, the queue has no room for it.
    rpc("cancel_run", run_id=first)

    ended = rpc("get_run", run_id=large, wait_ms=60_000)
    rpc("cancel_run", run_id=second)

    assert ended["status"] == "failed"
    assert ended["error"]["type"] == "SandboxError"
    assert "queued_mb" in ended["error"]["message"]
