"""`python -m bench.ray`: a no-op run through the sandbox `ray` on two local nodes, compared with one engine `linux`.

The rounds of both alternate, because other load on the machine changes. The exit code is 1 if dispatch adds more than
5 ms to the median, or if two nodes have less than 80 % of the throughput of one engine on the same cores.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from bench.report import median
from skillery.backends import CodeCall, Job, Place, Sandbox
from skillery.builtin.linux_sandbox import LinuxSandboxSettings
from skillery.builtin.linux_sandbox import open_sandbox as open_linux
from skillery.testing.sandbox import MemoryHost
from skillery_ray import open_sandbox as open_ray
from skillery_ray.settings import RaySettings
from tests.support.ray_cluster import RayCluster, ray_environment, running_cluster, settings_of

ROUNDS, RUNS, CALLERS = 9, 60, 4
MOST_ADDED_MS, LEAST_RATIO = 5.0, 0.8
JOB = Job("run_bench", CodeCall("def main(args): return 1", "main"), b"{}")


def main() -> int:
    with running_cluster() as cluster, tempfile.TemporaryDirectory(prefix="skillery-ray-") as folder:
        cluster.add_node("two", zone="b")
        os.environ.update(ray_environment())
        return asyncio.run(compare(cluster, Path(folder)))


async def compare(cluster: RayCluster, folder: Path) -> int:
    linux = open_linux(LinuxSandboxSettings(), Place(folder / "linux"))
    ray = open_ray(msgspec.convert(settings_of(cluster, folder / "nodes"), RaySettings), Place(folder / "server"))
    try:
        for sandbox in (linux, ray):
            await sandbox.start()
            await at_once(sandbox, CALLERS)  # the first runs open connections and fill pools
        taken = {name: await alternate(measure, linux, ray) for name, measure in MEASURES.items()}
    finally:
        await ray.close()
        await linux.close()
    return report(*taken["median"], *taken["throughput"])


async def alternate(measure: Callable[[Sandbox], Awaitable[float]], *sandboxes: Sandbox) -> list[float]:
    """Return the median of ROUNDS measurements of each sandbox, in turn."""
    rounds = [[await measure(sandbox) for sandbox in sandboxes] for _ in range(ROUNDS)]
    return [median(list(column)) for column in zip(*rounds, strict=True)]


async def one_caller(sandbox: Sandbox) -> float:
    """Return the median time of a run in milliseconds."""
    return median([await timed(sandbox) for _ in range(RUNS)]) * 1000


async def timed(sandbox: Sandbox) -> float:
    began = time.perf_counter()
    outcome = await sandbox.run(JOB, MemoryHost())
    assert outcome.result == b"1", outcome.failure
    return time.perf_counter() - began


async def at_once(sandbox: Sandbox, callers: int = CALLERS) -> float:
    """Return the runs a second with several callers."""

    async def call() -> None:
        for _ in range(RUNS):
            await timed(sandbox)

    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return callers * RUNS / (time.perf_counter() - began)


MEASURES: dict[str, Callable[[Sandbox], Awaitable[float]]] = {"median": one_caller, "throughput": at_once}


def report(direct_ms: float, ray_ms: float, direct_rate: float, ray_rate: float) -> int:
    added, ratio = ray_ms - direct_ms, ray_rate / direct_rate
    print(f"median of a run, one caller: linux {direct_ms:.1f} ms, ray {ray_ms:.1f} ms, added {added:.1f} ms")
    print(f"throughput, {CALLERS} callers: linux {direct_rate:.0f}/s, ray {ray_rate:.0f}/s, ratio {ratio:.2f}")
    return int(added > MOST_ADDED_MS or ratio < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
