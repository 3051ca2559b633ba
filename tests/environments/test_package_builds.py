"""Malicious packages and faulty indexes: each failure names its cause, stays in the sandbox, and can be retried."""

from __future__ import annotations

import base64
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from skillery.context.queue import PackageWait
from tests.conftest import Rpc, Server, clean_environment
from tests.support.needing import create, needing, refused
from tests.support.package_index import PackageIndex
from tests.support.prefork import FORKED
from tests.support.processes import eventually
from tests.support.wheels import make_sdist, make_wheel


def failed(rpc: Rpc, name: str) -> str:
    """Run the skill and return the message of its EnvironmentFailed error."""
    error = rpc("execute_skill", name=name)["error"]
    assert error["type"] == "EnvironmentFailed", error
    message: str = error["message"]
    return message


def importing(package: str) -> str:
    return f"import {package}\ndef main(args): return {package}.VERSION"


# -- wheels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"files": {"../evil.py": "X = 1"}}, "outside its folder"),
        ({"files": {"/evil.py": "X = 1"}}, "outside its folder"),
        ({"files": {"a/./evil.py": "X = 1"}}, "outside its folder"),
        ({"files": {"own.py": "X = 1"}, "links": ["own.py"]}, "not a regular file"),
        ({"more": {"extra.py": "X = 1"}}, "'extra.py' is not in its list of files"),
        ({"record": {"own.py": "sha256=" + "A" * 43}, "files": {"own.py": "X = 1"}}, "damaged or changed file"),
        ({"record": {"own.py": "md5=AAAA"}, "files": {"own.py": "X = 1"}}, "has no hash"),
        ({"files": {"own.py": "X = 1", "own-1.0.data/odd/x": "y"}}, "no known target folder"),
        pytest.param(
            {"files": {f"own/{number}.txt": "" for number in range(50_001)}}, "at most 50000", marks=pytest.mark.full
        ),
    ],
    ids=["above", "root", "dot", "link", "unlisted", "changed", "weak", "data", "many"],
)
def test_a_wheel_that_lies_is_refused_by_its_name(
    packages_sqlite: Server, new_name: str, wheelhouse: Path, made: dict[str, Any], words: str
) -> None:
    own = f"own{new_name}"
    files = {path.replace("own", own): text for path, text in made.get("files", {f"{own}.py": "VERSION = 1"}).items()}
    record = {path.replace("own", own): value for path, value in made.get("record", {}).items()}
    links = [path.replace("own", own) for path in made.get("links", ())]
    make_wheel(wheelhouse, own, "1.0", files, record=record, more=made.get("more"), links=links)
    create(packages_sqlite.rpc, needing(new_name, own))

    message = failed(packages_sqlite.rpc, new_name)

    assert words in message
    assert f"{own} 1.0" in message
    assert not list((packages_sqlite.home / "environments" / "incoming").iterdir())


def test_the_files_of_a_wheel_lie_where_they_belong(packages_sqlite: Server, new_name: str, wheelhouse: Path) -> None:
    own = f"own{new_name}"
    data = f"{own}-1.0.data"
    files = {
        f"{data}/purelib/{own}.py": "VERSION = 1",
        f"{data}/scripts/tool": "#!python",
        f"{data}/data/share/x": "y",
        f"{own}_broken.py": "def broken(:",
    }
    make_wheel(wheelhouse, own, "1.0", files)
    code = f"""
import {own}, importlib.metadata, os
def main(args):
    folder = os.path.dirname({own}.__file__)
    found = [os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names]
    cached = os.path.basename({own}.__spec__.cached)
    modes = sorted({{oct(os.stat(os.path.join(folder, path)).st_mode & 0o777) for path in found}})
    return [sorted(path for path in found if "info" not in path), cached, modes, importlib.metadata.version("{own}")]
"""
    create(packages_sqlite.rpc, needing(new_name, own), code)

    files_there, cached, modes, version = packages_sqlite.rpc("execute_skill", name=new_name)["output"]

    assert files_there == [f"__pycache__/{cached}", "bin/tool", f"{own}.py", f"{own}_broken.py", "share/x"]
    assert (modes, version) == (["0o444"], "1.0")


