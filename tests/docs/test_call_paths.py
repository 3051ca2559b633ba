"""The call paths that the architecture page draws: every file and function exists, and no path returns to a module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/design/architecture.md").read_text("utf-8")
PATHS = [
    [line.split()[:2] for line in block.splitlines()] for block in re.findall(r"```path\n(.*?)```", PAGE, re.DOTALL)
]


def names_in(file: str) -> set[str]:
    """Functions, and methods as `Class.method`."""
    body = ast.parse((ROOT / "src/skillery" / file).read_text("utf-8")).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    classes = [one for one in body if isinstance(one, ast.ClassDef)]
    methods = {f"{one.name}.{each.name}" for one in classes for each in one.body if isinstance(each, functions)}
    return {one.name for one in body if isinstance(one, functions)} | methods


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[-1][1])
def test_a_call_path_names_functions_that_exist_and_no_module_twice(path: list[list[str]]) -> None:
    missing = [(file, name) for file, name in path if name not in names_in(file)]
    files = [file for file, _ in path]

    assert not missing
    assert len(files) == len(set(files))


def test_the_path_of_a_run_is_drawn() -> None:
    assert any(["runs/runner.py", "Runner.execute_skill"] in path for path in PATHS)
