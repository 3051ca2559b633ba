"""Report of figures as Markdown."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

BEGIN = "<!-- measured: everything below is written by `make bench` -->"


class Report:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"## {text}")

    def text(self, text: str) -> None:
        self._parts.append(text)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
        self._parts.append("\n".join(lines))

    def markdown(self) -> str:
        return "\n\n".join(self._parts) + "\n"

    def write(self, path: Path) -> None:
        """Replace the earlier figures in a file. The text above them stays."""
        before = path.read_text().partition(BEGIN)[0] if path.exists() else "# Benchmarks\n\n"
        path.write_text(f"{before}{BEGIN}\n\n{self.markdown()}")


def milliseconds(work: Callable[[], object], times: int) -> list[float]:
    """Return the duration of each of `times` calls, after three calls for warming up."""
    for _ in range(3):
        work()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append((time.perf_counter() - started) * 1000)
    return taken


async def milliseconds_of(work: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """Like `milliseconds`, for coroutines."""
    for _ in range(3):
        await work()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - started) * 1000)
    return taken


def median(taken: Sequence[float]) -> float:
    return statistics.median(taken)


def percentile(taken: Sequence[float], percent: float) -> float:
    ordered = sorted(taken)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def format_ms(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"
