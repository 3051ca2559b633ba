"""run_code with languages other than Python, over HTTP. The contract of sandboxes tests the languages in a sandbox."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Rpc, Server, clean_environment
from tests.support.prefork import prefork

with_node = pytest.mark.skipif(shutil.which("node") is None, reason="this host has no Node.js")


def run(rpc: Rpc, language: str, code: str, **params: Any) -> dict[str, Any]:
    answer: dict[str, Any] = rpc("run_code", language=language, code=code, **params)
    return answer


@with_node
def test_javascript_runs_and_is_recorded_as_python_is(sqlite_rpc: Rpc) -> None:
    code = """
    export async function main(args) {
      console.log("counting");
      return { words: args.text.split(" ").length, summary: "Counted." };
    }
    """
    answer = run(sqlite_rpc, "javascript", code, args={"text": "one two three"})

    assert answer["status"] == "completed", answer
    assert answer["output"] == {"words": 3, "summary": "Counted."}
    assert (answer["summary"], answer["logs_preview"]) == ("Counted.", "counting\n")
    assert "error" not in answer


@with_node
def test_an_error_of_javascript_is_the_error_of_the_run(sqlite_rpc: Rpc) -> None:
    code = "class Missing extends Error {}\nexport const start = (args) => { throw new Missing(`no ${args.what}`) };"
    answer = run(sqlite_rpc, "javascript", code, args={"what": "tea"}, entrypoint="start")

    assert (answer["status"], answer["output"]) == ("failed", None)
    assert (answer["error"]["type"], answer["error"]["message"]) == ("Missing", "no tea")
    assert "run_code.mjs:2:" in answer["error"]["traceback"]


def test_bash_gets_args_on_stdin_and_returns_its_stdout(sqlite_rpc: Rpc) -> None:
    answer = run(sqlite_rpc, "bash", "echo working >&2\nwc -c", args={"n": 1})

    assert (answer["status"], answer["output"], answer["logs_preview"]) == ("completed", 7, "working\n")
    assert run(sqlite_rpc, "bash", "cat", args={"a": [None, "ü"]})["output"] == {"a": [None, "ü"]}


def test_bash_error_contains_exit_status_and_stderr(sqlite_rpc: Rpc) -> None:
    answer = run(sqlite_rpc, "bash", "echo 'no such file' >&2; exit 4")

    assert answer["error"]["type"] == "ProcessExited"
    assert answer["error"]["message"] == "the program exited with status 4: no such file"


def test_a_long_output_of_bash_is_a_blob(sqlite_rpc: Rpc) -> None:
    answer = run(sqlite_rpc, "bash", "yes x | tr -d '\\n' | head -c 5000")

    assert answer["output"]["size_bytes"] == 5002
    assert sqlite_rpc("read_blob", blob_id=answer["output"]["blob_id"], mode="full")["content"] == f'"{"x" * 5000}"'


@with_node
def test_args_of_200_kb_reach_every_language(sqlite_rpc: Rpc) -> None:
    args = {"big": "ü" * 100_000}
    codes = {
        "python": "def main(args): return len(args['big'])",
        "javascript": "export const main = (args) => args.big.length",
        "bash": "read -r json; echo $((${#json} > 100000 ? 100000 : 0))",
    }

    assert {name: run(sqlite_rpc, name, code, args=args)["output"] for name, code in codes.items()} == dict.fromkeys(
        codes, 100_000
    )


@with_node
def test_limits_and_mounts_are_those_of_python(
    sqlite_rpc: Rpc, sqlite_publish: Callable[..., dict[str, Any]], new_name: str
) -> None:
    sqlite_publish(new_name)
    endless = "export function main() { for (;;); }"
    reads = f"export const main = () => process.getBuiltinModule('fs').readdirSync('/skills/{new_name}')"

    assert run(sqlite_rpc, "javascript", endless, limits={"timeout_ms": 500})["error"]["type"] == "TimeoutError"
    assert "code" in run(sqlite_rpc, "javascript", reads, mount_skills=[new_name])["output"]
    assert "code" in run(sqlite_rpc, "bash", f"ls /skills/{new_name}", mount_skills=[new_name])["output"]


def test_params_are_checked_for_the_language(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("run_code", language="ruby", code="")
    assert error["code"] == -32602
    assert "javascript" in json.dumps(error)

    error = sqlite_rpc.error("run_code", language="bash", code="true", entrypoint="start")
    assert error["code"] == -32602
    assert "stdin" in error["data"]["hint"]
    assert sqlite_rpc.error("run_code", language="javascript", code="", entrypoint="a b")["code"] == -32602
    assert run(sqlite_rpc, "bash", "echo 1", entrypoint="main")["output"] == 1


@pytest.mark.full
@with_node
def test_the_command_takes_the_language_from_the_file(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server()
    files = {
        "count.mjs": "export const main = (args) => args.n + 1",
        "count.sh": "grep -o '[0-9]*'",
        "count": "def main(args): return args['n']",
    }
    for name, code in files.items():
        (tmp_path / name).write_text(code)

    def output(*arguments: str | Path) -> Any:
        command = ["code", *map(str, arguments), "--arg", "n=41", "--url", server.url, "--json"]
        done = prefork().run(command, clean_environment(), b"")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["output"]

    assert [output(tmp_path / name) for name in files] == [42, 41, 41]
    assert output("--language", "bash", tmp_path / "count.sh") == 41


@pytest.mark.full
def test_doctor_lists_the_available_languages(tmp_path: Path) -> None:
    done = prefork().run(["doctor", "--home", str(tmp_path), "--json"], clean_environment(), b"")
    assert done.returncode == 0, done.stderr
    probes = {probe["name"]: probe for probe in json.loads(done.stdout)["probes"]}

    for language in ("python", "javascript", "bash"):
        probe = probes[f"language {language}"]
        assert not probe["required"]
        assert probe["ok"] or "beneath /usr" in probe["fix"]
    assert "version" in probes["language bash"]["detail"]
    assert probes["language javascript"]["ok"] == (
        shutil.which("node", path="/usr/local/bin:/usr/bin:/bin") is not None
    )


def test_refused_socket_of_python_names_remedies(sqlite_rpc: Rpc) -> None:
    server = "import http.server\ndef main(args): http.server.HTTPServer(('127.0.0.1', 0), None)"
    pool = "import multiprocessing\ndef main(args): multiprocessing.get_context('forkserver').Pool(2)"
    for code, refusal in (
        (server, "[Errno 13] Permission denied"),
        (pool, "[Errno 97] Address family not supported by protocol"),
    ):
        assert sqlite_rpc("run_code", language="python", code=code)["error"]["message"] == (
            f"{refusal} (a Python function cannot open sockets. Put the server into a script and start it with "
            "--script, or call run_code with language bash. multiprocessing needs no socket with the start method fork)"
        )
    program = "python3 -c 'import socket; print(socket.create_server((\"127.0.0.1\", 80)).getsockname()[1])'"
    assert sqlite_rpc("run_code", language="bash", code=program)["output"] == 80
