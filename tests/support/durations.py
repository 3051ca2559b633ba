"""Measure the processor time of each test, and print the tests and files over their budget.

Processor time is that of the test process, of all processes below it (servers, sandboxes, commands, browsers), and of
programs elsewhere that a test names with `count_program`. Unlike the time on the clock, it hardly depends on what else
the machine does. Shared work belongs to no test: fixtures of a wider scope than the test, and `shared_work`. The shared
Postgres and the forking process are below the process that starts the workers: they are part of the total only.

`pytest --processor-time FILE` (`make durations`) also prints the time of all subjects, and writes FILE, one JSON object
per line for each test: {"test": node id, "processor": seconds, "clock": seconds, "core": bool, "smoke": bool,
"timed": bool}. tests/slow_cases.txt gets the timed cases over SLOW_SECONDS, and the core form leaves them out.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.forms import FORM, SLOW, SUBJECT_SECONDS, is_core, is_timed, slow_cases, subject_of
from tests.support.prefork import prefork

CASE_SECONDS = 0.8
FILE_SECONDS = 6.0
"""Budgets of processor time in the core form. Smoke cases have a common one."""
SLOW_SECONDS, STAYS_SLOW_SECONDS = 0.3, 0.2
"""`make durations` adds a timed case to the slow ones from the first time on, and keeps it there from the second."""
SMOKE_CASES = 80
SMOKE_SECONDS = 120
CORE_SECONDS = 900
TOLERANCE = 3
"""`make test-all` fails from three times the budget of a case or file: a busy machine takes up to twice the time."""
MOST_LINES = 10
USED = "used"
REPORT = "processor-time-report"
"""Name of the plugin that collects the figures of all tests, in `used`."""
TICKS = os.sysconf("SC_CLK_TCK")
_programs: set[int] = set()
_ended = [0.0]
_shared = [0.0, 0]
"""Seconds of shared work during this test, and how deep the running shared work is nested."""


def count_program(pid: int) -> None:
    """Count a program that is not below this process, with all processes below it."""
    _programs.add(pid)


def count_seconds(seconds: float) -> None:
    """Count the processor time of a program that has ended, and that was not below this process."""
    _ended[0] += seconds


@contextmanager
def shared_work() -> Iterator[None]:
    """Keep the block out of the time of the running test, because later tests use its result too."""
    begun = 0.0 if _shared[1] else processor_seconds()
    _shared[1] += 1
    try:
        yield
    finally:
        _shared[1] -= 1
        if not _shared[1]:
            _shared[0] += processor_seconds() - begun


def processor_seconds() -> float:
    """Return the processor time of this process, of those below it, of counted programs, and of those that ended."""
    ticks, waiting, seen = 0, [os.getpid(), *_programs], set()
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        try:
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            ticks += sum(map(int, fields[11:15]))
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - each test calls this several times
                waiting += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
        except OSError:  # the process has ended
            _programs.discard(pid)
    return ticks / TICKS + _ended[0]


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor-time", metavar="FILE", help="write the processor time of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(), "processor-time-recorder")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(config), REPORT)


class Recorder:
    """Measures each test in the process that runs it. The report of the test's teardown carries the figures."""

    processor = clock = 0.0

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        _shared[0] = 0.0
        self.processor, self.clock = processor_seconds(), time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        with shared_work():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        # The last teardown of a module, class or worker also ends what tests shared.
        used = self.used(item) if nextitem is None or nextitem.parent is not item.parent else None
        try:
            return (yield)
        finally:
            item.user_properties.append((USED, used or self.used(item)))

    def used(self, item: pytest.Item) -> dict[str, Any]:
        if prefork.cache_info().currsize:
            prefork().count()
        processor, clock = processor_seconds() - self.processor - _shared[0], time.monotonic() - self.clock
        is_smoke = item.get_closest_marker("smoke") is not None
        rounded = {"processor": round(max(processor, 0), 3), "clock": round(clock, 3)}
        return {**rounded, "core": is_core(item), "smoke": is_smoke, "timed": is_timed(item)}


