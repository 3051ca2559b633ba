"""Ctrl-C in `skillery run`, `code` and `tool call`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_access import create_token
from tests.conftest import Rpc, Server, clean_environment
from tests.support.prefork import FORKED
from tests.support.processes import eventually

SLOW = "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(600)\n"
TOOL = "import time\nprint('begun', flush=True)\ntime.sleep(600)"


@pytest.fixture
def slow(tmp_path: Path) -> str:
    (tmp_path / "slow.py").write_text(SLOW)
    return str(tmp_path / "slow.py")


@contextmanager
def begun(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Context manager: start a command with --follow, and yield it when its code has begun."""
    with start(*arguments, "--follow") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        yield process


def start(*arguments: str) -> subprocess.Popen[str]:
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([FORKED, *arguments], env=clean_environment(), **streams)


def interrupted(process: subprocess.Popen[str]) -> str:
    """Send SIGINT, and return what the command writes to stderr until its end."""
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 130
    return said


@pytest.mark.smoke
def test_ctrl_c_cancels_the_run_and_names_it(sqlite_server: Server, sqlite_rpc: Rpc, slow: str, new_name: str) -> None:
    name = f"{new_name}.slow"
    runtime = {"language": "python", "entrypoint": "code/main.py", "export": "main"}
    manifest = {"name": name, "version": "1.0.0", "description": "Sleeps.", "runtime": runtime}
    sqlite_rpc("create_skill", manifest=manifest, skill_md="# S", files=[{"path": "code/main.py", "content": SLOW}])
    sqlite_rpc("define_tool", name="doze", description="Sleeps.", code=TOOL, language="python")
    for arguments in (["run", name], ["code", slow], ["tool", "call", "doze"]):
        with begun(*arguments, "--url", sqlite_server.url) as process:
            said = interrupted(process)

        [run_id] = re.findall(r"^cancelled (run_\w+)$", said, re.MULTILINE)
        assert sqlite_rpc("get_run", run_id=run_id)["error"]["type"] == "Cancelled"


def test_ctrl_c_leaves_a_detached_run_and_prints_the_commands(
    sqlite_server: Server, sqlite_rpc: Rpc, slow: str
) -> None:
    with begun("code", slow, "--url", sqlite_server.url, "--detach-on-interrupt") as process:
        follow, cancel = interrupted(process).splitlines()

    run_id = follow.split()[3]
    assert follow == f"skillery runs follow {run_id} --url {sqlite_server.url}"
    assert cancel == f"skillery runs cancel {run_id} --url {sqlite_server.url}"
    assert sqlite_rpc("get_run", run_id=run_id)["status"] == "started"
    sqlite_rpc("cancel_run", run_id=run_id)


def test_ctrl_c_before_the_run_is_silent(slow: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "args")
    command = start("code", slow, "--home", str(tmp_path / "home"), "--args-json", f"@{tmp_path}/args")
    with command as process, (tmp_path / "args").open("w"):  # open waits until the command reads its args
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()

    assert (process.returncode, out, err) == (130, "", "")


def test_ctrl_c_during_imports_is_silent(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal\nprint('importing', flush=True)\nsignal.pause()\n")
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = clean_environment({"PYTHONPATH": str(tmp_path)})
    with subprocess.Popen([sys.executable, "-m", "skillery", "list"], env=environment, **streams) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        assert interrupted(process) == ""


@pytest.mark.full
def test_the_second_ctrl_c_ends_the_command_at_once(slow: str, tmp_path: Path) -> None:
    with begun("code", slow, "--home", str(tmp_path / "home")) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("cancelled run_")
        process.send_signal(signal.SIGINT)  # the command is closing its home
        out, err = process.communicate()

    # An interpreter that has already restored its signals is ended by the signal itself: 130 for a shell.
    assert process.returncode in {130, -signal.SIGINT}
    assert (out, err) == ("", "")


@pytest.mark.full
def test_ctrl_c_cancels_a_run_that_waits_in_the_queue(configured_server: Callable[..., Server], slow: str) -> None:
    server = configured_server(SKILLERY_CONCURRENT_RUNS="1")
    rpc = Rpc(server.url)
    first = rpc("run_code", language="python", code=SLOW, background=True)["run_id"]
    with start("code", slow, "--url", server.url) as process:
        queued = eventually(lambda: rpc("list_runs", status="queued")["runs"], of=process)[0]["run_id"]
        said = interrupted(process)
    rpc("cancel_run", run_id=first)

    assert said == f"cancelled {queued}\n"
    assert rpc("get_run", run_id=queued)["error"]["type"] == "Cancelled"


@pytest.mark.full
def test_detach_on_interrupt_needs_a_server(slow: str, tmp_path: Path) -> None:
    with start("code", slow, "--home", str(tmp_path / "home"), "--detach-on-interrupt") as process:
        said = process.communicate()[1]

    assert (process.returncode, "needs a server" in said) == (2, True)


def test_a_followed_log_is_printed_once(sqlite_server: Server, tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text("def main(args):\n    print('a line of the log')\n    return 1\n")
    with start("code", str(tmp_path / "quick.py"), "--url", sqlite_server.url, "--follow") as process:
        out, err = process.communicate()

    assert err == "a line of the log\n"
    assert "a line of the log" not in out


def test_a_run_names_itself_if_its_result_needs_another_scope(
    tokens_sqlite: Server, tmp_path: Path, new_name: str
) -> None:
    runner = create_token(tokens_sqlite, new_name, "--scope", "run")["token"]
    (tmp_path / "quick.py").write_text("def main(args): return 1")

    with start("code", str(tmp_path / "quick.py"), "--url", tokens_sqlite.url, "--token", runner) as process:
        message = process.communicate()[1]

    assert process.returncode == 3
    assert re.search(r"^run_\S+ goes on: its result needs the scope read$", message, re.MULTILINE)
