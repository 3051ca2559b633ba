"""execute_skill and run_code over HTTP, in the real sandbox."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.processes import eventually
from tests.support.raw_http import RawConnection, connected

Publish = Callable[..., dict[str, Any]]


def run(rpc: Rpc, code: str, **params: Any) -> dict[str, Any]:
    answer: dict[str, Any] = rpc("run_code", language="python", code=code, **params)
    return answer


def output(rpc: Rpc, code: str, **params: Any) -> Any:
    answer = run(rpc, code, **params)
    assert answer["status"] == "completed", answer
    return answer["output"]


def failure(rpc: Rpc, code: str, **params: Any) -> dict[str, Any]:
    answer = run(rpc, code, **params)
    assert answer["status"] == "failed", answer
    assert answer["output"] is None
    error: dict[str, Any] = answer["error"]
    return error


def test_a_run_has_all_its_fields(rpc: Rpc, publish: Publish, new_name: str) -> None:
    published = publish(new_name, code="def main(args):\n    print('hello')\n    return {'sum': sum(args['xs'])}\n")

    answer = rpc("execute_skill", name=new_name, args={"xs": [1, 2, 3]})

    assert answer["status"] == "completed"
    assert re.fullmatch(r"run_[0-9A-Za-z]+", answer["run_id"])
    assert answer["output"] == {"sum": 6}
    assert answer["output_blobs"] == []
    assert answer["logs_preview"] == "hello\n"
    assert answer["duration_ms"] > 0
    assert answer["summary"]
    assert answer["skill"] == {"name": new_name, "version": "1.0.0", "digest": published["digest"]}
    assert "error" not in answer


def test_failed_run_returns_error_traceback_and_logs(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(new_name, code="def main(args):\n    print('before')\n    raise RuntimeError('no such sheet')\n")

    answer = rpc("execute_skill", name=new_name)

    assert answer["status"] == "failed"
    assert answer["output"] is None
    assert answer["error"]["type"] == "RuntimeError"
    assert answer["error"]["message"] == "no such sheet"
    assert "line 3" in answer["error"]["traceback"]
    assert "raise RuntimeError" in answer["error"]["traceback"]
    assert answer["logs_preview"] == "before\n"


@pytest.mark.parametrize("value", [None, 0, 1.5, True, "text", "ä😀\u2028", [], [1, [2]], {}, {"a": None}, 2**60])
def test_any_json_value_comes_back_as_it_went(rpc: Rpc, value: Any) -> None:
    assert output(rpc, "def main(args): return args['value']", args={"value": value}) == value


def test_args_left_out_are_an_empty_object(rpc: Rpc) -> None:
    assert output(rpc, "def main(args): return args") == {}


def test_an_async_entrypoint_is_awaited(rpc: Rpc) -> None:
    code = "import asyncio\nasync def go(args):\n    await asyncio.sleep(0.01)\n    return 'done'\n"

    assert output(rpc, code, entrypoint="go") == "done"


def test_a_tuple_is_a_list(rpc: Rpc) -> None:
    assert output(rpc, "def main(args): return (1, (2, 3))") == [1, [2, 3]]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("def main(args): return {1: 2}", "InvalidOutput"),
        ("def main(args): return float('nan')", "InvalidOutput"),
        ("def main(args): return b'bytes'", "InvalidOutput"),
        ("def main(args): return {1, 2}", "InvalidOutput"),
        ("def main(args):\n    x = []\n    x.append(x)\n    return x", "InvalidOutput"),
        ("def main(args): return '\\ud800'", "InvalidOutput"),
        ("def main(args): return 'x' * (17 << 20)", "InvalidOutput"),
        ("def main(args): return main", "InvalidOutput"),
        ("def main(args)", "SyntaxError"),
        ("x = (", "SyntaxError"),
        ("def other(args): pass", "AttributeError"),
        ("main = 5", "TypeError"),
        ("import nothing_like_this", "ModuleNotFoundError"),
        ("import skillery", "ModuleNotFoundError"),
        ("import msgspec", "ModuleNotFoundError"),
        ("import sys\ndef main(args): sys.exit(0)", "SystemExit"),
        ("def main(args): raise SystemExit('bye')", "SystemExit"),
        ("def main(args): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os\ndef main(args): os._exit(0)", "ProcessExited"),
        ("import os\ndef main(args): os._exit(7)", "ProcessExited"),
        ("import os\ndef main(args): os.abort()", "ProcessKilled"),
        ("import os, signal\ndef main(args): os.kill(os.getpid(), signal.SIGKILL)", "ProcessKilled"),
        ("class Mine(Exception): pass\ndef main(args): raise Mine('x')", "Mine"),
        ("def main(args): return [0] * 10**10", "MemoryError"),
        ("def main(args): return 1 / 0", "ZeroDivisionError"),
    ],
)
def test_failed_run_has_error_type_of_its_cause(sqlite_rpc: Rpc, code: str, kind: str) -> None:
    error = failure(sqlite_rpc, code)

    assert error["type"] == kind, error
    assert len(error["message"]) <= 1000
    assert "skillery" not in error.get("traceback", "").replace("No module named 'skillery'", "").replace(
        "import skillery", ""
    )


def test_a_timeout_ends_a_run_in_time(sqlite_rpc: Rpc) -> None:
    error = failure(sqlite_rpc, "def main(args):\n    while True: pass", limits={"timeout_ms": 300})

    assert error["type"] == "TimeoutError"
    assert "300" in error["message"]


def test_the_stack_of_a_stopped_run_is_in_its_error(sqlite_rpc: Rpc) -> None:
    code = """
        import signal, sys

        def main(args):
            print('the time is almost over; the code is here (most recent call last):', flush=True)
            print('  File "/skills/other/\\x1b[2J.py", line 3, in f\\x07', flush=True)
            if args:
                signal.setitimer(signal.ITIMER_REAL, 0)
            while True: pass
    """
    code = textwrap.dedent(code)

    def stopped_at(place: str, **args: Any) -> dict[str, Any] | None:
        """Return the error of a stopped run. On a loaded machine, its time may be over before it writes its stack."""
        error = failure(sqlite_rpc, code, args=args, limits={"timeout_ms": 3000})
        return error if f"the code was at {place}:" in error["message"] else None

    error = eventually(lambda: stopped_at("run_code.py"))
    forged = eventually(lambda: stopped_at("\\x1b[2J.py", forges=True))
    assert "the code was at run_code.py:9, in main" in error["message"]
    assert "while True: pass" in error["traceback"]
    assert forged["message"].isprintable()
    assert "the code was at \\x1b[2J.py:3, in f\\x07" in forged["message"]


def test_memory_past_the_limit_ends_a_run(sqlite_rpc: Rpc) -> None:
    code = """
