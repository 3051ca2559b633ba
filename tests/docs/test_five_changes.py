"""The recipes of docs/design/changes.md: their steps fit the files, and the recipe of a method works in a copy."""

from __future__ import annotations

import pytest

from checks.five_changes import LIMITS, copied, steps_of
from tests.support.mutants import CHECKOUT


@pytest.mark.parametrize("change", LIMITS)
def test_the_steps_of_a_recipe_fit_the_files(change: str) -> None:
    steps = steps_of(change)

    assert all((CHECKOUT / step.path).exists() is (step.verb != "Create") for step in steps)
    assert all(step.anchor is None or step.anchor in (CHECKOUT / step.path).read_text("utf-8") for step in steps)
    assert len({step.path for step in steps}) == LIMITS[change].by_hand
    assert [test for step in steps for test in step.tests] != []


@pytest.mark.full
def test_the_recipe_of_a_method_works_within_its_limit() -> None:
    with copied() as copy:
        count = copy.measure("a method")

    assert count.excess(LIMITS["a method"]) == []
    assert count.generated == ["src/skillery/client/generated.py"]
