"""The code of a run that executes the tests of a mounted skill. It is sent to the sandbox as `run_code`.

Before and after each test, the code reports the name and status of the test as progress, because a run that is killed
returns nothing.
"""

# ruff: noqa: N802 - unittest calls these names
from __future__ import annotations

import importlib
import importlib.util
import io
import signal
import sys
import time
import traceback
import unittest
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from runtime import progress

PATTERNS = ("test_*.py", "*_test.py")
MAX_TEXT = 4000
MAX_NAME = 400


def main(args: dict[str, Any]) -> list[list[Any]]:
    """Run the tests. Return a list [name, status, text, duration in milliseconds] for each test.

    `args`: `folder`, `module` and `entrypoint` of the skill, `framework` ("unittest" or "pytest"), `seconds` for each
    test, and `skip`, the names of tests that an earlier run has finished.
    """
    folder = skill_folder(args)
    results = Results(args["seconds"], args["skip"])
    sys.path.insert(0, str(folder / "tests"))
    run_all = with_pytest if args["framework"] == "pytest" else with_unittest
    run_all(folder / "tests", results)
    return results.ended


def skill_folder(args: dict[str, Any]) -> Path:
    """Return the folder of the skill, also in a sandbox that mounts skills elsewhere."""
    folder = Path(args["folder"])
    spec = None if folder.is_dir() else importlib.util.find_spec(args["module"])
    return Path(spec.origin.removesuffix(args["entrypoint"])) if spec and spec.origin else folder


class TestTimeout(BaseException):
    """Raised in a test that takes too long. Not an Exception, so that `except Exception` does not hide it."""


class Results:
    """The results of the tests that have ended."""

    def __init__(self, seconds: float, skip: Iterable[str]) -> None:
        self.seconds = seconds
        self.skip = frozenset(skip)
        self.ended: list[list[Any]] = []
        self._began = 0.0

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Context manager that raises TestTimeout in its body if the body takes longer than one test may."""

        def stop(_number: int, _frame: object) -> None:
            raise TestTimeout(f"the test did not end within {self.seconds:g} s")

        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def start(self, name: str) -> None:
        self._began = time.monotonic()
        progress(len(self.ended), text=f"started\t{name[:MAX_NAME]}")

    def add(self, name: str, status: str, text: str = "") -> None:
        duration_ms = round((time.monotonic() - self._began) * 1000, 3)
        # The end of a long text names the error.
        end_of_text = text if len(text) <= MAX_TEXT else "…" + text[-MAX_TEXT:]
        self.ended.append([name[:MAX_NAME], status, end_of_text, duration_ms])
        progress(len(self.ended), text=f"{status}\t{name[:MAX_NAME]}")


# -- unittest ----------------------------------------------------------------------------------------------------------


def with_unittest(tests: Path, results: Results) -> None:
    """Run the tests of each file with unittest. A file that cannot be imported is one failed test."""
    for path in sorted({path for pattern in PATTERNS for path in tests.rglob(pattern)}):
        name = path.relative_to(tests.parent).as_posix()
        if name in results.skip:
            continue
        results.start(name)
        try:
            with results.limited():
                suite = unittest.TestLoader().loadTestsFromModule(imported(path))
        except BaseException as error:  # noqa: BLE001 - an import may raise anything, SystemExit too
            results.add(name, "failed", explained(error, path))
            continue
        remaining = unittest.TestSuite(test for test in flat(suite) if test.id() not in results.skip)
        remaining.run(Collected(results))


def imported(path: Path) -> ModuleType:
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


def flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def explained(error: BaseException, path: Path) -> str:
    """Return the traceback of a failed import, from the test file on."""
    frames = traceback.extract_tb(error.__traceback__)
    first_frame = next((number for number, frame in enumerate(frames) if frame.filename == str(path)), len(frames))
    own_frames = [frame for frame in frames[first_frame:] if not frame.filename.startswith("<frozen importlib")]
    return "".join([*traceback.format_list(own_frames), *traceback.format_exception_only(error)])


class Collected(unittest.TestResult):
    """A result of unittest that reports each test at once, and limits the time of each test."""

    def __init__(self, results: Results) -> None:
        super().__init__(io.StringIO())
        self.buffer = True
        self.results = results
        self.status, self.text = "passed", ""

    def startTest(self, test: unittest.TestCase) -> None:
        self.results.start(test.id())
        self.status, self.text = "passed", ""
        super().startTest(test)
        limit(test, self.results)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.results.add(test.id(), self.status, self.text)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._fail(self.failures[-1][1])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._fail(self.errors[-1][1])
        if not isinstance(test, unittest.TestCase):  # setUpClass or setUpModule has failed: no test is started
            self.results.add(str(test), self.status, self.text)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._fail(f"{subtest}\n{''.join(traceback.format_exception(*err))}")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.status, self.text = "skipped", reason

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        super().addUnexpectedSuccess(test)
        self._fail("the test passed, and is marked with expectedFailure")

    def _fail(self, text: str) -> None:
        self.status = "failed"
        self.text += text


def limit(test: unittest.TestCase, results: Results) -> None:
    """Limit the time of the test method that `test` runs."""
    name = test._testMethodName
    method = getattr(test, name)

    def limited() -> Any:
        with results.limited():
            return method()

    async def limited_async() -> Any:
        with results.limited():
            return await method()

    setattr(test, name, limited_async if isinstance(test, unittest.IsolatedAsyncioTestCase) else limited)


# -- pytest ------------------------------------------------------------------------------------------------------------


def with_pytest(tests: Path, results: Results) -> None:
    import pytest

    options = ("-q", "--rootdir", str(tests.parent), "-p", "no:cacheprovider", "--tb=short", "-o", "addopts=")
    code = pytest.main([str(tests), *options], plugins=[plugin(tests, results)])
    if code not in {0, 1, 2, 5}:
        raise RuntimeError(f"pytest ended with exit code {int(code)}; its output is in the log")


def plugin(tests: Path, results: Results) -> object:
    """Return a plugin of pytest that collects the results and limits the time of each test."""
    import pytest

    class Plugin:
        status, text = "passed", ""

        @pytest.hookimpl(hookwrapper=True)
        def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
            results.start(collector.nodeid or "tests")
            with results.limited():
                yield

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                results.add(report.nodeid or "tests", "failed", report.longreprtext)

        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            items[:] = [item for item in items if item.nodeid not in results.skip]

        def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
            return collection_path.relative_to(tests.parent).as_posix() in results.skip or None

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            results.start(nodeid)
            self.status, self.text = "passed", ""

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_call(self) -> Iterator[None]:
            with results.limited():
                yield

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                self.status = "failed"
                self.text += report.longreprtext + "".join(f"\n{title}\n{text}" for title, text in report.sections)
            elif report.skipped and self.status == "passed":
                self.status, self.text = "skipped", str(report.longrepr)

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            results.add(nodeid, self.status, self.text)

    return Plugin()