class Report:
    """Prints the tests and files over their budget, and on request the time of all subjects."""

    def __init__(self, config: pytest.Config) -> None:
        named = config.getoption("--processor-time")
        self.file = Path(named).absolute() if named else None
        self.is_strict = config.stash[FORM].everything and config.args_source is not pytest.Config.ArgsSource.ARGS
        self.used: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        used = dict(report.user_properties).get(USED)
        if report.when == "teardown" and isinstance(used, dict):
            self.used[report.nodeid] = used

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.is_strict and exitstatus == 0 and over_budget(self.used, TOLERANCE):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.file is not None:
            lines = (json.dumps({"test": test, **used}) for test, used in self.used.items())
            self.file.write_text("".join(f"{line}\n" for line in lines))
            terminalreporter.section("processor time")
            for line in summary(self.used):
                terminalreporter.write_line(line)
            if self.is_strict:
                SUBJECT_SECONDS.write_text(json.dumps(subject_seconds(self.used), indent=1) + "\n")
                SLOW.write_text("".join(f"{test}\n" for test in sorted(slow(self.used, slow_cases()))))
        over = over_budget(self.used, TOLERANCE if self.is_strict else 1)
        for line in over[:MOST_LINES]:
            terminalreporter.write_line(f"over budget: {line}", red=self.is_strict)
        if len(over) > MOST_LINES:
            terminalreporter.write_line(f"over budget: {len(over) - MOST_LINES} more; `make durations` lists all tests")
        core = sum(used["processor"] for used in self.used.values() if used["core"])
        terminalreporter.write_line(
            f"processor time: {processor_seconds():.0f} s in all, of these {core:.0f} s in cases of the core form"
        )


def over_budget(tests: dict[str, dict[str, Any]], tolerance: float) -> list[str]:
    """Return a line with a remedy for each excess in the core form, the largest excess first."""
    core = {test: used["processor"] for test, used in tests.items() if used["core"]}
    smoke = {test: seconds for test, seconds in core.items() if tests[test]["smoke"]}
    files: dict[str, float] = defaultdict(float)
    lines: list[tuple[float, str]] = []
    for test, seconds in core.items():
        if test in smoke:
            continue
        files[test.partition("::")[0]] += seconds
        if seconds > CASE_SECONDS * tolerance:
            remedy = "share a server, fork the command, or mark it full"
            lines.append((seconds / CASE_SECONDS, f"{test} {seconds:.1f} s ({CASE_SECONDS}): {remedy}"))
    for file, seconds in files.items():
        if seconds > FILE_SECONDS * tolerance:
            remedy = "use fewer or cheaper cases, or mark some full"
            lines.append((seconds / FILE_SECONDS, f"{file} {seconds:.1f} s ({FILE_SECONDS:.0f}): {remedy}"))
    sums = (
        ("cases with the mark smoke", len(smoke), SMOKE_CASES),
        ("s in smoke cases", sum(smoke.values()), SMOKE_SECONDS),
        ("s in the core form", sum(core.values()), CORE_SECONDS),
    )
    lines += [(count / most, f"{count:.0f} {what} (at most {most})") for what, count, most in sums if count > most]
    return [line for _, line in sorted(lines, reverse=True)]


def slow(tests: dict[str, dict[str, Any]], known: Collection[str]) -> list[str]:
    """Return the cases that are too slow for the core form. `known` are those of the last time."""
    most = {test: STAYS_SLOW_SECONDS if test in known else SLOW_SECONDS for test in tests}
    return [test for test, used in tests.items() if used["timed"] and used["processor"] > most[test]]


def subject_seconds(tests: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
    """Return the processor seconds of each subject: [core form, full form]."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for test, used in tests.items():
        sums[subject_of(test)][0] += used["processor"] if used["core"] else 0
        sums[subject_of(test)][1] += used["processor"]
    return {subject: [round(core), round(full)] for subject, (core, full) in sorted(sums.items())}


def summary(tests: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table of subjects, then the most expensive files, then the most expensive tests."""
    head = "   core     full   cases"
    lines: list[str] = []
    for key in (subject_of, lambda test: test.partition("::")[0], str):
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for test, used in tests.items():
            for place, seconds in enumerate((used["processor"] if used["core"] else 0, used["processor"], 1)):
                sums[key(test)][place] += seconds
        ordered = sorted(sums.items(), key=lambda item: -item[1][1])[:60]
        lines += [
            head,
            *(f"{core:7.1f}  {full:7.1f}  {cases:6.0f}  {name}" for name, (core, full, cases) in ordered),
            "",
        ]
    return lines
