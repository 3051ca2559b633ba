"""Three servers, two nodes, Postgres and a shared store on one machine, under load, while parts of it fail.

The short form is a part of the suite. `make ray-together` runs the long form.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.postgres import Postgres, a_postgres
from tests.support.processes import eventually
from tests.support.ray_cluster import RayCluster, ray_environment, settings_of, write_config

pytest_plugins = ("ray_fixtures",)
pytestmark = pytest.mark.long
SECONDS = float(os.environ.get("SKILLERY_RAY_SECONDS", "8"))
CALLERS = 3
# The skill itself counts its runs, outside of the cluster: also the runs of a node that is killed a moment later.
CODE = """
from urllib.request import urlopen
def main(args):
    return urlopen(f"http://count.test:{args['port']}/{args['number']}").read().decode()
"""


class Counting(ThreadingHTTPServer):
    """Counts the requests by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CountingRequest)
        self.counted: Counter[str] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class CountingRequest(BaseHTTPRequestHandler):
    server: Counting

    def do_GET(self) -> None:
        self.server.counted[self.path.rpartition("/")[2]] += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"counted")

    def log_message(self, *_: object) -> None:
        return


class Fleet:
    """Three servers, and clients that use them in turn."""

    def __init__(self, folder: Path, postgres: Postgres, cluster: RayCluster, nodes: Path) -> None:
        self.postgres = postgres
        self._folder = folder
        self.counting = Counting()
        node = {"hosts": {"count.test": ["127.0.0.1"]}, "allow_private": ["127.0.0.1"]}
        self._settings = settings_of(cluster, nodes, node=node)
        self._turns = itertools.count()
        self.servers = [self.open(number) for number in range(3)]

    def open(self, number: int) -> Server:
        folder = self._folder / f"server-{number}"
        folder.mkdir(exist_ok=True)
        more = {"database": self.postgres.url, "backends": {"sandbox": {"ray": self._settings}, "storage": {
            "directory": {"path": str(self._folder / "contents")}}}}  # fmt: skip
        config = write_config(folder, self._settings, **more)
        return Server(folder / "home", "--config", config, env=ray_environment())

    def rpc(self) -> Rpc:
        return Rpc(self.servers[next(self._turns) % 3].url)


@pytest.fixture
def fleet(tmp_path: Path, two_nodes: RayCluster, node_folder: Path) -> Iterator[Fleet]:
    with a_postgres() as postgres:
        fleet = Fleet(tmp_path, postgres, two_nodes, node_folder)
        try:
            yield fleet
        finally:
            for server in fleet.servers:
                server.stop(signal.SIGKILL)
            fleet.counting.shutdown()
            fleet.counting.server_close()


class Load:
    """Callers that publish and run skills until `stop`. They note what the servers have acknowledged."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._numbers = itertools.count()
        self._over = threading.Event()
        self.published: list[str] = []
        self.completed: dict[str, str] = {}
        """Run ids by the number of the run."""
        self.unclear: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(CALLERS)
        self._work = [self._pool.submit(self._call) for _ in range(CALLERS)]

    def _call(self) -> None:
        while not self._over.is_set():
            number = next(self._numbers)
            try:
                self._publish(number) if number % 5 == 0 else self._run(f"{os.getpid()}-{number}")
            except (httpx.HTTPError, AssertionError) as error:  # a server or the database is down
                self.unclear[type(error).__name__] += 1
                time.sleep(0.2)  # no event: the next call may fail as well

    def _publish(self, number: int) -> None:
        name = f"load.skill-{number}"
        rpc = self._fleet.rpc()
        answer = rpc.send("create_skill", {"manifest": manifest(name), "skill_md": "# x", "files": skill_files(CODE)})
        if "result" in answer:
            self.published.append(name)

    def _run(self, number: str) -> None:
        args = {"number": number, "port": self._fleet.counting.server_port}
        answer = self._fleet.rpc().send("execute_skill", {"name": "load.count", "args": args})
        run = answer.get("result", {})
        if run.get("status") == "completed":
            self.completed[number] = run["run_id"]
        else:
            self.unclear[run.get("error", answer.get("error", {})).get("message", "?")[:60]] += 1

    def go_on(self) -> None:
        """Wait for a quarter of SECONDS, and until enough runs have completed."""
        enough = len(self.completed) + SECONDS / 8
        time.sleep(SECONDS / 4)
        eventually(lambda: len(self.completed) > enough, problem=lambda: self.unclear)

    def stop(self) -> None:
        self._over.set()
        for work in self._work:
            work.result(600)
        self._pool.shutdown()


@pytest.mark.full
def test_no_acknowledged_data_is_lost_and_no_run_happens_twice(fleet: Fleet, two_nodes: RayCluster) -> None:
    rpc = fleet.servers[0].rpc
    asked = {"network": [f"http://count.test:{fleet.counting.server_port}"]}
    rpc("create_skill", manifest=manifest("load.count", permissions=asked), skill_md="# Count", files=skill_files(CODE))
    load = Load(fleet)
    load.go_on()
    two_nodes.kill_node("two")
    load.go_on()
    fleet.servers[1].stop(signal.SIGKILL)
    fleet.servers[1] = fleet.open(1)
    load.go_on()
    fleet.postgres.stop(signal.SIGQUIT)
    fleet.postgres.start()
    two_nodes.add_node("two", zone="b")
    load.go_on()
    load.stop()

    assert_all_published(fleet, load.published)
    assert_no_run_is_started(fleet)
    assert_each_ran_once(fleet, load)
    print(f"{len(load.completed)} runs, {len(load.published)} skills, not acknowledged: {dict(load.unclear)}")  # noqa: T201 - the long form shows it with -s


def assert_all_published(fleet: Fleet, names: list[str]) -> None:
    for name in names:
        assert fleet.rpc()("describe_skill", name=name)["skill"]["name"] == name


def assert_no_run_is_started(fleet: Fleet) -> None:
    """Wait until no run is started: servers close the runs of a dead server after a minute without a heartbeat."""
    eventually(lambda: not started(fleet), problem=lambda: started(fleet))


def started(fleet: Fleet) -> list[dict[str, Any]]:
    with suppress(httpx.HTTPError):
        found: list[dict[str, Any]] = fleet.servers[0].rpc("list_runs", status="started")["runs"]
        return found
    return [{}]


def assert_each_ran_once(fleet: Fleet, load: Load) -> None:
    """Compare what the code itself has counted with the answers of the servers."""
    counted = fleet.counting.counted
    assert {number: counted[number] for number in load.completed if counted[number] != 1} == {}
    assert {number: times for number, times in counted.items() if times > 1} == {}
