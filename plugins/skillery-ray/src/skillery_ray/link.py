"""The link process: a driver of the Ray cluster, which finds nodes and starts an actor on each.

Ray ends its drivers when it loses the cluster, so the driver is not the server itself. The server starts it as `python
-m skillery_ray.link`, writes its settings to stdin, and reads one JSON report a line from stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any

from skillery_ray.settings import has_labels

REPORT_SECONDS = 1.0
CONNECT_SECONDS = 3.0
CALL_SECONDS = 60.0
RETRY_SECONDS = 20.0
"""A node that could not be used is asked again after this time."""


class Lost(Exception):
    """Raised if the cluster cannot be reached. The message is one line."""


def check_address(address: str) -> None:
    """Raise Lost if nothing listens at the address of the cluster. Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_SECONDS):
            return
    except (OSError, ValueError) as error:
        raise Lost(f"Ray does not answer at {address}: {error}") from None


def join(address: str, namespace: str) -> None:
    """Connect to the cluster. Raise Lost if that fails."""
    import ray

    check_address(address)
    try:
        ray.init(
            address=address, namespace=namespace, log_to_driver=False, logging_level="error", configure_logging=False
        )
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds of errors
        raise Lost(f"Ray at {address} refuses this server: {_line(error)}") from None


class Nodes:
    """The nodes of the cluster with their engines."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, float] = {}

    def report(self) -> list[dict[str, Any]]:
        """Return the live nodes that this server may use. Engines on new nodes are started in the background."""
        import ray

        live_nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and self._is_wanted(node)}
        with self._lock:
            for lost_id in self._known.keys() - live_nodes.keys():
                del self._known[lost_id]
            for node_id, node in live_nodes.items():
                self._start(node_id, node)
            return [{**message, "labels": live_nodes[node_id]["Labels"]} for node_id, message in self._known.items()]

    def _is_wanted(self, node: dict[str, Any]) -> bool:
        return has_labels(node["Labels"], self._order["labels"])

    def ask_again(self, node_id: str) -> None:
        """Forget a node, so that its engine is started again: it does not answer."""
        with self._lock:
            self._known.pop(node_id, None)

    def _start(self, node_id: str, node: dict[str, Any]) -> None:
        """Start the engine of a node in a thread, unless it works or was started less than `RETRY_SECONDS` ago."""
        message = self._known.get(node_id)
        now = time.monotonic()
        is_good = message is not None and not message["problem"]
        if is_good or now - self._asked.get(node_id, -RETRY_SECONDS) < (RETRY_SECONDS if message else 1):
            return
        self._asked[node_id] = now
        if message is None:
            self._known[node_id] = self._report(node_id, node, "is starting", starting=True)
        threading.Thread(target=self._begin, args=(node_id, node), daemon=True).start()

    def _begin(self, node_id: str, node: dict[str, Any]) -> None:
        """Start the engine of a node and note its report, or the problem that prevented the start."""
        try:
            engine = self._engine(node_id, node)
        except Exception as error:  # noqa: BLE001 - any error of Ray or of the node is the reason why it is not used
            engine = {"problem": _reason(error)}
        message = self._report(node_id, node, engine.pop("problem", ""), door=engine or None)
        with self._lock:
            if node_id in self._known:
                self._known[node_id] = message

    def _report(self, node_id: str, node: dict[str, Any], problem: str, **more: Any) -> dict[str, Any]:
        return {"id": node_id, "name": node["NodeName"], "problem": problem, "door": None, "starting": False, **more}

    def _engine(self, node_id: str, node: dict[str, Any]) -> dict[str, Any]:
        import ray

        actor = self._actor(node_id)
        node_versions = ray.get(actor.versions.remote(), timeout=CALL_SECONDS)
        problem = _difference(self._order["versions"], node_versions)
        if problem:
            return {"problem": problem}
        engine: dict[str, Any] = ray.get(actor.engine.remote(node["NodeManagerAddress"]), timeout=CALL_SECONDS)
        return engine

    def _actor(self, node_id: str) -> Any:
        """Return the actor of a node, which the first server starts for all servers with the same settings."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from skillery_ray.actor import NodeActor

        options = {
            "name": f"engine-{self._order['key']}-{node_id}",
            "namespace": self._order["namespace"],
            "get_if_exists": True,
            "lifetime": "detached",
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
        }
        return ray.remote(NodeActor).options(**options).remote(self._order["settings"])


def _difference(own_versions: dict[str, str], node_versions: dict[str, str]) -> str:
    """Return why a node with other versions is refused, or ""."""
    for name, own_version in own_versions.items():
        if node_versions.get(name) != own_version:
            return f"has {name} {node_versions.get(name)}, but this server has {own_version}"
    return ""


def _reason(error: Exception) -> str:
    if "ModuleNotFoundError" in str(error) or isinstance(error, ModuleNotFoundError):
        return "has no skillery-ray: install it next to Ray there"
    return f"cannot start an engine: {_line(error)}"


def _line(error: Exception) -> str:
    """Return the main sentence of an error of Ray as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def main() -> None:
    """Report the nodes every REPORT_SECONDS, until the cluster is lost."""
    # Only reports may be on stdout: Ray prints there too.
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = json.loads(sys.stdin.readline())
    try:
        join(order["address"], order["namespace"])
        nodes = Nodes(order)
        threading.Thread(target=_obey, args=(nodes,), daemon=True).start()
        while True:
            check_address(order["address"])
            _say(reports, {"nodes": nodes.report()})
            time.sleep(REPORT_SECONDS)
    except Lost as lost:
        _say(reports, {"lost": str(lost)})
    except Exception as error:  # noqa: BLE001 - the server starts a new process
        _say(reports, {"lost": f"Ray failed: {_line(error)}"})
    os._exit(0)  # the end of a driver can take long without its cluster


def _say(reports: Any, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        reports.write(json.dumps(message) + "\n")
        reports.flush()


def _obey(nodes: Nodes) -> None:
    """Read node ids from stdin, and start the engines of these nodes again. End this process when the server closes
    stdin.
    """
    for line in sys.stdin:
        nodes.ask_again(line.strip())
    os._exit(0)


if __name__ == "__main__":
    main()
