"""A server with several worker processes: one address, one supervisor, common limits, restarts and reloads."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Rpc, Server, clean_environment, manifest, skill_files
from tests.support.prefork import prefork
from tests.support.processes import eventually

WORKERS = 2


@pytest.fixture(scope="module")
def pair(migrated_postgres_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with two workers, one run at a time for each, and open metrics."""
    env = {
        "SKILLERY_DATABASE": migrated_postgres_database(),
        "SKILLERY_METRICS": "open",
        "SKILLERY_CONCURRENT_RUNS": "2",
        "SKILLERY_GRACE_SECONDS": "5",
    }
    server = Server(tmp_path_factory.mktemp("pair") / "home", "--workers", str(WORKERS), env=env)
    yield server
    assert server.stop() == 0, server.log.read_text()[-4000:]


def workers_of(server: Server) -> list[int]:
    """Return the processes that the supervisor forked as workers."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def metric(server: Server, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    values = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert len(values) == 1, f"{name} occurs {len(values)} times"
    return float(values[0])


def test_workers_share_an_address_and_a_database(pair: Server) -> None:
    assert len(workers_of(pair)) == WORKERS
    Rpc(pair.url)("create_skill", manifest=manifest("shared.one"), skill_md="# A\n", files=skill_files())
    for _ in range(20):  # each new connection may reach another worker
        assert Rpc(pair.url)("describe_skill", name="shared.one")["skill"]["name"] == "shared.one"


@pytest.mark.full
def test_connections_are_spread_over_the_workers(pair: Server) -> None:
    by_worker: Counter[str] = Counter()

    def are_spread() -> bool:
        # The first part of an id names the process. Workers that share it give equal ids to different requests.
        by_worker[httpx.get(f"{pair.url}/healthz").headers["x-request-id"].partition("-")[0]] += 1
        return len(by_worker) == WORKERS and min(by_worker.values()) >= 2

    eventually(are_spread, problem=lambda: by_worker)
    assert len(by_worker) == WORKERS


def test_metrics_add_up_over_all_workers(pair: Server) -> None:
    for _ in range(30):
        Rpc(pair.url)("list_skills", namespace="no.such")

    # A worker that is slow to answer is left out.
    eventually(lambda: metric(pair, "skillery_workers") == WORKERS)
    eventually(lambda: metric(pair, 'skillery_rpc_calls_total{code="0",method="list_skills"}') >= 30)


def test_readiness_asks_all_workers(pair: Server) -> None:
    # A worker that is slow to answer is not ready.
    answer = eventually(lambda: (answer := httpx.get(f"{pair.url}/readyz")).status_code == 200 and answer)

    assert answer.json()["checks"] == dict.fromkeys(("database", "storage", "cache", "sandbox", "workers"), "ok")


@pytest.mark.full
def test_a_killed_worker_is_replaced_and_its_runs_end_as_failed(pair: Server) -> None:
    rpc = pair.rpc
    code = "import time\ndef main(args):\n    time.sleep(600)\n"
    started = rpc("run_code", language="python", code=code, entrypoint="main", background=True)["run_id"]
    eventually(lambda: rpc("get_run", run_id=started)["status"] == "started")
    old = workers_of(pair)
    for pid in old:
        os.kill(pid, signal.SIGKILL)

    new = eventually(lambda: (now := workers_of(pair)) and len(now) == WORKERS and not set(now) & set(old) and now)
    assert len(new) == WORKERS
    eventually(lambda: _answers(pair))
    ended = eventually(lambda: (run := Rpc(pair.url)("get_run", run_id=started))["status"] == "failed" and run)
    assert ended["error"]["type"] == "SandboxError"
    # The slots of the killed workers are free again: both runs finish.
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda n: _run(pair, f"def main(args):\n    return {n}\n"), range(2)))
    assert outputs == [0, 1]


def _answers(server: Server) -> bool:
    try:
        return httpx.get(f"{server.url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _run(server: Server, code: str) -> Any:
    run = Rpc(server.url)("run_code", language="python", code=code, entrypoint="main")
    assert run["status"] == "completed", run
    return run["output"]


def test_runs_at_once_count_over_all_workers(pair: Server) -> None:
    """Eight callers on both workers run code that notes its start and its end; at most two overlap."""
    code = (
        "import time\ndef main(args):\n    start = time.time()\n    time.sleep(0.3)\n    return [start, time.time()]\n"
    )

    def overlap() -> bool:
        with ThreadPoolExecutor(8) as pool:
            spans = list(pool.map(lambda _: _run(pair, code), range(8)))
        moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
        active = most = 0
        for _, change in moments:
            active += change
            most = max(most, active)
        assert most <= 2
        return most == 2

    eventually(overlap)  # on a loaded machine, a run may end before the next one starts


def test_sighup_reads_the_settings_again_and_loses_no_request(
    migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    config = home / "skillery.toml"
    config.write_text('metrics = "off"\n')
    server = Server(home, "--workers", "2", env={"SKILLERY_DATABASE": migrated_postgres_database()})
    try:
        assert httpx.get(f"{server.url}/metrics").status_code == 404
        old = set(workers_of(server))
        config.write_text('metrics = "open"\nunknown = 1\n')
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "unknown setting 'unknown'" in server.log.read_text())
        assert set(workers_of(server)) == old

        config.write_text('metrics = "open"\n')
        slow = "import time\ndef main(args):\n    time.sleep(1)\n    return 'done'\n"
        with ThreadPoolExecutor(4) as pool:
            pending = [pool.submit(_run, server, slow) for _ in range(3)]
            server.process.send_signal(signal.SIGHUP)
            while not all(one.done() for one in pending):
                assert Rpc(server.url)("list_skills")["skills"] is not None
            assert [one.result() for one in pending] == ["done"] * 3
        eventually(lambda: len(workers_of(server)) == 2 and not set(workers_of(server)) & old)
        eventually(lambda: metric(server, "skillery_workers") == 2)
        (entry,) = Rpc(server.url)("list_audit", action="change_settings")["entries"]
        assert (entry["before"], entry["after"]) == ({"metrics": "off"}, {"metrics": "open"})
    finally:
        assert server.stop() == 0, server.log.read_text()[-4000:]


CLOSED_GATE = """
import time
from pathlib import Path

