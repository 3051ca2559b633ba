"""Short and long forms of tests: `make test` runs the short forms, `make test-long` (SKILLERY_LONG=1) the long ones.

A short form fails when the thing breaks; the long form repeats it for more examples. `rounds` chooses a number, and
`@pytest.mark.matrix` leaves examples out on Postgres: on SQLite, the whole matrix runs in both forms.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

LONG = os.environ.get("SKILLERY_LONG") == "1"
EVERY = 4


def rounds(short: int, *, long: int) -> int:
    """Return how often a test repeats its proof."""
    return long if LONG else short


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out three of four examples on Postgres of each test with the mark `matrix`."""
    if LONG:
        return
    seen: Counter[str] = Counter()
    left_out = []
    for item in items:
        if item.get_closest_marker("matrix") is not None and "[postgres" in item.name:
            name = item.nodeid.partition("[")[0]
            if seen[name] % EVERY:
                left_out.append(item)
            seen[name] += 1
    if left_out and len(items) > len(left_out):
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
