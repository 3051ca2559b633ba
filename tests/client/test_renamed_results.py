"""Names of result types in earlier releases still work, and warn."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from skillery.client import results


@pytest.mark.parametrize(("old", "now"), results.RENAMED.items())
def test_an_old_result_type_name_warns_and_returns_the_new_type(old: str, now: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"results\.{old} is now called {now}$"):
        found = getattr(results, old)

    assert found is getattr(results, now)


def test_type_checkers_know_the_same_old_names() -> None:
    tree = ast.parse(Path(results.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    known = {node.targets[0].id: ast.unparse(node.value) for node in block.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]

    assert known == {old: f"results.{now}" for old, now in results.RENAMED.items()}


def test_step_is_an_approval_or_an_objection() -> None:
    with pytest.warns(DeprecationWarning, match=r"Approval \| Objection$"):
        assert results.Step == results.Approval | results.Objection


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="Nobody"):
        _ = results.Nobody