import os
def main(args):
    for _ in range(6):
        if os.fork() == 0:
            held = [bytearray(1 << 20) for _ in range(40)]
            import time; time.sleep(60)
    import time; time.sleep(60)
"""
    error = failure(sqlite_rpc, code, limits={"memory_mb": 128, "timeout_ms": 200_000})

    assert error["type"] in {"MemoryLimitExceeded", "MemoryError"}


def test_the_message_and_the_traceback_are_short(sqlite_rpc: Rpc) -> None:
    error = failure(
        sqlite_rpc, "def f(n):\n    return f(n + 1)\ndef main(args): raise ValueError('x' * 100_000) from None"
    )
    deep = failure(sqlite_rpc, "def f(n):\n    return f(n + 1)\ndef main(args): f(0)")

    assert len(error["message"]) == 1000
    assert deep["type"] == "RecursionError"
    assert len(deep["traceback"]) <= 4000


def test_output_is_inline_if_small_and_blob_if_large(rpc: Rpc) -> None:
    small = output(rpc, "def main(args): return 'x' * 4094")
    answer = run(rpc, "def main(args): return {'text': 'x' * 10_000, 'summary': 'a lot'}")

    assert small == "x" * 4094
    assert answer["status"] == "completed"
    assert answer["summary"] == "a lot"
    (blob_id,) = answer["output_blobs"]
    assert answer["output"]["blob_id"] == blob_id
    assert answer["output"]["preview"].startswith('{"text":"xxx')
    blob = rpc("read_blob", blob_id=blob_id, mode="full")
    assert blob["kind"] == "application/json"
    assert answer["output"]["size_bytes"] == blob["size_bytes"]
    assert json.loads(blob["content"])["text"] == "x" * 10_000


def test_logs_are_in_the_order_of_writing(rpc: Rpc) -> None:
    code = """
