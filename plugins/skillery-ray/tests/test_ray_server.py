"""Servers with the sandbox `ray` and a real cluster: placement, lost nodes, dead servers, a lost cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from skills_protocol_conformance.cli import main as conformance
from tests.conftest import Server, clean_environment, manifest, skill_files
from tests.support.processes import eventually, free_port, is_running
from tests.support.ray_cluster import (
    RayCluster,
    ancestors,
    processes,
    ray_environment,
    settings_of,
    write_config,
)

pytest_plugins = ("ray_fixtures",)
pytestmark = pytest.mark.long
SLEEP = "import subprocess\ndef main(args): subprocess.run(['sleep', args['seconds']])"
ROUTES = [{"skills": ["on.two"], "labels": {"zone": "b"}}, {"namespaces": ["lost"], "labels": {"zone": "c"}}]
Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, two_nodes: RayCluster, node_folder: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(**more: Any) -> Server:
            folder = tmp_path_factory.mktemp("server")
            config = write_config(folder, settings_of(two_nodes, node_folder, **more))
            server = Server(folder / "home", "--config", config, env=ray_environment())
            stack.callback(server.stop, signal.SIGKILL)
            return server

        yield started


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    server = start(routes=ROUTES)
    eventually(lambda: "ray_nodes_ready 2" in server.rpc.http.get("/metrics").text)
    for name in ("on.two", "lost.one"):
        server.rpc("create_skill", manifest=manifest(name), skill_md="# Sleep", files=skill_files(SLEEP))
    return server


@pytest.mark.full
def test_it_conforms_to_the_protocol(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code = conformance([server.url, "--timeout", "300"])

    assert code == 0, capsys.readouterr()


def sleep_on(server: Server, marker: str, skill: str = "") -> str:
    """Start a run that sleeps for `marker` seconds, and wait until it sleeps. Return its id."""
    asked = {"args": {"seconds": marker}, "background": True}
    if skill:
        run = server.rpc("execute_skill", name=skill, **asked)
    else:
        run = server.rpc("run_code", language="python", code=SLEEP, **asked)
    eventually(lambda: processes(marker))
    return str(run["run_id"])


def ended(server: Server, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = eventually(
        lambda: (found := server.rpc("get_run", run_id=run_id))["status"] in {"completed", "failed"} and found
    )
    return run


@pytest.mark.long
def test_skills_code_and_blobs_run_on_the_nodes(server: Server, two_nodes: RayCluster) -> None:
    code = "def main(args):\n    from runtime import blobs\n    return [args, blobs.write_text('kept')]"
    server.rpc("create_skill", manifest=manifest("acme.look"), skill_md="# Look", files=skill_files(code))
    ran = server.rpc("execute_skill", name="acme.look", args={"a": 1})
    again = server.rpc("run_code", language="python", mount_skills=["acme.look"],
                       code="import skills.acme.look as s\ndef main(args): return s.main(args)")  # fmt: skip
    read = server.rpc("read_blob", blob_id=ran["output_blobs"][0], mode="full")

    assert (ran["status"], again["status"], ran["output"][0]) == ("completed", "completed", {"a": 1})
    assert read["content"] == "kept"
    assert server.rpc.http.get("/readyz").json()["status"] == "ready"


def test_routes_select_nodes_by_label_and_cancelling_ends_the_run(server: Server, two_nodes: RayCluster) -> None:
    run_id = sleep_on(server, "98101.5", "on.two")
    engines = two_nodes.engines("two")
    (process,) = processes("98101.5")
    is_there = set(engines) & set(ancestors(process))
    server.rpc("cancel_run", run_id=run_id)

    assert is_there, f"the run is not below an engine of the node two: {engines}"
    assert ended(server, run_id)["status"] == "failed"
    eventually(lambda: not processes("98101.5"))


def test_a_timeout_ends_the_run_on_its_node(server: Server) -> None:
    limits = {"timeout_ms": 1000}
    run = server.rpc("run_code", language="python", code=SLEEP, args={"seconds": "98102.5"}, limits=limits)

    assert run["error"]["type"] == "TimeoutError"
    eventually(lambda: not processes("98102.5"))


@pytest.mark.full
def test_a_lost_node_fails_its_run_once_and_no_other_run(server: Server, two_nodes: RayCluster) -> None:
    two_nodes.add_node("three", zone="c")
    eventually(lambda: two_nodes.engines("three"))
    run_id = eventually(lambda: try_on_lost(server))
    other = sleep_on(server, "98103.5", "on.two")
    two_nodes.kill_node("three")
    run = ended(server, run_id)
    runs = [one for one in server.rpc("list_runs", skill="lost.one")["runs"] if one["run_id"] == run_id]

    assert run["error"]["type"] == "SandboxError"
    assert "the node was lost" in run["error"]["message"]
    assert len(runs) == 1
    assert processes("98104.5") == [], "a lost run was started again"
    assert server.rpc("get_run", run_id=other)["status"] == "started"
    server.rpc("cancel_run", run_id=other)


def try_on_lost(server: Server) -> str | None:
    """Start a run on the node three if the server knows the node, and return its id when the run has begun."""
    answer = server.rpc.send("execute_skill", {"name": "lost.one", "args": {"seconds": "98104.5"}, "background": True})
    if "error" in answer or answer["result"]["status"] == "failed":
        return None
    eventually(lambda: processes("98104.5"))
    return str(answer["result"]["run_id"])


@pytest.mark.full
def test_excess_runs_are_busy_and_a_killed_server_leaves_no_run(start: Start) -> None:
    server = start(pending=1, labels={"node": "one"})
    eventually(lambda: "ray_nodes_ready 1" in server.rpc.http.get("/metrics").text)
    sleep_on(server, "98105.5")
    pids = processes("98105.5")
    error = server.rpc.error("run_code", language="python", code="def main(args): return 1")
    server.stop(signal.SIGKILL)

    assert (error["code"], error["data"]["type"]) == (-32006, "busy")
    assert error["data"]["retry_after_ms"] > 0
    # Ray takes minutes to notice a killed server, and a look at all processes of the machine is expensive.
    eventually(lambda: not any(map(is_running, pids)))
    assert processes("98105.5") == []


def skillery(folder: Path, settings: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    config = write_config(folder, settings)
    command = [sys.executable, "-m", "skillery", *arguments, "--home", str(folder / "home"), "--config", config]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=clean_environment(ray_environment())
    )


@pytest.mark.full
def test_serve_fails_with_a_single_line_if_ray_does_not_answer(tmp_path: Path, ray: RayCluster) -> None:
    settings = {**settings_of(ray, tmp_path), "address": f"127.0.0.1:{free_port()}"}
    refused = skillery(tmp_path, settings, "serve", "--port", "0")
    lines = [line for line in refused.stderr.splitlines() if "Ray does not answer" in line]

    assert refused.returncode != 0
    assert len(lines) == 1
    assert "Traceback" not in refused.stderr


@pytest.mark.full
def test_the_doctor_needs_no_local_sandbox_and_names_nodes_with_other_versions(
    two_nodes: RayCluster, tmp_path: Path, node_folder: Path
) -> None:
    other = tmp_path / "other" / "skillery-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: skillery\nVersion: 9.9.9\n")
    path = os.pathsep.join((str(other.parent), ray_environment()["PYTHONPATH"]))
    two_nodes.add_node("old", {"PYTHONPATH": path}, zone="old")
    try:
        shown = skillery(tmp_path, settings_of(two_nodes, node_folder), "doctor", "--json")
        only_old = skillery(tmp_path, settings_of(two_nodes, node_folder, labels={"node": "old"}), "serve")
    finally:
        two_nodes.kill_node("old")
    probes = {probe["name"]: probe for probe in json.loads(shown.stdout)["probes"]}

    assert shown.returncode == 0, shown.stdout
    assert "not needed" in probes["local sandbox"]["detail"]
    assert not {"user namespaces", "cgroups", "landlock"} & probes.keys()
    assert only_old.returncode != 0
    assert "the node old has Skillery 9.9.9, but this server has" in only_old.stderr


@pytest.mark.full
def test_a_lost_cluster_is_unavailable_until_it_returns(server: Server, two_nodes: RayCluster) -> None:
    call = {"language": "python", "code": "def main(args): return 1"}
    two_nodes.kill_node("one")
    two_nodes.kill_node("two")
    error = eventually(lambda: server.rpc.send("run_code", call).get("error"))
    two_nodes.start_head()
    two_nodes.add_node("two", zone="b")
    eventually(lambda: server.rpc.send("run_code", call).get("result", {}).get("status") == "completed")

    assert (error["code"], error["data"]["type"]) == (-32603, "unavailable")
