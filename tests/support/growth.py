"""Texts that make superlinear code slow, and a check that code costs at most linear processor time in their length."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from tests.support.processes import own_seconds

MOST_SECONDS = 0.4
"""Limit of the processor time for one text, in the process of the server. A busy machine doubles that of slow texts,
which is 0.13 s.
"""
COARSE_SECONDS = 0.05
"""Below this, a ratio of times is noise."""
SIZE = 65_536
MOST_RATIO = 3.0
"""The most that twice the text may cost, as a multiple. Linear code costs 2, quadratic code 4."""
TRIES = 3
SHAPES: dict[str, Callable[[int], str]] = {
    "letters": lambda size: "a" * size,
    "blanks": lambda size: " " * size + "!",
    "quotes": lambda size: '1,"a",2\n' + '"' * size + "x",
    "digits": lambda size: "1" * size,
    "brackets": lambda size: "[" * size,
    "underscores": lambda size: "_" * size + "-",
    "tokens": lambda size: "a.b-" * (size // 4),
    "lines": lambda size: "\n" * size + "x",
    "imports": lambda size: f"# from skills import{' ' * size}!",
}


def spent(pid: int, act: Callable[[], object]) -> float:
    """Return the least processor time of a process for the action. Other work of the process may coincide with one."""
    return _least(lambda: own_seconds(pid), act)


def spent_here(act: Callable[[], object]) -> float:
    """Return the least processor time of this thread for the action.

    The garbage collector is off, as in `timeit`. The error of a time limit is lost if it strikes in a callback of it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _least(time.thread_time, act)
    finally:
        if was_enabled:
            gc.enable()


def _least(clock: Callable[[], float], act: Callable[[], object]) -> float:
    least = float("inf")
    for _ in range(TRIES):
        before = clock()
        act()
        least = min(least, clock() - before)
        if least <= COARSE_SECONDS:
            break
    return least


def check_growth(cost: Callable[[str], float]) -> None:
    """Fail if a shape costs more than MOST_SECONDS, or clearly more than twice as much for twice the text and again for
    four times the text. Linear code can have one step, for example where a text no longer fits into a cache.

    `cost` returns the processor seconds for one text.
    """
    for shape, text in SHAPES.items():
        most = cost(text(SIZE))
        assert most <= MOST_SECONDS, f"{shape}: {most:.3f} s"
        if most > COARSE_SECONDS:
            half = cost(text(SIZE // 2))
            if most > MOST_RATIO * half:
                double = cost(text(2 * SIZE))
                assert double <= MOST_RATIO * most, (
                    f"{shape}: {half:.3f} s, {most:.3f} s for twice the text, {double:.3f} s for four times the text"
                )
