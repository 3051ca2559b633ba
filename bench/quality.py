"""`make quality`: measures of the code of this tree and of an earlier commit, for docs/design/quality.md."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BEFORE = "310df78"
FUNCTION_LINES, CONSTRUCTOR_PARAMETERS, MODULE_LINES = 60, 9, 350
LANGUAGE = re.compile(r"\b(whoever|nobody|somebody|anew|beside|of one.s own|of late|heeds|meanwhile)\b", re.IGNORECASE)
"""Words of an older style: a first look at the language, not a goal."""
Function = ast.FunctionDef | ast.AsyncFunctionDef

PAGE = """# Quality

```
make quality
```

`make quality` measures the code and writes this page. `before` is the commit {before}, `now` is this tree.

| measure | before | now | target |
|---|---|---|---|
{rows}

- Lines of a file and of a function include comments and docstrings. Generated modules (`client/generated.py`,
  `client/synchronous.py`, `client/transfers.py`) do not count.
- An import cycle is a set of modules that import each other when they are loaded. The next row also counts imports
  inside functions and under `TYPE_CHECKING`.
- A typed function has a type for every parameter (except `self` and `cls`) and for its result.
- The language expression finds words of an older style in src/, docs/ and README.md. It is a first look.

## Functions over {function_lines} lines

{functions}

## Modules over {module_lines} lines

{modules}
"""


class Module(NamedTuple):
    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


class Measures(NamedTuple):
    modules: list[Module]
    language: int

    @property
    def functions(self) -> list[tuple[str, Function]]:
        return [
            (f"{module.path}:{node.name}", node)
            for module in self.modules
            for node in ast.walk(module.tree)
            if isinstance(node, Function)
        ]


def modules_of(tree: Path) -> list[Module]:
    """Return all hand-written modules of the package and of the plugins, without the templates of `skillery new`."""
    found = []
    for source in (tree / "src", *sorted(tree.glob("plugins/*/src"))):
        for file in sorted(source.rglob("*.py")):
            if "templates" in file.parts or file.name in {"generated.py", "synchronous.py", "transfers.py"}:
                continue
            text = file.read_text("utf-8")
            parts = file.relative_to(source).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, file.relative_to(tree), text, ast.parse(text)))
    return found


def measure(tree: Path) -> Measures:
    return Measures(
        modules_of(tree), sum(map(hits_in, (*tree.glob("src/**/*"), *tree.glob("docs/**/*"), tree / "README.md")))
    )


def hits_in(file: Path) -> int:
    """Return the number of lines with a word of the expression; 0 for a folder or a file that is not text."""
    if not file.is_file() or file.name in {"quality.md"} or file.suffix == ".pyc":
        return 0
    try:
        return sum(LANGUAGE.search(line) is not None for line in file.read_text("utf-8").split("\n"))
    except UnicodeDecodeError:
        return 0


def at_commit(commit: str, folder: Path) -> Path:
    """Unpack the tree of a commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def length_of(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def parameters_of(function: Function) -> list[ast.arg]:
    """Return all parameters except `self` and `cls`."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [one for one in every if one is not None and one.arg not in {"self", "cls"}]


def is_typed(function: Function) -> bool:
    return function.returns is not None and all(one.annotation for one in parameters_of(function))


def imports_of(module: Module, *, every: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Return the imports that run when the module is loaded. With `every`, also those for types and in functions."""
    nodes = ast.walk(module.tree) if every else _at_load(module.tree.body)
    return (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def _at_load(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _at_load([*node.body, *node.orelse])
        elif isinstance(node, ast.Try | ast.With):
            yield from _at_load(node.body)


def targets_of(module: Module, known: set[str], *, every: bool) -> set[str]:
    """Return the known modules that this one imports."""
    is_package = module.path.name == "__init__.py"
    found: set[str] = set()
    for node in imports_of(module, every=every):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
            continue
        parents = module.name.split(".")
        base = parents[: len(parents) - node.level + is_package] if node.level else []
        origin = ".".join([*base, *([node.module] if node.module else [])])
        inner = {f"{origin}.{alias.name}" for alias in node.names} & known
        found |= inner | ({origin} & known if len(inner) < len(node.names) else set())
    return found - {module.name}


def cycles_of(modules: list[Module], *, every: bool) -> list[list[str]]:
    """Return the strongly connected sets of two and more modules (Tarjan)."""
    known = {module.name for module in modules}
    edges = {module.name: sorted(targets_of(module, known, every=every)) for module in modules}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in edges[name]:
            if target not in index:
                visit(target)
            if target in stack:
                low[name] = min(low[name], low[target])
        if low[name] == index[name]:
            cut = stack.index(name)
            found.append(stack[cut:])
            del stack[cut:]

    sys.setrecursionlimit(10_000)
    for name in edges:
        if name not in index:
            visit(name)
    return [one for one in found if len(one) > 1]


def spread(numbers: list[int]) -> str:
    """Return the median, the 90th percentile and the maximum."""
    return f"{statistics.median(numbers):.0f} / {statistics.quantiles(numbers, n=10)[-1]:.0f} / {max(numbers)}"


def counted(cycles: list[list[str]]) -> str:
    return f"{len(cycles)} (largest: {max(map(len, cycles))} modules)" if cycles else "0"


def values_of(measures: Measures) -> list[str]:
    functions = [node for _, node in measures.functions]
    constructors = [node for node in functions if node.name == "__init__"]
    return [
        str(len(measures.modules)),
        spread([module.lines for module in measures.modules]),
        str(sum(module.lines > MODULE_LINES for module in measures.modules)),
        str(len(functions)),
        spread([length_of(node) for node in functions]),
        str(sum(length_of(node) > FUNCTION_LINES for node in functions)),
        str(sum(len(parameters_of(node)) > CONSTRUCTOR_PARAMETERS for node in constructors)),
        counted(cycles_of(measures.modules, every=False)),
        counted(cycles_of(measures.modules, every=True)),
        f"{100 * sum(map(is_typed, functions)) / len(functions):.1f} %",
        str(measures.language),
    ]


LABELS = (
    ("modules", ""),
    ("lines of a module: median / p90 / max", ""),
    (f"modules over {MODULE_LINES} lines", "0"),
    ("functions", ""),
    ("lines of a function: median / p90 / max", ""),
    (f"functions over {FUNCTION_LINES} lines", "0"),
    (f"constructors with over {CONSTRUCTOR_PARAMETERS} parameters", "0"),
    ("import cycles", "0"),
    ("import cycles with imports for types and in functions", ""),
    ("typed functions", "100 %"),
    ("hits of the language expression", "< 60"),
)


def listed(rows: list[tuple[str, int]]) -> str:
    return "\n".join(f"- `{name}`: {size}" for name, size in sorted(rows, key=lambda row: -row[1])) or "None."


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        before = values_of(measure(at_commit(BEFORE, Path(folder))))
    now = measure(ROOT)
    rows = zip(LABELS, before, values_of(now), strict=True)
    long = [(name, length_of(node)) for name, node in now.functions if length_of(node) > FUNCTION_LINES]
    page = PAGE.format(
        before=f"`{BEFORE}`",
        rows="\n".join(f"| {label} | {old} | {new} | {target} |" for (label, target), old, new in rows),
        function_lines=FUNCTION_LINES,
        module_lines=MODULE_LINES,
        functions=listed(long),
        modules=listed([(str(one.path), one.lines) for one in now.modules if one.lines > MODULE_LINES]),
    )
    (ROOT / "docs" / "design" / "quality.md").write_text(page, "utf-8")


if __name__ == "__main__":
    main()