import os, subprocess, sys
from runtime import log
def main(args):
    print("one")
    log.info("two")
    print("three", file=sys.stderr)
    sys.stdout.write("fo"); sys.stdout.write("ur\\n")
    log.error("five")
    subprocess.run(["/bin/echo", "six"])
    os.write(1, b"seven\\n")
"""
    answer = run(rpc, code)

    assert answer["status"] == "completed", answer
    words = [line.split()[-1] for line in answer["logs_preview"].splitlines()]
    assert words == ["one", "two", "three", "four", "five", "six", "seven"]


@pytest.mark.full
def test_logs_preview_shows_head_tail_and_omitted_byte_count(sqlite_rpc: Rpc) -> None:
    code = "def main(args):\n    for n in range(500_000): print(f'line {n:07}')\n"

    preview = run(sqlite_rpc, code)["logs_preview"]

    assert len(preview.encode()) <= 2048
    assert preview.startswith("line 0000000\n")
    assert preview.endswith("line 0499999\n")
    [left_out] = map(int, re.findall(r"(\d+) bytes left out", preview))
    line = f"\n… {left_out} bytes left out …\n"
    assert left_out + len(preview.encode()) - len(line.encode()) == 500_000 * len("line 0000000\n")


def test_control_characters_in_logs_are_shown_not_obeyed(sqlite_rpc: Rpc) -> None:
    preview = run(sqlite_rpc, "def main(args): print('a\\x1b[31mb\\x00c\\rd')")["logs_preview"]

    assert preview == "a\\x1b[31mb\\x00c\\x0dd\n"


def test_summary_prefers_runtime_call_over_output_and_is_truncated(rpc: Rpc) -> None:
    code = (
        "import runtime\ndef main(args):\n    runtime.summary('Synced 742 leads.')\n    return {'summary': 'other'}\n"
    )

    assert run(rpc, code)["summary"] == "Synced 742 leads."
    assert run(rpc, "def main(args): return {'summary': 'from output'}")["summary"] == "from output"
    assert len(run(rpc, "import runtime\ndef main(args): runtime.summary('x' * 900)")["summary"]) == 500


# -- blobs --------------------------------------------------------------------------------------------------------


def test_blobs_go_in_and_out(rpc: Rpc) -> None:
    blob_id = rpc("create_blob", content="name\nJohn\n", kind="text/csv")["blob_id"]
    code = """
from runtime import blobs
def main(args):
    text = blobs.read_text(args["sheet"])
    same = open(f"/blobs/{args['sheet']}").read() == text
    first = blobs.write_text(text.upper())
    second = blobs.write_json({"rows": 2})
    third = blobs.write_bytes(b"\\x00\\xff", kind="image/png")
    return {"same": same, "back": blobs.read_text(first), "ids": [first, second, third]}
"""
    answer = run(rpc, code, args={"sheet": blob_id}, input_blobs=[blob_id])

    assert answer["status"] == "completed", answer
    assert answer["output"]["same"] is True
    assert answer["output"]["back"] == "NAME\nJOHN\n"
    assert answer["output"]["ids"] == answer["output_blobs"]
    kinds = [rpc("read_blob", blob_id=one)["kind"] for one in answer["output_blobs"]]
    assert kinds == ["text/plain", "application/json", "image/png"]
    assert rpc.http.get(f"/blobs/{answer['output_blobs'][2]}").content == b"\x00\xff"


def test_a_large_blob_goes_through_a_run(rpc: Rpc) -> None:
    content = os.urandom(5_000_000)
    blob_id = rpc.http.post("/blobs", content=content).json()["blob_id"]
    code = """
from runtime import blobs
def main(args):
    content = blobs.read_bytes(args["blob"])
    return blobs.write_bytes(content[::-1])