@pytest.mark.parametrize("files", [{"a\nb.py": "X = 1"}, {"a": "X = 1", "a/b.py": "X = 1"}], ids=["line", "both"])
def test_a_wheel_that_cannot_even_be_read_is_not_locked(
    packages_sqlite: Server, new_name: str, wheelhouse: Path, files: dict[str, str]
) -> None:
    own = f"own{new_name}"
    make_wheel(wheelhouse, own, "1.0", files)

    error = refused(packages_sqlite.rpc, needing(new_name, own))

    assert (error["data"]["reason"], error["data"]["package"]) == ("damaged", own)
    assert str(packages_sqlite.home) not in str(error)


def test_a_wheel_of_another_package_is_refused(packages_sqlite: Server, new_name: str, wheelhouse: Path) -> None:
    own, other = f"own{new_name}", f"other{new_name}"
    wheel = make_wheel(wheelhouse, own, "1.0")
    create(packages_sqlite.rpc, needing(new_name, own))
    path = make_wheel(wheelhouse, other, "1.0")
    path.rename(wheel)

    assert "not the one that was locked" in failed(packages_sqlite.rpc, new_name)


@pytest.mark.full
def test_a_bomb_ends_where_the_limit_is(indexed: Server, new_name: str, wheelhouse: Path) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(wheelhouse, own, "1.0", {f"{own}.py": "VERSION = 1", "zeros.txt": "0" * 80_000_000})
    assert wheel.stat().st_size < 1_000_000
    create(indexed.rpc, needing(new_name, own))

    assert "packages.max_mb" in failed(indexed.rpc, new_name)


# -- the index ---------------------------------------------------------------------------------------------------------


