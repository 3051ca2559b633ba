"""The tests wait for events: they have no short time limits and no unexplained pauses."""

from __future__ import annotations

import ast
import asyncio
import math
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.processes import eventually, eventually_async

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "tests", ROOT / "src/skillery/testing", *ROOT.glob("plugins/*/tests"), *ROOT.glob("packages/*/tests")]
FILES = [path for folder in FOLDERS for path in folder.rglob("*.py")]
LEAST_LIMIT = 120
MOST_PAUSE = 0.1
CLOCKS = {"monotonic", "perf_counter"}


def problems(text: str) -> list[str]:
    """Return the short limits and the unexplained pauses of a test file, with their lines."""
    tree, lines = ast.parse(text), text.splitlines()
    constants = dict(_constants(tree))

    def number(node: ast.expr) -> float:
        value = constants.get(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        return value if isinstance(value, int | float) else math.nan  # compares as false

    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.Compare):
            found += [
                f"{node.lineno}: a limit of {number(limit):g} s: use `eventually` of tests/support/processes.py"
                for limit in _limits(node)
                if number(limit) < LEAST_LIMIT
            ]
        if isinstance(node, ast.Call) and _is_call(node, {"sleep"}) and number(node.args[0]) > MOST_PAUSE:
            has_comment = any("#" in line for line in lines[max(0, node.lineno - 2) : node.lineno])
            found += [] if has_comment else [f"{node.lineno}: a pause: wait for the event, or say why there is none"]
    return found


def _constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            yield from ((target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name))


def _limits(node: ast.BinOp | ast.Compare) -> list[ast.expr]:
    """Return the limit in `clock() + limit`, which is a deadline, or in `clock() - begin < limit`."""
    if isinstance(node, ast.BinOp):
        return [node.right] if isinstance(node.op, ast.Add) and _is_call(node.left, CLOCKS) else []
    elapsed = node.left
    is_time = isinstance(elapsed, ast.BinOp) and isinstance(elapsed.op, ast.Sub) and _is_call(elapsed.left, CLOCKS)
    return node.comparators if is_time and isinstance(node.ops[0], ast.Lt | ast.LtE) else []


def _is_call(node: ast.expr, names: set[str]) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", None)) in names


@pytest.mark.smoke
def test_tests_have_no_short_limits_and_no_unexplained_pauses() -> None:
    found = {str(path.relative_to(ROOT)): problems(path.read_text("utf-8")) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "assert time.monotonic() - began < 5",
        "assert monotonic() - began <= LIMIT",
        "deadline = time.monotonic() + 30",
        "deadline = time.perf_counter() + LIMIT",
        "time.sleep(1)",
        "async def f():\n    await asyncio.sleep(0.2)",
    ],
)
def test_a_short_limit_or_a_pause_is_reported(text: str) -> None:
    assert len(problems(f"LIMIT = 20.0\n{text}")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "assert time.monotonic() - began > 5",
        "assert time.monotonic() - began < 300",
        "deadline = time.monotonic() + seconds",
        "time.sleep(0.02)",
        "time.sleep(2)  # no event: the file system counts whole seconds",
        "# No event: the file system counts whole seconds.\ntime.sleep(2)",
    ],
)
def test_other_uses_of_a_clock_are_allowed(text: str) -> None:
    assert problems(text) == []


# -- eventually --------------------------------------------------------------------------------------------------------


def true_at_the_third_look() -> Callable[[], str | None]:
    answers = iter([None, None, "yes"])
    return lambda: next(answers)


def test_eventually_returns_the_first_true_value() -> None:
    assert eventually(true_at_the_third_look()) == "yes"


async def test_eventually_lets_the_event_loop_work() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await eventually_async(event.is_set)

    async def answer() -> str | None:
        return look()

    look = true_at_the_third_look()
    assert await eventually_async(answer) == "yes"


def test_eventually_fails_when_the_process_has_ended() -> None:
    with subprocess.Popen(["true"]) as process, pytest.raises(AssertionError, match="the process has ended: why"):
        eventually(lambda: False, of=process, problem=lambda: "why")


def test_eventually_looks_once_more_when_the_process_has_ended(tmp_path: Path) -> None:
    with subprocess.Popen(["touch", str(tmp_path / "made")]) as process:
        process.wait()
        assert eventually((tmp_path / "made").exists, of=process)


def test_eventually_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(AssertionError, match=r"0\.1 s have passed"):
        eventually(lambda: False)
