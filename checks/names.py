"""Names that say nothing: local names such as `one` and `found`, and names of tests that are riddles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

FORBIDDEN = frozenset({
    "one", "found", "asked", "given", "told", "said", "means", "way", "way_out", "beside", "aside", "apart", "moment",
    "who", "whose", "what", "which",
})  # fmt: skip
MOST_WORDS = 12
"""Words of the name of a test, without `test`."""


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each binding with a forbidden name: arguments, assignments, functions, loops.

    Underscores around a name do not matter.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name, line = node.id, node.lineno
        elif isinstance(node, ast.arg):
            name, line = node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name, line = node.name, node.lineno
        else:
            continue
        if name.strip("_") in FORBIDDEN:
            yield line, name


def riddles(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each test whose name has a forbidden word or too many words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words = re.split(r"_+", node.name.removeprefix("test_"))
            if len(words) > MOST_WORDS or FORBIDDEN.intersection(words):
                yield node.lineno, node.name