"""
    answer = run(rpc, code, args={"blob": blob_id}, input_blobs=[blob_id])

    assert rpc.http.get(f"/blobs/{answer['output']}").content == content[::-1]


def test_blobs_written_before_a_failure_stay(rpc: Rpc) -> None:
    answer = run(
        rpc, "from runtime import blobs\ndef main(args):\n    blobs.write_text('kept')\n    raise ValueError\n"
    )

    assert answer["status"] == "failed"
    (blob_id,) = answer["output_blobs"]
    assert rpc("read_blob", blob_id=blob_id)["content"] == "kept"


def test_run_cannot_read_blob_outside_its_inputs(rpc: Rpc) -> None:
    blob_id = rpc("create_blob", content="secret", kind="text/plain")["blob_id"]
    code = "from runtime import blobs\ndef main(args): return blobs.read_text(args['blob'])"

    error = failure(rpc, code, args={"blob": blob_id})

    assert "secret" not in str(error)
    assert error["type"] in {"FileNotFoundError", "BlobNotFound", "LookupError"}


def test_run_code_refuses_unknown_input_blob(rpc: Rpc) -> None:
    error = rpc.error("run_code", language="python", code="def main(args): ...", input_blobs=["blob:none"])

    assert error["code"] == -32003


@pytest.mark.full
def test_a_run_writes_no_more_blobs_than_it_may(sqlite_rpc: Rpc) -> None:
    code = "from runtime import blobs\ndef main(args):\n    for n in range(2000): blobs.write_text(str(n))\n"

    answer = run(sqlite_rpc, code)

    assert answer["status"] == "failed"
    assert len(answer["output_blobs"]) == 1000
    assert "1000" in answer["error"]["message"]


# -- inputs -------------------------------------------------------------------------------------------------------

INPUTS = {
    "sheet": {"type": "blob"},
    "env": {"type": "string", "enum": ["prod", "test"], "default": "test"},
    "count": {"type": "integer", "required": True},
}


@pytest.fixture
def with_inputs(publish: Publish, new_name: str) -> str:
    code = """
from runtime import blobs
def main(args):
    if "sheet" in args:
        args["text"] = blobs.read_text(args["sheet"])
    return args