def test_an_index_that_serves_another_file_than_locked_is_refused(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.replaced[wheel.name] = make_wheel(package_index.folder, f"evil{new_name}", "1.0").read_bytes()
    create(indexed.rpc, needing(new_name, own), importing(own))

    message = failed(indexed.rpc, new_name)

    assert f"{own} 1.0" in message
    assert "the hash differs" in message


def test_a_temporarily_failing_index_is_retried(indexed: Server, new_name: str, package_index: PackageIndex) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.failing[wheel.name] = 2
    create(indexed.rpc, needing(new_name, own), importing(own))

    assert indexed.rpc("execute_skill", name=new_name)["output"] == "1.0"


def test_a_build_that_failed_in_passing_is_tried_with_the_next_run(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.failing[wheel.name] = 1_000_000  # the publication may have begun a build that has failed already
    create(indexed.rpc, needing(new_name, own), importing(own))

    assert "after several attempts" in failed(indexed.rpc, new_name)
    package_index.failing[wheel.name] = 0
    assert indexed.rpc("execute_skill", name=new_name)["output"] == "1.0"


def test_a_running_build_reports_its_progress(indexed: Server, new_name: str, package_index: PackageIndex) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.held[wheel.name] = threading.Event()
    create(indexed.rpc, needing(new_name, own), importing(own))

    def fetching() -> list[dict[str, Any]]:
        states = indexed.rpc("describe_skill", name=new_name)["skill"]["lock"]["environments"]
        return [state for state in states if "fetching" in state.get("step", "")]

    [state] = eventually(fetching)
    waited = indexed.rpc("execute_skill", name=new_name, timeout_ms=200)["error"]
    package_index.held[wheel.name].set()
    output = indexed.rpc("execute_skill", name=new_name)["output"]

    assert waited["type"] == "EnvironmentNotReady"
    assert "of 1 packages are installed" in waited["message"]
    assert state == {"state": "building", "step": f"fetching {own} 1.0", "done": 0, "total": 1}
    assert output == "1.0"
    assert indexed.rpc("describe_skill", name=new_name)["skill"]["lock"]["environments"] == [{"state": "ready"}]


def test_a_run_that_waits_for_packages_has_a_state(indexed: Server, new_name: str, package_index: PackageIndex) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.held[wheel.name] = threading.Event()
    create(indexed.rpc, needing(new_name, own), importing(own))
    begun = indexed.rpc("execute_skill", name=new_name, background=True)

    def fetching() -> dict[str, Any]:
        run: dict[str, Any] = indexed.rpc("get_run", run_id=begun["run_id"])
        return run if "fetching" in run["packages"]["step"] else {}

    run = eventually(fetching)
    log = indexed.rpc("read_run_log", run_id=begun["run_id"])
    package_index.held[wheel.name].set()
    ended = indexed.rpc("get_run", run_id=begun["run_id"], wait_ms=60_000)

    packages = {"step": f"fetching {own} 1.0", "done": 0, "total": 1, "ahead": 0}
    assert (begun["status"], begun["state"]) == ("queued", "waiting_for_packages")
    assert (run["status"], run["state"], run["packages"]) == ("queued", "waiting_for_packages", packages)
    assert (log["state"], log["packages"]) == ("waiting_for_packages", packages)
    assert log["progress"]["text"] == f"installing packages: 0 of 1 ({own} 1.0)"
    assert (ended["output"], ended.keys() & {"state", "packages", "progress"}) == ("1.0", set())


def test_a_run_that_waits_for_packages_can_be_cancelled(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.held[wheel.name] = threading.Event()
    create(indexed.rpc, needing(new_name, own))
    begun = indexed.rpc("execute_skill", name=new_name, background=True)

    indexed.rpc("cancel_run", run_id=begun["run_id"])
    ended = indexed.rpc("get_run", run_id=begun["run_id"], wait_ms=60_000)
    package_index.held[wheel.name].set()

    assert (ended["status"], ended["error"]["type"]) == ("failed", "Cancelled")


def test_the_command_run_prints_the_progress_of_packages(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.held[wheel.name] = threading.Event()
    create(indexed.rpc, needing(new_name, own), importing(own))

    command = [FORKED, "run", new_name, "--url", indexed.url]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=clean_environment(), **streams) as process:
        assert process.stderr is not None
        printed = [process.stderr.readline()]
        while printed[-1] and own not in printed[-1]:
            printed.append(process.stderr.readline())
        package_index.held[wheel.name].set()
        output, _ = process.communicate()

    assert printed[-1] == f"installing packages: 0 of 1 ({own} 1.0)\n", printed
    assert "1.0" in output


def test_mcp_progress_names_the_packages_that_a_run_waits_for(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.held[wheel.name] = threading.Event()
    create(indexed.rpc, needing(new_name, own), importing(own))
    asked = {"name": "execute_skill", "arguments": {"name": new_name}, "_meta": {"progressToken": "p"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
    messages = []

    accept = {"Accept": "application/json, text/event-stream"}
    with httpx.stream("POST", f"{indexed.url}/mcp", json=call, headers=accept, timeout=300) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                message = json.loads(line.removeprefix("data:"))
                messages.append(message.get("params", {}).get("message", ""))
            if any(own in text for text in messages):
                package_index.held[wheel.name].set()

    assert f"installing packages: 0 of 1 ({own} 1.0)" in messages


def test_the_text_of_a_wait_names_the_installs_ahead() -> None:
    assert PackageWait("waiting for a build slot", 0, 0, 4).text == "packages: 4 installs ahead"
    assert PackageWait("waiting for a build slot", 0, 0, 1).text == "packages: 1 install ahead"
    assert PackageWait("fetching numpy 2.4.6", 3, 12, 0).text == "installing packages: 3 of 12 (numpy 2.4.6)"
    assert PackageWait("locking the packages", 0, 0, 0).text == "installing packages: locking the packages"


@pytest.mark.full
def test_a_run_with_new_packages_goes_before_queued_installations(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    released = threading.Event()
    for number in range(4):
        slow = f"slow{number}{new_name}"
        package_index.held[make_wheel(package_index.folder, slow, "1.0").name] = released
        create(indexed.rpc, needing(f"{new_name}.s{number}", slow))
    own = f"own{new_name}"
    make_wheel(package_index.folder, own, "1.0")
    create(indexed.rpc, needing(new_name, own), importing(own))

    try:
        answer = indexed.rpc("execute_skill", name=new_name)
        states = [
            indexed.rpc("describe_skill", name=f"{new_name}.s{number}")["skill"]["lock"]["environments"]
            for number in range(4)
        ]
    finally:
        released.set()

    assert answer.get("output") == "1.0", answer
    assert [state["state"] for [state] in states] == ["building"] * 4


@pytest.mark.full
def test_a_run_keeps_its_place_while_it_waits_for_packages_and_workspace(
    start_server: Callable[..., Server], new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.held[wheel.name] = threading.Event()
    sizes = {"SKILLERY_CONCURRENT_RUNS": "2", "SKILLERY_QUEUED_RUNS": "1"}
    rpc = start_server(env={"SKILLERY_PACKAGES_INDEX_URLS": package_index.url, **sizes}).rpc
    create(rpc, needing(new_name, own), importing(own))
    workspace = rpc("create_workspace")["id"]
    sleep = {"language": "python", "code": "import time\ndef main(args): time.sleep(600)", "background": True}
    writer, other = rpc("run_code", workspace=workspace, **sleep), rpc("run_code", **sleep)
    waiting = rpc("execute_skill", name=new_name, workspace=workspace, background=True)

    package_index.held[wheel.name].set()
    eventually(lambda: "state" not in rpc("get_run", run_id=waiting["run_id"]))
    busy = rpc.error("run_code", **sleep)
    for run in (other, writer):
        rpc("cancel_run", run_id=run["run_id"])

    assert "queued_runs" in busy["message"]
    assert rpc("get_run", run_id=waiting["run_id"], wait_ms=60_000)["output"] == "1.0"


@pytest.mark.full
def test_a_build_over_its_time_limit_names_its_current_step(
    start_server: Callable[..., Server], new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.held[wheel.name] = threading.Event()
    settings = {"SKILLERY_PACKAGES_INDEX_URLS": package_index.url, "SKILLERY_PACKAGES_BUILD_SECONDS": "20"}
    running = start_server(env=settings)
    create(running.rpc, needing(new_name, own))

    message = failed(running.rpc, new_name)
    package_index.held[wheel.name].set()

    assert "packages.build_seconds" in message
    assert f"fetching {own} 1.0" in message


# -- source packages ---------------------------------------------------------------------------------------------------


def test_a_package_without_a_wheel_is_built_in_the_sandbox(
    indexed: Server, new_name: str, package_index: PackageIndex
) -> None:
    own = f"own{new_name}"
    make_sdist(package_index.folder, own, "1.0")
    create(indexed.rpc, needing(new_name, own), f"import {own}\ndef main(args): return {own}.BUILT")

    assert indexed.rpc("execute_skill", name=new_name)["output"] is True


def test_nothing_is_built_from_source_where_no_setting_says_so(
    packages_sqlite: Server, new_name: str, wheelhouse: Path
) -> None:
    own = f"own{new_name}"
    make_sdist(wheelhouse, own, "1.0")

    error = refused(packages_sqlite.rpc, needing(new_name, own))

    assert error["data"]["reason"] == "no_wheel"
    assert own in error["message"]


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (
            "while True: __import__('os').fork() or (__import__('os').closerange(0, 99), __import__('time').sleep(99))",
            "BlockingIOError",
        ),
        ("open('{home}/skillery.db', 'rb').read(10)", "FileNotFoundError"),
        ("__import__('urllib.request').request.urlopen('http://localhost:{port}/elsewhere')", "403"),
        pytest.param("open(wheel_directory + '/x', 'wb').write(b'0' * (5 << 30))", "memory", marks=pytest.mark.full),
    ],
    ids=["forks", "reads", "reaches", "fills"],
)
def test_a_hostile_build_stays_in_its_sandbox_and_fails_by_its_name(
    indexed: Server, new_name: str, package_index: PackageIndex, sqlite_server: Server, hostile: str, words: str
) -> None:
    own = f"own{new_name}"
    port = sqlite_server.url.rpartition(":")[2]
    make_sdist(package_index.folder, own, "1.0", hostile.format(home=indexed.home, port=port))
    create(indexed.rpc, needing(new_name, own))

    message = failed(indexed.rpc, new_name)

    assert f"{own} 1.0 could not be built from source" in message
    assert words in message
    assert str(indexed.home) not in message
    assert indexed.rpc("list_skills", limit=1)["skills"]


# -- a killed server ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_restart_discards_an_interrupted_build_and_reuses_finished_trees(
    start_server: Callable[..., Server], new_name: str, package_index: PackageIndex
) -> None:
    one, two = f"one{new_name}", f"two{new_name}"
    make_wheel(package_index.folder, one, "1.0")
    wheel = make_wheel(package_index.folder, two, "1.0")
    package_index.held[wheel.name] = threading.Event()
    settings = {"SKILLERY_PACKAGES_INDEX_URLS": package_index.url}
    running = start_server(env=settings)
    create(running.rpc, needing(new_name, one, two), importing(two))
    trees, incoming = running.home / "environments" / "trees", running.home / "environments" / "incoming"
    eventually(lambda: trees.is_dir() and list(trees.iterdir()), of=running.process)
    running.stop(signal.SIGKILL)
    package_index.held[wheel.name].set()
    assert list(incoming.iterdir())

    again = start_server(env=settings)
    left = incoming.exists()
    shown = again.rpc("describe_skill", name=new_name)["skill"]["lock"]["environments"]

    assert (left, shown) == (False, [])
    assert again.rpc("execute_skill", name=new_name)["output"] == "1.0"
    assert sum(path.endswith(f"{one}-1.0-py3-none-any.whl") for path in package_index.asked) == 1
    assert list(incoming.iterdir()) == []


@pytest.mark.full
def test_full_disk_fails_the_build_clearly_and_leaves_no_files(
    tmp_path: Path, small_disk: list[str], new_name: str, wheelhouse: Path
) -> None:
    own = f"own{new_name}"
    noise = base64.b85encode(random.Random(7).randbytes(14_000_000)).decode()
    make_wheel(wheelhouse, own, "1.0", {f"{own}.py": "VERSION = 1", "noise.txt": noise})
    home = tmp_path / "home"
    command = [*small_disk, sys.executable, "-m", "skillery", "serve", "--home", str(home), "--port", "0"]
    more = {"SANDBOX": "unsafe-subprocess", "ALLOW_UNSAFE_SANDBOX": "1", "PACKAGES_WHEELHOUSE": str(wheelhouse)}
    env = clean_environment({f"SKILLERY_{name}": value for name, value in more.items()})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as process:
        assert process.stdout is not None
        url = "http://" + process.stdout.readline().decode().split("http://")[1].split()[0]
        try:
            rpc = Rpc(url)
            create(rpc, needing(new_name, own))
            message = eventually(lambda: failed_with_space(rpc, new_name), of=process)
            create(rpc, needing(f"{new_name}.small", "figures<2"), importing("figures"))
            output = rpc("execute_skill", name=f"{new_name}.small")["output"]
            left = list(Path(f"/proc/{process.pid}/root{home}/environments/incoming").iterdir())
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(300)

    assert "no space left" in message
    assert (output, left) == ("1.0", [])


def failed_with_space(rpc: Rpc, name: str) -> str | None:
    """Return the message like `failed`; None if the run came while the disk was full, so that it was refused."""
    reply = rpc.send("execute_skill", {"name": name})
    if "error" in reply:
        # SQLite may also fail to make one of its files. It does not say that the disk is full then.
        assert reply["error"]["data"]["type"] in {"storage_full", "unavailable"}, reply
        return None
    error = reply["result"]["error"]
    assert error["type"] == "EnvironmentFailed", error
    message: str = error["message"]
    return message
