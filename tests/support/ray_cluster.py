"""A real Ray cluster for tests and benchmarks: the head and its nodes, on loopback only."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.support.processes import eventually, free_port

ROOT = Path(__file__).parents[2]
RAY = ROOT / ".tools" / "ray"
ON_LOOPBACK = Path(__file__).parent / "ray_on_loopback"
START_SECONDS = 300
PATIENCE = (
    "RAY_raylet_start_wait_time_s",
    "RAY_gcs_rpc_server_connect_timeout_s",
    "RAY_gcs_server_request_timeout_seconds",
)

"""Limits of Ray in seconds that a busy machine exceeds."""
MEMORY = 80_000_000
"""The bytes of the object store of a node, near the least that Ray accepts. Jobs do not use it."""


def ray_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which Python finds Ray, and in which Ray stays on loopback."""
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",
    }
    patient = {name: str(START_SECONDS) for name in PATIENCE} | {"RAY_agent_register_timeout_ms": "120000"}
    # The folder of Ray is last on the path, so that it hides no package of the environment.
    path = {"PYTHONPATH": str(ON_LOOPBACK), "TESTS_RAY": str(RAY)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SKILLERY_")}
    return {**kept, **patient, **quiet, **path, **(more or {})}


class RayCluster:
    """A cluster. Its head is the node `one`. `add_node` and `kill_node` change its nodes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._nodes: dict[str, int] = {}
        self.start_head()

    def start_head(self) -> None:
        """Start the head. After `kill_node("one")`, a new cluster begins at the same address."""
        head = ("--head", f"--port={self._port}", "--include-dashboard=false", f"--temp-dir={self._folder}")
        self._start("one", *head, "--labels=node=one,zone=a")

    def add_node(self, name: str, environment: Mapping[str, str] | None = None, **labels: str) -> None:
        """Start a node, with the label `node`: its name."""
        told = ",".join(f"{key}={value}" for key, value in {"node": name, **labels}.items())
        self._start(name, f"--address={self.address}", f"--labels={told}", more=environment)

    def _start(self, name: str, *options: str, more: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--node-ip-address=127.0.0.1",
                   f"--node-name={name}", "--num-cpus=1", "--disable-usage-stats", f"--object-store-memory={MEMORY}",
                   "--block"]  # fmt: skip
        # By way of a shell that ends at once, so that the node is not a child of the tests, which look for leftovers.
        line = f"{shlex.join(command)} > {self._folder / name}.log 2>&1 & echo $!"
        started = subprocess.run(["sh", "-c", line], capture_output=True, check=True, env=ray_environment(more),
                                 start_new_session=True)  # fmt: skip
        self._nodes[name] = int(started.stdout)
        self._wait(name)

    def _wait(self, name: str) -> None:
        log = self._folder / f"{name}.log"
        eventually(lambda: "Ray runtime started" in log.read_text(), of=self._nodes[name], problem=log.read_text)

    def kill_node(self, name: str) -> None:
        """Kill all processes of a node with SIGKILL, as the loss of its machine does."""
        pid = self._nodes.pop(name)
        for one in (*_descendants(pid), pid):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    def engines(self, name: str) -> list[int]:
        """Return the process ids of the engines on a node."""
        found = _descendants(self._nodes[name])
        return [pid for pid in found if b"skillery_ray.node" in _command(pid)]

    def stop(self) -> None:
        for name in list(self._nodes):
            self.kill_node(name)


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in path.read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found


@contextmanager
def running_cluster() -> Iterator[RayCluster]:
    """Yield a cluster with one node. Skip without Ray, except in CI."""
    if not (RAY / "ray").is_dir():
        reason = "Ray is not installed: `make .tools/ray/.installed` (240 MB)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    # The paths of the sockets of Ray must be short.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    cluster = RayCluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def settings_of(cluster: RayCluster, folder: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of the sandbox for a cluster. The nodes keep their files in `folder`."""
    return {"address": cluster.address, "folder": str(folder), "idle_seconds": 60, **more}


def write_config(folder: Path, settings: Mapping[str, Any], **more: Any) -> str:
    """Write the configuration of a server with the sandbox `ray`. Return its path."""
    file = folder / "skillery.toml"
    file.write_text(tomli_w.dumps({"sandbox": "ray", "backends": {"sandbox": {"ray": dict(settings)}}, **more}))
    return str(file)


def processes(marker: str) -> list[int]:
    """Return the processes of this machine with an argument that equals `marker`."""
    wanted = marker.encode()
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if wanted in _command(int(path.name)).split(b"\0")]


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(pid)
    return found
