"""The Ray actor of a node. It starts the engine process, tells servers its address, and ends with it.

No job and no result passes through Ray: Ray finds the nodes, starts one actor on each, and notices lost nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

from skillery_ray.versions import versions

UNUSED_SECONDS = 300.0


class NodeActor:
    """The Ray actor of one node. Its name contains the node and the settings, so all servers with these settings share
    it.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[str, Any] = {}
        threading.Thread(target=self._end_unused, daemon=True).start()

    def versions(self) -> dict[str, str]:
        return versions()

    def engine(self, host: str) -> dict[str, Any]:
        """Return the address of the engine, which the first call starts, or {"problem": reason}."""
        if self._process is None:
            process, message = start_engine(self._settings, host)
            if "problem" in message:  # the next call tries again
                process.wait()
                return message
            self._process, self._told = process, message
            threading.Thread(target=self._end_with, args=(process,), daemon=True).start()
        return self._told

    def _end_unused(self) -> None:
        """End this actor if no server has started its engine for a while, for example because all servers have other
        versions.
        """
        time.sleep(UNUSED_SECONDS)
        if self._process is None:
            os._exit(0)

    def _end_with(self, process: subprocess.Popen[bytes]) -> None:
        """End this actor when the engine has ended. The next server that needs the node starts a new actor."""
        process.wait()
        os._exit(0)


def start_engine(settings: dict[str, Any], host: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start an engine process. Return the process, and its address or its problem.

    The engine ends when its stdin closes.
    """
    # Without the variables of Ray: the engine needs none of them, and one of them may be a token of the cluster.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "skillery_ray.node"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"settings": settings, "host": host}).encode() + b"\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return process, json.loads(line) if line else {"problem": "the engine process has ended; see its log on the node"}
