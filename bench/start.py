"""Time from `skillery serve` to the first answered request."""

from __future__ import annotations

import time
from pathlib import Path

from bench.report import Report, format_ms, median
from tests.conftest import Server

ROUNDS = 7


def measure(report: Report, folder: Path, small: bool) -> None:
    report.heading("Start")
    first = _start(folder / "home")
    again = [_start(folder / "home") for _ in range(ROUNDS)]
    report.table(
        ["what", "seconds"],
        [
            ["a new home: tables made, bundled skills published", format_ms(first)],
            [f"an existing home, median of {ROUNDS}", format_ms(median(again))],
        ],
    )


def _start(home: Path) -> float:
    started = time.perf_counter()
    server = Server(home)
    server.rpc("list_skills")
    taken = time.perf_counter() - started
    server.stop()
    return taken