"""
    publish(new_name, inputs=INPUTS, code=code)
    return new_name


def test_defaults_are_filled_in_and_undeclared_args_pass_with_a_warning(rpc: Rpc, with_inputs: str) -> None:
    answer = rpc("execute_skill", name=with_inputs, args={"count": 1, "enf": "prod"})
    declared = rpc("execute_skill", name=with_inputs, args={"count": 1})

    assert answer["output"] == {"count": 1, "enf": "prod", "env": "test"}
    assert answer["warnings"] == ["Argument 'enf' is not declared (did you mean 'env'?). The skill may ignore it."]
    assert "warnings" not in declared


def test_many_undeclared_args_have_a_short_answer(rpc: Rpc, with_inputs: str) -> None:
    unknown = {f"x{number}" * 100: 1 for number in range(500)}

    answer = rpc("execute_skill", name=with_inputs, args={"count": 1} | unknown)

    assert len(answer["warnings"]) == 11
    assert answer["warnings"][-1] == "490 more arguments are not declared."
    assert max(map(len, answer["warnings"])) < 500


def test_a_skill_without_declared_inputs_takes_any_arg(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(new_name)

    assert "warnings" not in rpc("execute_skill", name=new_name, args={"any": 1})


def test_a_background_run_warns_at_once(rpc: Rpc, with_inputs: str) -> None:
    answer = rpc("execute_skill", name=with_inputs, args={"count": 1, "cuont": 2}, background=True)

    assert "'count'" in answer["warnings"][0]


def test_strict_inputs_refuse_undeclared_args(rpc: Rpc, publish: Publish, new_name: str) -> None:
    runtime = manifest(new_name)["runtime"] | {"strict_inputs": True}
    publish(new_name, inputs={"count": {"type": "integer"}}, runtime=runtime)

    fits = rpc("execute_skill", name=new_name, args={"count": 1})
    refused = rpc("execute_skill", name=new_name, args={"cuont": 1})

    assert fits["status"] == "completed"
    assert refused["error"]["type"] == "ValidationError"
    assert "'cuont'" in refused["error"]["message"]
    assert "did you mean 'count'?" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({}, "count"),
        ({"count": "1"}, "count"),
        ({"count": True}, "count"),
        ({"count": 1, "env": "dev"}, "env"),
        ({"count": None}, "count"),
    ],
)
def test_args_that_do_not_fit_are_a_failed_run(rpc: Rpc, with_inputs: str, args: dict[str, Any], named: str) -> None:
    answer = rpc("execute_skill", name=with_inputs, args=args)

    assert answer["status"] == "failed"
    assert answer["error"]["type"] == "ValidationError"
    assert f"'{named}'" in answer["error"]["message"]


def test_a_declared_blob_arg_is_readable_without_input_blobs(rpc: Rpc, with_inputs: str) -> None:
    blob_id = rpc("create_blob", content="rows", kind="text/csv")["blob_id"]

    assert rpc("execute_skill", name=with_inputs, args={"count": 1, "sheet": blob_id})["output"]["text"] == "rows"
    assert rpc.error("execute_skill", name=with_inputs, args={"count": 1, "sheet": "blob:none"})["code"] == -32003


# -- refused runs -----------------------------------------------------------------------------------------------------


def test_an_instruction_skill_has_nothing_to_execute(rpc: Rpc) -> None:
    error = rpc.error("execute_skill", name="skills.protocol.guide")

    assert (error["code"], error["data"]["type"]) == (-32602, "not_executable")
    assert "read_skill_file" in error["data"]["hint"]


@pytest.mark.parametrize("timeout", [0, -1, 1.5, "5"])
def test_a_timeout_outside_its_bounds_is_an_invalid_param(
    rpc: Rpc, publish: Publish, new_name: str, timeout: Any
) -> None:
    publish(new_name)

    assert rpc.error("execute_skill", name=new_name, timeout_ms=timeout)["code"] == -32602
    limits = {"timeout_ms": timeout}
    assert rpc.error("run_code", language="python", code="def main(a): ...", limits=limits)["code"] == -32602


@pytest.mark.parametrize(
    "params",
    [
        {"language": "perl"},
        {"entrypoint": "a b"},
        {"entrypoint": ""},
        {"language": "javascript", "entrypoint": "a-b"},
        {"language": "bash", "entrypoint": "other"},
        {"args": [1]},
        {"limits": {"memory": 5}},
        {"limits": {"memory_mb": 10**9}},
        {"limits": {"memory_mb": 0}},
        {"limits": {"memory_mb": True}},
        {"limits": {"cpus": "all"}},
        {"mount_skills": ["Not A Name"]},
        {"mount_skills": ["skills.protocol.guide@!!"]},
        {"input_blobs": "blob:x"},
    ],
)
def test_params_that_do_not_fit_are_invalid(sqlite_rpc: Rpc, params: dict[str, Any]) -> None:
    call = {"language": "python", "code": "def main(args): ..."} | params

    assert sqlite_rpc.error("run_code", **call)["code"] == -32602


def test_a_skill_may_ask_for_less(rpc: Rpc, new_name: str) -> None:
    runtime = {"language": "python", "entrypoint": "code/main.py", "limits": {"timeout_ms": 200}}
    made = manifest(new_name) | {"runtime": runtime}
    rpc("create_skill", manifest=made, skill_md="# A", files=skill_files("def main(args):\n    while True: pass\n"))

    assert rpc("execute_skill", name=new_name)["error"]["type"] == "TimeoutError"


# -- composition --------------------------------------------------------------------------------------------------


def test_code_composes_mounted_skills(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(f"{new_name}.double-it", code="def main(args): return twice(args['n'])\ndef twice(n): return 2 * n\n")
    publish(f"{new_name}.inc", "1.0.0", code="def inc(n): return n + 1\nmain = inc\n")
    publish(f"{new_name}.inc", "2.0.0", code="def inc(n): return n + 100\nmain = inc\n")
    code = f"""
