"""`python -m checks`: compare counts with those of checks/ratchet.toml. A count may only fall.

`--write` stores the counts of today, if none is higher. `--list NAME` prints the places that a count consists of.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from checks.grain import LARGE, SMALL, is_exempt, lonely, sizes
from checks.names import bound_names, riddles

ROOT = Path(__file__).parents[1]
RATCHET = ROOT / "checks/ratchet.toml"
SOURCE = ROOT / "src"
CELLBLOCK = ROOT / "packages/cellblock/src"


def places() -> dict[str, list[str]]:
    """Return the places of each count: `path:line name` or `path`."""
    trees = [(sizes(SOURCE / "skillery"), SOURCE), (sizes(CELLBLOCK), CELLBLOCK)]
    lines = {path: size for tree, _ in trees for path, size in tree.items()}
    free = {path: size for path, size in lines.items() if not is_exempt(path)}
    source = [*SOURCE.rglob("*.py"), *CELLBLOCK.rglob("*.py"), *(ROOT / "plugins").glob("*/src/**/*.py")]
    packages = [path for folder in ("plugins", "packages") for path in (ROOT / folder).glob("*/tests/**/test_*.py")]
    tests = [*(ROOT / "tests").rglob("test_*.py"), *packages, *(SOURCE / "skillery/testing").rglob("*.py")]
    return {
        "modules": [_name(path) for path in lines],
        "large_modules": [_name(path) for path, size in free.items() if size > LARGE],
        "small_modules": [_name(path) for path, size in free.items() if size < SMALL],
        "lonely_modules": [_name(path) for tree, root in trees for path in lonely(tree, root)],
        "forbidden_names": [
            f"{_name(path)}:{line} {name}" for path, tree in _trees(source) for line, name in bound_names(tree)
        ],
        "riddles": [f"{_name(path)}:{line} {name}" for path, tree in _trees(tests) for line, name in riddles(tree)],
    }


def _trees(paths: list[Path]) -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(paths):
        yield path, ast.parse(path.read_text("utf-8"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare counts of the source with checks/ratchet.toml.")
    parser.add_argument("--write", action="store_true", help="store the counts of today, if none is higher")
    parser.add_argument("--list", metavar="NAME", help="print the places of a count")
    options = parser.parse_args()
    today = places()
    if options.list:
        print(*today[options.list], sep="\n")
        return 0
    limits: dict[str, int] = tomllib.loads(RATCHET.read_text("utf-8"))
    counts = {name: len(listed) for name, listed in today.items()}
    worse = {name: count for name, count in counts.items() if count > limits.get(name, count)}
    for name, count in worse.items():
        print(f"{name}: {count}, and checks/ratchet.toml allows {limits[name]}: python -m checks --list {name}")
    if options.write and not worse:
        text = "".join(f"{name} = {count}\n" for name, count in counts.items())
        RATCHET.write_text(f"# Counts that may only fall: `python -m checks --write` stores lower ones.\n{text}")
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
