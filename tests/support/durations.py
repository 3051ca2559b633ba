"""Report the processor time of each test: `pytest --processor-time FILE`, used by `make durations`.

Processor time is that of the test process and of all processes below it: servers, sandboxes, commands, browsers. Unlike
the time on the clock, it hardly depends on what else the machine does. The shared Postgres of a parallel run is below
the process that starts the workers, so its time is part of the total, and of no test.

The file gets one JSON object per line for each phase of a test:
{"test", "phase": "setup" | "call" | "teardown", "processor": seconds, "clock": seconds}.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
MOST_LINES = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor-time", metavar="FILE", help="write the processor time of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--processor-time"):
        config.pluginmanager.register(Durations(config), "processor-time")


class Durations:
    """Measures each phase of each test. In the process that starts the workers, it prints the summary."""

    def __init__(self, config: pytest.Config) -> None:
        self.file = Path(config.getoption("--processor-time")).absolute()
        self.is_worker = hasattr(config, "workerinput")
        if not self.is_worker:
            self.file.unlink(missing_ok=True)
        self.processor, self.clock = 0.0, 0.0

    @pytest.hookimpl(wrapper=True, trylast=True)  # after the wait for the turn, which tests.support.parallel makes
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self.processor, self.clock = processor_seconds(), time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        with self.measured(item, "setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with self.measured(item, "call"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        with self.measured(item, "teardown"):
            return (yield)

    @contextmanager
    def measured(self, item: pytest.Item, phase: str) -> Iterator[None]:
        try:
            yield
        finally:
            processor, clock = processor_seconds(), time.monotonic()
            used = {"processor": processor - self.processor, "clock": clock - self.clock}
            self.processor, self.clock = processor, clock
            rounded = {name: round(seconds, 3) for name, seconds in used.items()}
            line = json.dumps({"test": item.nodeid, "phase": phase, **rounded})
            with self.file.open("a") as lines:  # one short write: workers share the file
                lines.write(line + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("processor time")
        for line in summary(self.file):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"{processor_seconds():8.1f} s of processor time in all, with this process")


def summary(file: Path) -> list[str]:
    """Return a table of subjects, then the most expensive files, from the file that the tests wrote."""
    subjects: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for line in file.read_text().splitlines():
        phase = json.loads(line)
        path = phase["test"].partition("::")[0]
        for sums in (subjects[str(Path(path).parent)], files[path]):
            sums[0] += phase["processor"]
            sums[1] += phase["clock"]
            sums[2] += phase["phase"] == "call"
    head = "processor    clock  tests"
    return [head, *_rows(subjects), "", head, *_rows(files)[:MOST_LINES]]


def _rows(sums: dict[str, list[float]]) -> list[str]:
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return [f"{used:8.1f} {clock:8.1f} {int(tests):6d}  {name}" for name, (used, clock, tests) in ordered]


def processor_seconds() -> float:
    """Return the processor time of this process, of all processes below it, and of those that have ended."""
    parents, ticks = {}, {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - fast, because each test calls it four times
        if name.isdigit():
            with suppress(OSError):  # the process has ended
                fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
                parents[int(name)] = int(fields[1])
                ticks[int(name)] = sum(map(int, fields[11:15]))
    return sum(ticks[pid] for pid in ticks if _is_below(pid, os.getpid(), parents)) / TICKS


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _is_below(pid: int, top: int, parents: dict[int, int]) -> bool:
    while pid and pid != top:
        pid = parents.get(pid, 0)
    return pid == top
