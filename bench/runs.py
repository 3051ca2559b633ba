"""A run that does nothing, compared with plain Python and, if installed, with bubblewrap and Python."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.load import call, send, send_paced
from bench.processor_time import ProcessorTime
from bench.report import Report, format_ms, median, milliseconds, percentile
from cellblock.doctor import COLD
from cellblock.host.succession import Warmth
from skillery.backends import Job, Limits, Place, SkillCall, SkillMount
from skillery.builtin.linux_sandbox import skillery_sandbox
from skillery.builtin.linux_sandbox.sandbox import CellRun, HostCapabilities, LinuxSandbox
from skillery.jobs import limits_of
from skillery.testing.sandbox import MemoryHost
from skillery.testing.sandbox.leftovers import descendants
from tests.conftest import Server

NO_OP = "import json; print(json.dumps({'ok': True}))"
MANY = (1, 10, 100, 1000)
MAIN = "def main(args):\n    return {'ok': True}\n"


def measure(report: Report, folder: Path, small: bool) -> None:
    times = 50 if small else 200
    report.heading("A no-op run")
    report.text(
        "Sandbox: from the start of the job to its result, without HTTP and database. The cleanup ends shortly "
        "afterwards. `prepared` was waiting for a run, `on demand` is forked for the run, `cold` starts the zygote "
        "first. `execute_skill` is over HTTP, is recorded in SQLite, and includes the cleanup."
    )
    python = milliseconds(lambda: _run([sys.executable, "-I", "-S", "-c", NO_OP]), times)
    rows: list[list[object]] = [["`python -I -S`, no isolation", *_figures(python), "1.0"]]
    bubblewrap = shutil.which("bwrap") or shutil.which("bwrap", path=".tools/bin")  # `make test` installs a copy there
    wrapped: list[float] = []
    if bubblewrap:
        wrapped = milliseconds(lambda: _run(_bubblewrap(bubblewrap)), times)
        rows.append(["bubblewrap + `python -I -S`", *_figures(wrapped), _ratio(wrapped, python)])
    figures = asyncio.run(_sandbox(folder, times))
    rows += [[f"sandbox, {name}", *_figures(taken), _ratio(taken, python)] for name, taken in figures.latencies.items()]
    processor = ProcessorTime()
    with processor.counted():
        # A start through a wrapper is not forked from a process that started before.
        server = Server(folder / "home", wrapper=("/usr/bin/env",))
    try:
        _publish(server)
        alone = send(server.url, lambda _: call("execute_skill", name="bench.noop"), times, 1)
        before = processor.milliseconds()
        loaded = send(server.url, lambda _: call("execute_skill", name="bench.noop"), times * 4, 4)
        taken_ms = (processor.milliseconds() - before) / (times * 4)
        half = loaded.per_second / 2
        paced = send_paced(server.url, lambda _: call("execute_skill", name="bench.noop"), times * 2, half)
    finally:
        server.stop()
        processor.close()
    rows.append(["execute_skill, one caller", *_figures(alone.latencies), _ratio(alone.latencies, python)])
    rows.append(["execute_skill, four callers", *_figures(loaded.latencies), _ratio(loaded.latencies, python)])
    rows.append([f"execute_skill, {half:.0f} a second", *_figures(paced.latencies), _ratio(paced.latencies, python)])
    report.table(["what", "p50 ms", "p99 ms", "p50 ratio to bare Python"], rows)
    report.text(
        f"Directly in the sandbox, four at a time: {figures.per_second:.0f} runs a second. Private memory of "
        f"each prepared cell: {figures.megabytes:.1f} MB. Processor time of an idle "
        f"engine: {figures.idle_ms:.0f} ms a second."
    )
    report.text(
        f"Processor time of one run with four callers: {taken_ms:.2f} ms (user and system time of "
        f"{processor.source}: server, zygote, workshop, pid 1 and pid 2)."
    )
    report.text(
        f"Four callers together: {loaded.per_second:.0f} runs a second; one caller: {alone.per_second:.0f}. In the "
        "last row, calls start at random times, at half of the rate of four callers. Each time is measured from the "
        "planned start of its call."
    )
    if wrapped:
        direct, over_http = median(figures.latencies["prepared"]), median(alone.latencies)
        report.text(
            f"Bubblewrap with Python takes {median(wrapped) / direct:.1f} times as long as a prepared run, and "
            f"{median(wrapped) / over_http:.1f} times as long as execute_skill with one caller (medians)."
        )
    report.text("Everything on one processor:")
    report.table(["what", "p50 ms", "p99 ms", "p50 ratio to bare Python"], _on_one_processor(folder, bubblewrap, times))
    report.text("Prepared cells with more skills, and with a skill of 10 MB, directly in the sandbox:")
    report.table(["what", "p50 ms", "p99 ms"], [[what, *_figures(taken)] for what, taken in figures.many.items()])


def _on_one_processor(folder: Path, bubblewrap: str | None, times: int) -> list[list[object]]:
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        python = milliseconds(lambda: _run([sys.executable, "-I", "-S", "-c", NO_OP]), times)
        rows: list[list[object]] = [["`python -I -S`, no isolation", *_figures(python), "1.0"]]
        if bubblewrap:
            taken = milliseconds(lambda: _run(_bubblewrap(bubblewrap)), times)
            rows.append(["bubblewrap + `python -I -S`", *_figures(taken), _ratio(taken, python)])
        figures = asyncio.run(_sandbox(folder / "one", times, many=False))
    finally:
        os.sched_setaffinity(0, everywhere)
    rows += [[f"sandbox, {name}", *_figures(taken), _ratio(taken, python)] for name, taken in figures.latencies.items()]
    return [*rows, [f"sandbox, four at a time: {figures.per_second:.0f} a second", "", "", ""]]


class Figures(NamedTuple):
    latencies: dict[str, list[float]]
    per_second: float
    megabytes: float
    idle_ms: float
    many: dict[str, list[float]]


async def _sandbox(folder: Path, times: int, *, many: bool = True) -> Figures:
    offer = skillery_sandbox()
    sandbox: LinuxSandbox = offer.open(offer.settings(), Place(folder))
    mount = _skill(folder, "bench.noop")
    job = _job(mount)
    await sandbox.start()  # compiles the modules, and fails if this host has no sandbox
    await sandbox.close()
    taken: dict[str, list[float]] = {"prepared": [], "on demand": [], "cold": []}
    usual = limits_of(Limits())
    warm = sandbox.look_around(Warmth(prepared=3, recycle_runs=10**6, recycle_seconds=10**6, usual=usual))
    await warm.pool.start()
    for _ in range(times):
        await _all_prepared(warm)
        taken["prepared"].append(await one(warm, job))
    idle = await _idle_ms()
    with_places = _memory()
    among = await _many(warm, folder, times) if many else {}
    await warm.close()
    demand = sandbox.look_around(Warmth(prepared=0, recycle_runs=10**6, recycle_seconds=10**6))
    await demand.pool.start()
    await asyncio.gather(*(one(demand, job) for _ in range(3)))
    await asyncio.sleep(0.5)
    megabytes = (with_places - _memory()) / 3
    for _ in range(times):
        taken["on demand"].append(await one(demand, job))
    started = time.perf_counter()
    await asyncio.gather(*(_several(demand, job, times) for _ in range(4)))
    per_second = 4 * times / (time.perf_counter() - started)
    await demand.close()
    for _ in range(times // 10):
        cold = sandbox.look_around(COLD)
        taken["cold"].append(await one(cold, job))
        await cold.close()
    return Figures(taken, per_second, megabytes, idle, among)


def _skill(folder: Path, name: str, ballast: int = 0) -> SkillMount:
    """Return a no-op skill with this number of additional bytes."""
    code = folder / "skills" / name / "code"
    code.mkdir(parents=True)
    (code / "main.py").write_text(MAIN)
    if ballast:
        (code.parent / "ballast").write_bytes(os.urandom(ballast))
    return SkillMount(name, code.parent, "code/main.py")


def _job(*mounts: SkillMount) -> Job:
    return Job("run_0", SkillCall(mounts[0].name, "main"), b"{}", skills=mounts)


async def _many(means: HostCapabilities, folder: Path, times: int) -> dict[str, list[float]]:
    """Measure a run that does nothing with more and more skills, mounted together or run in turn, and with a large
    skill.
    """
    mounts = [_skill(folder, f"bench.s{number}") for number in range(MANY[-1])]
    jobs = {f"{count} skills mounted": [_job(*mounts[:count])] for count in MANY}
    jobs |= {f"{count} skills run in turn": [_job(mount) for mount in mounts[:count]] for count in MANY}
    jobs["a skill of 10 MB"] = [_job(_skill(folder, "bench.big", 10**7))]
    found: dict[str, list[float]] = {}
    for what, some in jobs.items():
        taken = found[what] = []
        for job in itertools.islice(itertools.cycle(some), max(times, 2 * len(some))):
            await _all_prepared(means)
            taken.append(await one(means, job))
        del taken[: len(taken) // 2]  # the first half includes the first use of each skill
    return found


async def _all_prepared(means: HostCapabilities) -> None:
    """Wait until all prepared cells are ready."""
    while not means.pool.is_full:
        await asyncio.sleep(0.001)


async def one(means: HostCapabilities, job: Job) -> float:
    """Return the milliseconds until the result, without the cleanup."""
    run = CellRun(means, job, MemoryHost())
    started = time.perf_counter()
    await run.live()
    taken = (time.perf_counter() - started) * 1000
    outcome = await run.end()
    if outcome.raw != b'{"ok":true}':
        raise RuntimeError(str(outcome.failure))
    return taken


async def _several(means: HostCapabilities, job: Job, times: int) -> None:
    for _ in range(times):
        await one(means, job)


def _memory() -> float:
    """Return the memory of all processes of the sandbox in megabytes.

    Memory that they share counts once. Files that all processes of this machine share do not count.
    """
    rolled = [_rolled_up(pid) for pid in descendants(os.getpid())]
    return sum(int(line.split()[1]) for lines in rolled for line in lines if line.startswith("Pss_Anon:")) * 1024 / 1e6


def _rolled_up(pid: int) -> list[str]:
    """Return the lines of smaps_rollup of a process; [] if the process has ended."""
    try:
        return Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


async def _idle_ms() -> float:
    """Return the processor time of all processes of the engine in one second."""
    await asyncio.sleep(0.5)
    before = _ticks()
    await asyncio.sleep(2)
    return (_ticks() - before) * 1000 / os.sysconf("SC_CLK_TCK") / 2


def _ticks() -> int:
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in descendants(os.getpid())]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats)


def _publish(server: Server) -> None:
    manifest = {
        "name": "bench.noop",
        "version": "1.0.0",
        "description": "Does nothing.",
        "runtime": {"language": "python", "entrypoint": "code/main.py", "export": "main"},
    }
    server.rpc(
        "create_skill", manifest=manifest, skill_md="# Noop\n", files=[{"path": "code/main.py", "content": MAIN}]
    )


def _bubblewrap(binary: str) -> list[str]:
    prefix = [] if sys.base_prefix.startswith("/usr") else ["--ro-bind", sys.base_prefix, sys.base_prefix]
    links = [part for name in ("bin", "lib", "lib64") for part in ("--symlink", f"usr/{name}", f"/{name}")]
    places = ["--ro-bind", "/usr", "/usr", *links, *prefix, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    python = str(Path(sys.executable).resolve())
    return [binary, "--unshare-all", "--die-with-parent", *places, python, "-I", "-S", "-c", NO_OP]


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _figures(taken: list[float]) -> tuple[str, str]:
    return format_ms(median(taken)), format_ms(percentile(taken, 99))


def _ratio(taken: list[float], base: list[float]) -> str:
    return f"{median(taken) / median(base):.1f}"
