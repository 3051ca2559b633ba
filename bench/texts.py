"""A sample of the texts that users read: help, errors and hints, drawn from the source with a seed.

`python -m bench.texts --seed 37` prints 80 texts with their places. A reader marks those that need a second reading.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("src/skillery", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("plugins/*/src")))
KEYWORDS = frozenset({"help", "short_help", "hint", "epilog", "message"})
MESSAGES = frozenset({"UsageError", "BadParameter", "CheckFailed", "Finding", "Failure", "Problem"})
MEANINGFUL = 4
"""Shorter texts, in words, are names."""


class Text(NamedTuple):
    """A text with its place. An expression in an f-string is shown as `{expression}`."""

    path: str
    line: int
    text: str


def texts(folders: tuple[str, ...] = FOLDERS) -> list[Text]:
    """Return the texts of all modules in the folders, sorted by place, each text once."""
    errors = MESSAGES | frozenset(
        name for path in (ROOT / "src/skillery/errors").glob("*.py") for name in _classes(path)
    )
    found: dict[str, Text] = {}
    for folder in folders:
        for module in sorted((ROOT / folder).rglob("*.py")):
            path = str(module.relative_to(ROOT))
            for line, text in _texts(ast.parse(module.read_text("utf-8")), errors, is_command="/cli/" in path):
                words = " ".join(text.split())
                if len(words.split()) >= MEANINGFUL:
                    found.setdefault(words, Text(path, line, words))
    return sorted(found.values())


def _classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name


def _texts(tree: ast.Module, errors: frozenset[str], *, is_command: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and is_command and node.decorator_list:
            yield node.lineno, ast.get_docstring(node) or ""
        if not isinstance(node, ast.Call):
            continue
        shown = [keyword.value for keyword in node.keywords if keyword.arg in KEYWORDS]
        if _name(node.func) in errors:
            shown += node.args
        for value in shown:
            yield value.lineno, _text(value)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _text(value: ast.expr) -> str:
    """Return the text of a literal, or nothing for other expressions."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(
            _text(part) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in value.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Print a sample of the texts that users read.")
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--count", type=int, default=80)
    options = parser.parse_args()
    population = texts()
    sample = random.Random(options.seed).sample(population, min(options.count, len(population)))
    print(f"{len(sample)} of {len(population)} texts, seed {options.seed}")
    for number, text in enumerate(sample, start=1):
        print(f"{number:3} {text.path}:{text.line}\n    {text.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