from skills.{new_name}.double_it import twice
from skills.{new_name}.inc import inc
def main(args): return inc(twice(args["n"]))
"""
    mounts = [f"{new_name}.double-it", f"{new_name}.inc@^1"]

    assert output(rpc, code, args={"n": 5}, mount_skills=mounts) == 11
    assert output(rpc, code, args={"n": 5}, mount_skills=[mounts[0], f"{new_name}.inc", mounts[0]]) == 110


def test_mounts_that_meet_are_refused(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(f"{new_name}.a-b")
    publish(f"{new_name}.a_b")
    publish(f"{new_name}.c", "1.0.0")
    publish(f"{new_name}.c", "2.0.0")

    for mounts in ([f"{new_name}.a-b", f"{new_name}.a_b"], [f"{new_name}.c@1.0.0", f"{new_name}.c@2.0.0"]):
        error = rpc.error("run_code", language="python", code="def main(args): ...", mount_skills=mounts)
        assert error["code"] == -32602
    missing = rpc.error("run_code", language="python", code="def main(args): ...", mount_skills=[f"{new_name}.none"])
    assert missing["code"] == -32003


def test_an_instruction_skill_is_there_to_be_read(rpc: Rpc) -> None:
    code = "def main(args): return open('/skills/skills.protocol.guide/SKILL.md').read()[:3]"

    assert output(rpc, code, mount_skills=["skills.protocol.guide"]) == "---"


# -- servers that stop --------------------------------------------------------------------------------------------

SLEEP = "import time\ndef main(args):\n    time.sleep(args['s'])\n    return 'slept'\n"


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def go() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    return thread, results


def wait_for_run(home: Path) -> None:
    """Wait until a run has begun. On a loaded machine, a short run may have ended when this returns."""
    eventually(lambda: runs_of(home))


def send_sleep(client: RawConnection, seconds: float) -> None:
    """Send a request that sleeps. The client disconnects before the response."""
    params = {"language": "python", "code": SLEEP, "args": {"s": seconds}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params})
    head = client.head("POST /rpc", content_type="application/json", content_length=str(len(body)))
    client.send(head, body)


def runs_of(home: Path) -> list[tuple[str, str | None]]:
    with sqlite3.connect(home / "skillery.db") as connection:
        return list(connection.execute("SELECT status, error_json FROM runs"))


def test_a_client_that_goes_away_leaves_its_run_recorded(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with connected(server.url) as client:
        send_sleep(client, 2)
        wait_for_run(server.home)

    eventually(lambda: runs_of(server.home)[0][0] != "started")
    assert [status for status, _ in runs_of(server.home)] == ["completed"]


def test_code_asks_no_more_often_than_its_limit_says(start_server: Callable[..., Server]) -> None:
    code = """
import time
from runtime import blobs
def main(args):
    start = time.monotonic()
    for number in range(41):
        blobs.write_text(str(number))
    return time.monotonic() - start
"""
    server = start_server(env={"SKILLERY_LIMITS_CALLBACKS_PER_SECOND": "20"})

    assert run(server.rpc, code)["output"] >= 1.5  # two complete bursts of 16 requests, 0.8 seconds each


def test_a_misplaced_parameter_or_limit_is_reported_with_its_place(sqlite_rpc: Rpc) -> None:
    code = "def main(args): return 1"

    misplaced = sqlite_rpc.error("run_code", language="python", code=code, timeout_ms=5)["data"]["hint"]
    assert "'limits': {'timeout_ms'" in misplaced
    ours = sqlite_rpc.error("run_code", language="python", code=code, limits={"log_kb": 5})
    assert "the server's" in ours["message"]
    assert "Did you mean" not in ours["data"]["hint"]
    typo = sqlite_rpc.error("run_code", language="python", code=code, limits={"memory": 5})["data"]["hint"]
    assert "Did you mean 'memory_mb'" in typo


@pytest.mark.full
def test_a_full_queue_is_busy_and_says_when_to_come_back(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_CONCURRENT_RUNS": "1", "SKILLERY_QUEUED_RUNS": "1"})
    waiting = [in_background(lambda: run(Rpc(server.url), SLEEP, args={"s": 100})) for _ in range(2)]
    [queued] = eventually(lambda: server.rpc("list_runs", status="queued")["runs"])

    error = server.rpc.error("run_code", language="python", code=SLEEP, args={"s": 0})

    assert error["code"] == -32006
    assert error["data"]["retry_after_ms"] > 0
    [started] = eventually(lambda: server.rpc("list_runs", status="started")["runs"])
    for one in (queued, started):
        server.rpc("cancel_run", run_id=one["run_id"])
    for thread, results in waiting:
        thread.join()
        assert results[0]["error"]["type"] == "Cancelled"


@pytest.mark.full
def test_a_client_that_goes_away_in_the_queue_has_run_nothing(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_CONCURRENT_RUNS": "1"})
    first, results = in_background(lambda: run(Rpc(server.url), SLEEP, args={"s": 100}))
    wait_for_run(server.home)
    with connected(server.url) as client:
        send_sleep(client, 0)
        eventually(lambda: server.rpc("list_runs", status="queued")["runs"])
    eventually(lambda: not server.rpc("list_runs", status="queued")["runs"])

    server.rpc("cancel_run", run_id=server.rpc("list_runs", status="started")["runs"][0]["run_id"])
    first.join()
    assert results[0]["error"]["type"] == "Cancelled"
    assert output(server.rpc, "def main(args): return 'after'") == "after"
    assert [status for status, _ in runs_of(server.home)] == ["failed", "completed"]
