"""Find the cases that the core form needs on Postgres, by the SQL statements that they execute there.

`make test-all` makes the shared Postgres log its statements, with a mark before each test. A case on Postgres whose
statements other cases execute too is in tests/postgres_covered.txt, and not in the core form. `make durations` writes
this file. `make test-all` fails if a case in it executes a statement that no case of the core form executes.

Equal statements do not prove equal behaviour for races, locks, restarts and killed servers: such tests have the mark
`postgres`, and are never in the file.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.support.durations import REPORT
from tests.support.forms import COVERED, FORM, covered_on_postgres, on_postgres, slow_cases
from tests.support.parallel import postgres_url

MARK = re.compile(r"\|LOG:  statement: SELECT 'test (\d+) (\w+) (.*)'$")
LINE = re.compile(r"test_(\d+)_\d+\|LOG:  (?:statement|execute [^:]*): (.*)")
# What differs between equal statements: texts, numbers, parameters, names of savepoints and cursors, length of lists.
LITERALS = re.compile(r"'(?:[^']|'')*'|\$\d+|\b\d+\b|(?<=savepoint_)\d+|\"c_[0-9a-f_]+\"")
LISTS = re.compile(r"\((?:\?[, ]*)+\)(?:, \((?:\?[, ]*)+\))*")

Statements = dict[str, frozenset[str]]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    is_worker = hasattr(config, "workerinput")
    if not config.stash[FORM].everything:
        return
    if not is_worker and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.pluginmanager.register(Coverage(config), "postgres-statements")
    if is_worker or (
        config.pluginmanager.has_plugin("postgres-statements") and not config.getoption("numprocesses", 0)
    ):
        config.pluginmanager.register(Marks(postgres_url(config)), "marks-of-tests")


class Marks:
    """Writes a mark into the log of Postgres before each test. The names of databases say which worker uses them."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        kind = next((mark for mark in ("full", "postgres") if item.get_closest_marker(mark)), "other")
        if kind == "other" and (on_postgres(item) or item.nodeid in slow_cases()):
            kind = "chosen" if on_postgres(item) else "full"
        self.connection.execute(sql.SQL("SELECT {}").format(f"test {os.getpid()} {kind} {item.nodeid}"))
        return (yield)


class Coverage:
    """Compares the statements of all cases with the stored list, or writes the list."""

    def __init__(self, config: pytest.Config) -> None:
        self.url = postgres_url(config)
        self.writes = config.getoption("--processor-time") is not None
        self.tests: dict[str, dict[str, Any]] = config.pluginmanager.get_plugin(REPORT).used  # type: ignore[union-attr]
        self.failed: set[str] = set()
        self.misses: list[str] = []
        with psycopg.connect(self.url, autocommit=True) as connection:
            for name, value in (("log_statement", "all"), ("log_line_prefix", "%d|")):
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        (folder,) = parse_qs(urlsplit(self.url).query)["host"]
        with Path(folder, "log").open(errors="replace") as lines:
            statements = {test: own for test, own in statements_of(lines).items() if test not in self.failed}
        if self.writes:
            seconds = {test: used["processor"] for test, used in self.tests.items()}
            COVERED.write_text("".join(f"{test}\n" for test in sorted(covered(statements, seconds))))
            return
        self.misses = uncovered(statements, covered_on_postgres())
        if self.misses and exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self.misses:
            terminalreporter.write_line(f"tests/postgres_covered.txt: {line}", red=True)


def statements_of(lines: Iterable[str]) -> Statements:
    """Return the statements of each case that the list may leave out, without those that the core form always executes.

    Cases with the mark `full` are not in the core form, so their statements do not count. Nor do statements of the
    server itself, between requests: those that are also executed while a test without Postgres runs.
    """
    by_kind: dict[str, dict[str, set[str]]] = {"chosen": {}, "postgres": {}, "full": {}, "other": {}}
    running: dict[str, set[str]] = {}
    for entry in entries(lines):
        if statement := LINE.match(entry):
            if statement[1] in running:
                running[statement[1]].add(without_values(statement[2]))
        elif mark := MARK.search(entry):
            worker, kind, test = mark.groups()
            running[worker] = by_kind[kind].setdefault(test.replace("''", "'"), set())
    always = set().union(*by_kind["other"].values(), *by_kind["postgres"].values())
    return {test: frozenset(statements - always) for test, statements in by_kind["chosen"].items()}


def entries(lines: Iterable[str]) -> Iterator[str]:
    """Yield the entries of a log, each on one line. In the log, further lines of an entry begin with a tab."""
    entry = ""
    for line in lines:
        if line.startswith("\t"):
            entry += " " + line.strip()
        else:
            yield entry
            entry = line.rstrip()
    yield entry


@functools.lru_cache(100_000)
def without_values(statement: str) -> str:
    return LISTS.sub("(?)", LITERALS.sub("?", statement))


def covered(statements: Statements, seconds: Mapping[str, float]) -> set[str]:
    """Return the cases whose statements the others execute too. The others are chosen by new statements per second."""
    missing = set().union(*statements.values())
    waiting = dict(statements)
    while missing:
        best = max(waiting, key=lambda test: len(waiting[test] & missing) / (seconds.get(test, 0.1) + 0.01))
        missing -= waiting.pop(best)
    return set(waiting)


def uncovered(statements: Statements, left_out: frozenset[str]) -> list[str]:
    """Return a line for each left-out case with a statement of its own."""
    core = set().union(*(own for test, own in statements.items() if test not in left_out))
    lines = []
    for test in sorted(left_out & statements.keys()):
        if missing := sorted(statements[test] - core):
            lines.append(f"{test} is in it, but no case of the core form executes {missing[0][:200]}")
    return lines
