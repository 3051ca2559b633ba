"""`make kills`: kill -9 during publishes, uploads, runs and sweeps, many times, and `skillery check` afterwards.

`python -m bench.kills 200` kills 200 times. The exit code is 1 if an acknowledged write is missing, or if the check
finds a fault.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.conftest import Rpc, RpcError, Server, clean_environment, manifest, skill_files

LARGE = "x" * 100_000
SHARED = 3
"""Number of contents that all workers store and delete in turn, so that uploads meet deletions of the same content."""
NO_GRACE = {"SKILLERY_GC_GRACE_MINUTES": "0", "SKILLERY_GC_INTERVAL_MINUTES": "0"}
WORKERS = 3
LONGEST_SECONDS = 0.6
FIRST_WRITE_SECONDS = 30.0
"""The time that a loaded machine may need until a server acknowledges its first write."""


class Acknowledged(NamedTuple):
    kind: str
    name: str


class Killed(NamedTuple):
    kills: int
    acknowledged: list[Acknowledged]
    lost: list[Acknowledged]
    """Acknowledged writes that are missing."""
    check: str
    """Output of `skillery check --deep` if it found a fault, otherwise empty."""

    @property
    def is_whole(self) -> bool:
        return not self.lost and not self.check


def kill_again_and_again(
    folder: Path, kills: int, database: str = "", seed: int = 7, settings: Mapping[str, str] | None = None
) -> Killed:
    """Kill a server `kills` times during writes, and then look for every acknowledged write."""
    chance = random.Random(seed)
    acknowledged: list[Acknowledged] = []
    env = {"SKILLERY_DATABASE": database, **NO_GRACE, **(settings or {})}
    for number in range(kills):
        server = Server(folder / "home", env=env)
        workers = [
            threading.Thread(target=_write, args=(Rpc(server.url), f"k{number}w{worker}", acknowledged))
            for worker in range(WORKERS)
        ]
        workers.append(threading.Thread(target=_sweep, args=(Rpc(server.url),)))
        before = len(acknowledged)
        for worker in workers:
            worker.start()
        # Every other kill waits for a write: a slow machine would otherwise kill each server before its first one.
        if number % 2:
            _wait_for_a_write(acknowledged, before)
        time.sleep(chance.uniform(0.02, LONGEST_SECONDS))
        server.stop(signal.SIGKILL)
        for worker in workers:
            worker.join()
    server = Server(folder / "home", env=env)
    try:
        lost = [one for one in acknowledged if not _is_there(server.rpc, one)]
        return Killed(kills, acknowledged, lost, _check(server.home, env))
    finally:
        server.stop()


def _wait_for_a_write(acknowledged: list[Acknowledged], before: int) -> None:
    latest = time.monotonic() + FIRST_WRITE_SECONDS
    while len(acknowledged) == before and time.monotonic() < latest:
        time.sleep(0.01)


def _write(rpc: Rpc, prefix: str, acknowledged: list[Acknowledged]) -> None:
    """Upload, publish and run in turn, until the server is killed."""
    number = 0
    try:
        while True:
            number += 1
            name = f"{prefix}.n{number}"
            code = (
                "from runtime import blobs\ndef main(args):\n    return blobs.write_text('y' * 70_000 + args['name'])\n"
            )
            files = [*skill_files(code), {"path": "resources/large.txt", "content": name + LARGE}]
            # The blob comes first, because the first publish after a start waits for a compile worker.
            blob = rpc("create_blob", content=name + LARGE, kind="text/plain")
            acknowledged.append(Acknowledged("blob", blob["blob_id"]))
            shared = rpc("create_blob", content=f"shared {number % SHARED}{LARGE}", kind="text/plain")
            if number % 5:
                rpc("delete_blob", blob_id=shared["blob_id"])
            else:
                acknowledged.append(Acknowledged("blob", shared["blob_id"]))
            rpc("create_skill", manifest=manifest(name), skill_md="# K\n", files=files)
            acknowledged.append(Acknowledged("skill", name))
            run = rpc("execute_skill", name=name, args={"name": name})
            if run["status"] == "completed":
                acknowledged.append(Acknowledged("blob", run["output"]))
    except (httpx.HTTPError, RpcError):
        return


def _sweep(rpc: Rpc) -> None:
    """Sweep until the server is gone."""
    try:
        while True:
            rpc.send("collect_garbage", {})
    except httpx.HTTPError:
        return


def _is_there(rpc: Rpc, one: Acknowledged) -> bool:
    if one.kind == "blob":
        return rpc.http.get(f"/blobs/{one.name}").status_code == 200
    try:
        content: str = rpc("read_skill_file", name=one.name, path="resources/large.txt")["content"]
    except RpcError:
        return False
    return content == one.name + LARGE


def _check(home: Path, env: dict[str, str]) -> str:
    command = [sys.executable, "-m", "skillery", "check", "--deep", "--home", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(env), check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="skillery-kills-") as folder:
        done = kill_again_and_again(Path(folder), kills)
    counts = Counter(one.kind for one in done.acknowledged)
    print(
        f"{done.kills} kills in {time.monotonic() - begun:.0f} s; acknowledged: {dict(counts)}; "
        f"lost: {len(done.lost)}; skillery check --deep: {done.check or 'ok'}"
    )
    return 0 if done.is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
