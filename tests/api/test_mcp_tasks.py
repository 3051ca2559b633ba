"""MCP tasks (the extension io.modelcontextprotocol/tasks), and progress notifications with the log of the run."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from skillery.cli.connection import client_of
from skillery.cli.mcp_bridge import McpBridge
from tests.conftest import Rpc, Server, StartShared
from tests.support.conformance_tools import TASK_SECONDS, WITH_TASKS
from tests.support.mcp_client import LEGACY, Mcp, messages_of
from tests.support.people import Caller, Who
from tests.support.processes import eventually

TASKS = "io.modelcontextprotocol/tasks"
STEPS = """
import time
from runtime import progress
def main(args):
    for number in (1, 2):
        print("line", number, flush=True)
        progress(number, 2, f"step {number}")
        time.sleep(args["s"])
    return "done"
"""
STAYS = STEPS.replace("    return", "    time.sleep(600)\n    return")
SLEEP = "import time\ndef main(args):\n    time.sleep(args['s'])\n    return 'slept'\n"


@pytest.fixture(scope="module")
def quick(shared_server: StartShared) -> Rpc:
    """Return a server on which runs of more than TASK_SECONDS become tasks."""
    return shared_server("tasks", "sqlite", **WITH_TASKS).rpc


def with_tasks(rpc: Rpc) -> Mcp:
    return Mcp(rpc, declared=[TASKS])


def code(text: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"language": "python", "code": text, "args": {"s": seconds}, **more}


def until(mcp: Mcp, task_id: str, is_reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first state of the task that fulfils the condition."""
    return eventually(lambda: is_reached(task := mcp("tasks/get", taskId=task_id)) and task)


def has_ended(task: dict[str, Any]) -> bool:
    return bool(task["status"] != "working")


@pytest.mark.full
def test_a_background_run_is_a_task_with_last_line_and_result(rpc: Rpc) -> None:
    mcp = with_tasks(rpc)

    stays = mcp.tool("run_code", **code(STAYS, 0, background=True))["taskId"]
    working = until(mcp, stays, lambda task: task.get("statusMessage") == "step 2: line 2")
    mcp("tasks/cancel", taskId=stays)
    task = mcp.tool("run_code", **code(STEPS, 0, background=True))
    ended = until(mcp, task["taskId"], has_ended)

    assert (task["resultType"], task["status"]) == ("task", "working")
    assert (task["pollIntervalMs"], task["ttlMs"]) == (1000, 90 * 24 * 3600 * 1000)
    assert working["status"] == "working"
    assert "result" not in working
    assert ended["status"] == "completed"
    assert ended["result"]["structuredContent"] == {
        **ended["result"]["structuredContent"],
        "run_id": task["taskId"],
        "output": "done",
    }
    assert ended["result"]["isError"] is False
    assert ended["lastUpdatedAt"] > task["createdAt"] == ended["createdAt"]


def test_a_long_run_is_a_task_only_for_clients_that_support_tasks(quick: Rpc) -> None:
    task = with_tasks(quick).tool("run_code", **code(SLEEP, 60))
    quick("cancel_run", run_id=task["taskId"])
    result = Mcp(quick).tool("run_code", **code(SLEEP, TASK_SECONDS + 0.5))
    background = Mcp(quick).tool("run_code", **code(SLEEP, 0, background=True))

    assert task["resultType"] == "task"
    assert (result["resultType"], result["structuredContent"]["output"]) == ("complete", "slept")
    assert (background["resultType"], background["structuredContent"]["status"]) == ("complete", "started")


def test_a_cancelled_task_is_cancelled_and_stays_so(rpc: Rpc) -> None:
    mcp = with_tasks(rpc)
    task_id = mcp.tool("run_code", **code(SLEEP, 60, background=True))["taskId"]

    mcp("tasks/cancel", taskId=task_id)

    assert until(mcp, task_id, has_ended)["status"] == "cancelled"
    mcp("tasks/cancel", taskId=task_id)
    assert rpc("get_run", run_id=task_id)["error"]["type"] == "Cancelled"


def test_the_task_of_another_caller_does_not_exist(org: Server, new_name: str) -> None:
    owner = with_tasks(Caller(org.url, Who(new_name, "read run")))
    task_id = owner.tool("run_code", **code(SLEEP, 600, background=True))["taskId"]

    for scopes in ("read run", "read run admin"):
        other = with_tasks(Caller(org.url, Who(f"{new_name}b", scopes)))
        errors = [other.error(method, taskId=task_id) for method in ("tasks/get", "tasks/cancel")]
        errors.append(other.error("tasks/update", taskId=task_id, inputResponses={}))
        assert [(error["code"], error["data"]["type"]) for error in errors] == [(-32602, "task_not_found")] * 3
    assert owner("tasks/get", taskId=task_id)["status"] == "working"
    owner("tasks/cancel", taskId=task_id)