from skillery import hookimpl
from skillery.backends import Offer
from skillery.errors import StartupError

FOLDER = Path(__file__).parent


def open_gate(settings, place):
    (FOLDER / "reached").touch()
    while not (FOLDER / "opened").exists():
        time.sleep(0.05)
    raise StartupError("the gate is closed")


@hookimpl
def skillery_secrets():
    return Offer("gate", open_gate)
"""


@pytest.mark.full
def test_a_worker_that_dies_during_a_failed_reload_is_replaced(
    migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    plugins, home = tmp_path / "plugins", tmp_path / "home"
    plugins.mkdir()
    home.mkdir()
    (plugins / "gate.py").write_text(CLOSED_GATE)
    (home / "skillery.toml").touch()
    database = migrated_postgres_database()
    env = {"SKILLERY_DATABASE": database, "SKILLERY_METRICS": "open", "SKILLERY_PLUGINS_FOLDER": str(plugins)}
    server = Server(home, "--workers", str(WORKERS), env=env)
    try:
        killed, survivor = workers_of(server)
        (home / "skillery.toml").write_text('secrets = "gate"\n')
        server.process.send_signal(signal.SIGHUP)
        eventually((plugins / "reached").exists)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: f"worker process {killed} ended" in server.log.read_text())
        (plugins / "opened").touch()

        eventually(lambda: "the gate is closed" in server.log.read_text())
        pids = eventually(lambda: len(now := workers_of(server)) == WORKERS and survivor in now and now)
        assert killed not in pids
        eventually(lambda: metric(server, "skillery_workers") == WORKERS)
    finally:
        assert server.stop() == 0, server.log.read_text()[-4000:]


@pytest.mark.full
def test_connections_of_an_address_count_over_all_workers(
    migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    env = {"SKILLERY_DATABASE": migrated_postgres_database(), "SKILLERY_MAX_CONNECTIONS": "6"}
    server = Server(tmp_path / "home", "--workers", "2", env=env)
    host, port = server.url.removeprefix("http://").split(":")
    sockets = []
    try:
        for _ in range(30):
            sockets.append(socket.create_connection((host, int(port)), timeout=300))
            with suppress(OSError):  # the server has closed it already
                sockets[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(0.01)
        eventually(lambda: sum(_is_open(one) for one in sockets) <= 6)
    finally:
        for one in sockets:
            one.close()
        assert server.stop() == 0


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def test_workers_end_when_the_supervisor_is_killed(
    migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    env = {"SKILLERY_DATABASE": migrated_postgres_database(), "SKILLERY_GRACE_SECONDS": "1"}
    server = Server(tmp_path / "home", "--workers", "2", env=env)
    workers = workers_of(server)
    server.stop(signal.SIGKILL)

    eventually(lambda: not any(_is_alive(pid) for pid in workers))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("env", "words", "code"),
    [
        ({}, ["workers", "SQLite", "Postgres"], 4),
        ({"SKILLERY_DATABASE": "postgresql://127.0.0.1:1/none"}, ["127.0.0.1"], 5),
    ],
)
def test_a_server_names_the_reason_if_workers_cannot_start(
    tmp_path: Path, env: dict[str, str], words: list[str], code: int
) -> None:
    command = ["serve", "--home", str(tmp_path / "home"), "--port", "0", "--workers", "2", "--json"]
    ended = prefork().run(command, clean_environment(env), b"")

    assert ended.returncode == code
    message = json.loads(ended.stdout)["error"]["message"]
    assert all(word in message for word in words), message
