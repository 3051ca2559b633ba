"""Short and long forms of tests: `make test` runs the short forms, `make test-long` (SKILLERY_LONG=1) the long ones.

A short form fails when the thing breaks; the long form repeats it for more examples:

- `rounds` chooses how often a test repeats its proof.
- A test with the mark `matrix` runs all its examples on SQLite, and every fourth on Postgres.
- A test of a page with the parameters `dark` and `width` looks at the wide light page and at the narrow dark page.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

LONG = os.environ.get("SKILLERY_LONG") == "1"
EVERY = 4
WIDE = 1000


def rounds(short: int, *, long: int) -> int:
    """Return how often a test repeats its proof."""
    return long if LONG else short


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the examples of the long forms, unless the command line asks for nothing else."""
    if LONG:
        return
    seen: Counter[str] = Counter()
    left_out = [item for item in items if _is_of_a_matrix(item, seen) or _is_another_look(item)]
    if left_out and len(left_out) < len(items):
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _is_of_a_matrix(item: pytest.Item, seen: Counter[str]) -> bool:
    if item.get_closest_marker("matrix") is None or _parameters(item).get("database_kind") != "postgres":
        return False
    test = item.nodeid.partition("[")[0]
    seen[test] += 1
    return seen[test] % EVERY != 1


def _is_another_look(item: pytest.Item) -> bool:
    parameters = _parameters(item)
    if not {"dark", "width"} <= parameters.keys():
        return False
    return bool(parameters["dark"]) == (int(str(parameters["width"])) >= WIDE)


def _parameters(item: pytest.Item) -> dict[str, object]:
    called = getattr(item, "callspec", None)
    return {} if called is None else called.params