def test_older_versions_of_the_protocol_have_no_tasks(sqlite_rpc: Rpc) -> None:
    mcp = Mcp(sqlite_rpc, LEGACY)
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}

    assert TASKS not in mcp("initialize", **hello)["capabilities"].get("extensions", {})
    assert mcp.error("tasks/get", taskId="run_0")["code"] == -32601


def test_a_repeated_call_has_the_same_task(quick: Rpc, new_name: str) -> None:
    mcp = with_tasks(quick)
    call = {
        "name": "run_code",
        "arguments": code(SLEEP, TASK_SECONDS + 3),
        "_meta": {"skillery/idempotency-key": new_name},
    }

    first = mcp("tools/call", **call)
    again = mcp("tools/call", **call)
    until(mcp, first["taskId"], has_ended)
    after = mcp("tools/call", **call)

    assert again["taskId"] == first["taskId"]
    assert after["taskId"] == first["taskId"]


@pytest.mark.full
def test_a_task_waits_for_its_workspace_without_a_limit(start_server: Callable[..., Server]) -> None:
    env = {"SKILLERY_RUNS_TASK_SECONDS": "0.2", "SKILLERY_RUNS_WORKSPACE_SECONDS": "1"}
    rpc = start_server(env=env).rpc
    workspace = rpc("create_workspace")["id"]
    writer = rpc("run_code", **code(SLEEP, 60, workspace=workspace, background=True))["run_id"]
    eventually(lambda: rpc("describe_workspace", workspace=workspace)["workspace"]["run_id"])
    mcp = with_tasks(rpc)

    task = mcp.tool("run_code", **code(SLEEP, 0, workspace=workspace))
    time.sleep(1.2)  # no event: longer than a run waits for its workspace
    waiting = mcp("tasks/get", taskId=task["taskId"])
    rpc("cancel_run", run_id=writer)

    assert (task["resultType"], waiting["status"]) == ("task", "working")
    assert until(mcp, task["taskId"], has_ended)["result"]["structuredContent"]["output"] == "slept"


@pytest.mark.full
def test_any_server_of_a_database_answers_for_a_task(
    start_server: Callable[..., Server], migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    env = {
        "SKILLERY_DATABASE": migrated_postgres_database(),
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "contents"),
    }
    first, second = [with_tasks(start_server(home=home, env=env).rpc) for home in ("one", "two")]

    short = first.tool("run_code", **code(SLEEP, 0, background=True))["taskId"]
    long = first.tool("run_code", **code(STEPS, 60, background=True))["taskId"]

    assert until(second, short, has_ended)["result"]["structuredContent"]["output"] == "slept"
    until(second, long, lambda task: task.get("statusMessage") == "step 1: line 1")
    second("tasks/cancel", taskId=long)
    assert until(second, long, has_ended)["status"] == "cancelled"


async def test_a_bridge_names_the_task_in_the_header(sqlite_server: Server) -> None:
    task_id = sqlite_server.rpc("run_code", **code(SLEEP, 0, background=True))["run_id"]
    body, _ = with_tasks(sqlite_server.rpc).request("tasks/get", {"taskId": task_id})
    said = io.BytesIO()

    async with client_of(sqlite_server.url, None) as client:
        await McpBridge(lambda: nullcontext(client), [], io.BytesIO(body.encode() + b"\n"), said).run()

    assert json.loads(said.getvalue())["result"]["taskId"] == task_id


@pytest.mark.parametrize("declared", [[], [TASKS]])
def test_progress_contains_reported_steps_and_the_last_log_line(sqlite_rpc: Rpc, declared: list[str]) -> None:
    call = {"name": "run_code", "arguments": code(STEPS, 0.3), "_meta": {"progressToken": "p"}}

    *told, answer = messages_of(Mcp(sqlite_rpc, declared=declared).send("tools/call", call))

    params = [one["params"] for one in told]
    # On a loaded machine, the first message comes before the code has begun, and one message for both steps.
    steps = [one for one in params if one["message"].startswith("step ")]
    assert [one["message"] for one in steps] in (["step 1: line 1", "step 2: line 2"], ["step 2: line 2"])
    assert {(one["progressToken"], one["total"]) for one in steps} == {("p", 2)}
    numbers = [one["progress"] for one in params]
    assert numbers == sorted(numbers)
    assert steps != params or numbers in ([1, 2], [2])
    assert answer["result"]["structuredContent"]["output"] == "done"


def test_progress_contains_the_last_log_line_if_the_run_reports_none(sqlite_rpc: Rpc) -> None:
    text = "import time\ndef main(args):\n    print('reading', flush=True)\n    time.sleep(args['s'])\n"
    call = {"name": "run_code", "arguments": code(text, 4), "_meta": {"progressToken": "p"}}

    *told, _ = messages_of(Mcp(sqlite_rpc).send("tools/call", call))

    messages = [one["params"]["message"] for one in told]
    assert messages[-1] == "reading"
    # On a loaded machine, the first message comes before the code has begun.
    assert all(message == "reading" or message.startswith("run_code has been at work for ") for message in messages)
