"""A no-op run, beside a bare Python and, where it is installed, bubblewrap + Python doing the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bench.load import call, send
from bench.report import Report, median, milliseconds, percentile, shown
from tests.conftest import Server

NO_OP = "import json; print(json.dumps({'ok': True}))"
MAIN = "def main(args):\n    return {'ok': True}\n"


def measure(report: Report, folder: Path, small: bool) -> None:
    times = 50 if small else 200
    report.heading("A no-op run")
    report.text("`execute_skill` over HTTP, recorded in SQLite, each run in a fresh `linux` sandbox.")
    python = milliseconds(lambda: _run([sys.executable, "-I", "-S", "-c", NO_OP]), times)
    rows: list[list[object]] = [["`python -I -S`, no isolation", *_figures(python), "1.0"]]
    bubblewrap = shutil.which("bwrap")
    if bubblewrap:
        taken = milliseconds(lambda: _run(_bubblewrap(bubblewrap)), times)
        rows.append(["bubblewrap + `python -I -S`", *_figures(taken), _ratio(taken, python)])
    server = Server(folder / "home")
    try:
        _publish(server)
        alone = send(server.url, lambda _: call("execute_skill", name="bench.noop"), times, 1)
        loaded = send(server.url, lambda _: call("execute_skill", name="bench.noop"), times * 2, 4)
    finally:
        server.stop()
    rows.append(["execute_skill, one caller", *_figures(alone.latencies), _ratio(alone.latencies, python)])
    rows.append(["execute_skill, four callers", *_figures(loaded.latencies), _ratio(loaded.latencies, python)])
    report.table(["what", "p50 ms", "p99 ms", "p50 ratio to bare Python"], rows)
    report.text(f"Four callers together: {loaded.per_second:.0f} runs a second; one: {alone.per_second:.0f}.")


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
    return shown(median(taken)), shown(percentile(taken, 99))


def _ratio(taken: list[float], base: list[float]) -> str:
    return f"{median(taken) / median(base):.1f}"
