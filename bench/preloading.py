"""Code that imports numpy and pandas, in a run from a preloaded process and in a run that imports them itself."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.packages import INDEX
from bench.report import Report, format_ms, median, percentile
from bench.runs import one
from cellblock.host.pool import Pool
from cellblock.host.succession import Warmth
from skillery.backends import CodeCall, Job, Limits, PackageMount, Place
from skillery.builtin.linux_sandbox import skillery_sandbox
from skillery.builtin.linux_sandbox.sandbox import Bounds, HostCapabilities, LinuxSandbox
from skillery.jobs import limits_of
from skillery.testing.sandbox.leftovers import descendants
from tests.conftest import Server

MODULES = ("numpy", "pandas")
CODE = "import numpy, pandas\ndef main(args):\n    return {'ok': True}\n"
EVER = 10**6


def measure(report: Report, folder: Path, small: bool) -> None:
    report.heading("Packages that are imported ahead")
    site = folder / "packages"
    uv = shutil.which("uv") or ".tools/bin/uv"
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", sys.executable]
    if subprocess.run([*install, "--target", str(site), *MODULES], check=False).returncode != 0:
        report.text("Not measured: numpy and pandas could not be installed.")
        return
    times = 50 if small else 200
    rows, facts = asyncio.run(_sandbox(folder, PackageMount("ab" * 32, site), times))
    report.text(
        "`import numpy, pandas` and an empty function, directly in the sandbox. `prepared` and `on demand` are forked "
        "from a process that has imported both. `cold` is a prepared run that imports both itself."
    )
    report.table(["what", "p50 ms", "p99 ms"], rows)
    report.text(facts)
    report.text(
        "`run_code` with the same code over HTTP, one caller, one run after another: in a named environment with "
        "`preload`, in an environment with the same packages without `preload`, and code without imports."
    )
    report.table(["what", "p50 ms", "p99 ms"], _over_http(folder, times))


async def _sandbox(folder: Path, mount: PackageMount, times: int) -> tuple[list[list[object]], str]:
    offer = skillery_sandbox()
    sandbox: LinuxSandbox = offer.open(offer.settings(), Place(folder))
    await sandbox.start()  # compiles the modules, and fails if this host has no sandbox
    await sandbox.close()
    cold = Job("run_0", CodeCall(CODE, "main"), b"{}", packages=(mount,))
    warm = Job("run_0", CodeCall(CODE, "main"), b"{}", packages=(mount,), preload=MODULES)
    rows: list[list[object]] = []
    facts = ""
    for what, prepared in (("prepared", 3), ("on demand", 0)):
        means = sandbox.look_around(Warmth(prepared, EVER, EVER, limits_of(Limits())), Bounds())
        await means.pool.start()
        began = time.perf_counter()
        pool = await _imported(means, warm)
        started = time.perf_counter() - began
        rows.append([what, *_figures([await _one(means, pool, warm) for _ in range(times)])])
        if prepared:
            rows.append(["cold", *_figures([await _one(means, means.pool, cold) for _ in range(times // 5)])])
            facts = await _facts(means, pool, started)
        await means.close()
    return rows, facts


def _over_http(folder: Path, times: int) -> list[list[object]]:
    """Measure over HTTP. The environments are installed from the index."""
    named = {"ahead": {"preload": MODULES}, "itself": {}}
    settings = {
        f"SKILLERY_ENVIRONMENTS_{name.upper()}": json.dumps({"dependencies": MODULES, **more})
        for name, more in named.items()
    }
    server = Server(folder / "named", env={"SKILLERY_PACKAGES_INDEX_URLS": INDEX, **settings})
    nothing = "def main(args):\n    return {'ok': True}\n"
    cases = {
        "imported ahead": (CODE, {"environment": "ahead"}),
        "imports them itself": (CODE, {"environment": "itself"}),
        "imports nothing": (nothing, {}),
    }
    taken: dict[str, list[float]] = {what: [] for what in cases}
    try:
        while not _is_warm(server):
            _run(server, *cases["imported ahead"])
            time.sleep(0.1)
        for code, more in cases.values():
            _run(server, code, more)
        for what, (code, more) in cases.items():
            most = times // 5 if what == "imports them itself" else times
            taken[what] = [_run(server, code, more) for _ in range(most)]
    finally:
        server.stop()
    return [[what, *_figures(all_of_it)] for what, all_of_it in taken.items()]


def _is_warm(server: Server) -> bool:
    found = server.rpc("list_environments")["environments"]
    if any(one["state"] == "failed" for one in found):
        raise RuntimeError(str(found))
    return any(one["warm"] and one["warm"]["state"] == "ready" for one in found)


def _run(server: Server, code: str, more: Mapping[str, str]) -> float:
    started = time.perf_counter()
    answer = server.rpc("run_code", language="python", code=code, **more)
    if answer["status"] != "completed":
        raise RuntimeError(answer["error"]["message"])
    return (time.perf_counter() - started) * 1000


async def _imported(means: HostCapabilities, job: Job) -> Pool:
    """Return the pool of the preloaded process, once its modules are imported."""
    while (pool := means.pool_for(job)) is means.pool:
        await asyncio.sleep(0.02)
        if any(preloaded.state == "failed" for preloaded in means.pools.preloaded()):
            raise RuntimeError(str(means.pools.preloaded()))
    return pool


async def _one(means: HostCapabilities, pool: Pool, job: Job) -> float:
    while not pool.is_full:
        await asyncio.sleep(0.001)
    return await one(means, job)


async def _facts(means: HostCapabilities, pool: Pool, started: float) -> str:
    while not pool.is_full:
        await asyncio.sleep(0.001)
    held = sum(preloaded.memory for preloaded in means.pools.preloaded()) / (1 << 20)
    own = [_private(pid) for cell in pool.ready for pid in (cell.pid, *descendants(cell.pid))]
    return (
        f"The process that has imported both holds {held:.0f} MiB, which its runs share. It was ready after "
        f"{started:.1f} s. Each prepared run has {sum(own) / len(pool.ready) / 1e6:.1f} MB of private memory."
    )


def _private(pid: int) -> int:
    """Return the bytes that only this process maps."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Private_Clean:"))) * 1024


def _figures(taken: list[float]) -> tuple[str, str]:
    return format_ms(median(taken)), format_ms(percentile(taken, 99))
