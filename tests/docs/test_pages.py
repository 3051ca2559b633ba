"""Every page: links resolve, no row is repeated, lines are short, and drawn trees and call paths match the code."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import chain, groupby
from pathlib import Path

import pytest

from skillery.backends import Capability
from skillery.client_source import openrpc

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "skillery"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("plugins/**/*.md")),
    *sorted(ROOT.glob("packages/**/*.md")),
]
GENERATED = {"benchmarks.md", "quality.md"}
WIDTH = 120
CODE_ROOTS = ("src", "checks", "plugins", "tests", "bench", "packaging", "packages", "examples", "migrations", "skills")
WRITTEN = [page for page in PAGES if page.name not in GENERATED]


def problems(pages: list[Path], of: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """Return the problems of each page that has some."""
    found = {str(page.relative_to(ROOT)): of(page) for page in pages}
    return {page: wrong for page, wrong in found.items() if wrong}


@pytest.mark.full
def test_the_command_of_the_site_fills_tables() -> None:
    hook = (ROOT / "packaging/docs_site.py").read_text("utf-8")
    module = re.findall(r'"-m", "(skillery[\w.]+)"', hook)
    command = [sys.executable, "-m", *module]
    page = subprocess.run(
        command, input="<!-- table: filters -->\n", stdout=subprocess.PIPE, text=True, check=True
    ).stdout

    assert '| `kind` | `"action" or "instruction"` |' in page


@cache
def lines_of(page: Path) -> list[tuple[bool, str]]:
    """Return each line of the site, and whether it belongs to a code block."""
    found, in_code = [], False
    for line in openrpc.filled(page.read_text("utf-8")).splitlines():
        fence = line.lstrip().startswith("```")
        found.append((in_code or fence, line))
        in_code ^= fence
    return found


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Return the anchors of the headings, as GitHub makes them, and those of `id` attributes."""
    text = [line for in_code, line in lines_of(page) if not in_code]
    headings = [match[1] for line in text if (match := re.match(r"#+ (.*)", line))]
    made: list[str] = []
    for heading in headings:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        made.append(f"{anchor}-{made.count(anchor)}" if anchor in made else anchor)
    return frozenset(made) | frozenset(chain.from_iterable(re.findall(r'id="([^"]+)"', line) for line in text))


def test_links_and_anchors_lead_somewhere() -> None:
    assert problems(PAGES, broken_links) == {}


def broken_links(page: Path) -> list[str]:
    text = "\n".join(line for in_code, line in lines_of(page) if not in_code)
    broken = []
    for link in re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


def test_no_row_and_no_line_of_a_tree_is_there_twice() -> None:
    assert problems(WRITTEN, doubled_lines) == {}


def doubled_lines(page: Path) -> list[str]:
    """The first cell identifies a row in its table. The path identifies a line of a tree."""
    doubled, table, tree, parents = list[str](), set[str](), set[str](), dict[int, str]()
    for in_code, line in lines_of(page):
        row = line.split(" | ")[0] if line.startswith("| ") and not in_code else ""
        table = table if line.startswith("|") and not in_code else set()
        tree = tree if in_code else set()
        folder = re.match(r"( *)([\w./-]+/)(?= {2}|$)", line) if in_code else None
        if folder:
            parents = {depth: name for depth, name in parents.items() if depth < len(folder[1])}
            path = "".join([*parents.values(), folder[2]])
            parents[len(folder[1])] = folder[2]
            doubled += [line] * (path in tree)
            tree.add(path)
        doubled += [row] * (row in table)
        table |= {row} - {"", "|", "| "}
    return doubled


def test_lines_are_short() -> None:
    assert problems(WRITTEN, long_lines) == {}


def long_lines(page: Path) -> list[str]:
    """The targets of links and the code in table cells do not count."""
    shown = [re.sub(r"\]\([^)]*\)", "]", line) for _, line in lines_of(page)]
    cells = [re.sub(r"`[^`]*`", "", line) if line.startswith("|") else line for line in shown]

    return [line for line in cells if len(line) > WIDTH]


ARCHITECTURE = ROOT / "docs" / "design" / "architecture.md"


def test_the_tree_on_the_architecture_page_is_the_tree() -> None:
    """Every line of the drawn tree exists, and every room of the package has a line."""
    _, tree = ARCHITECTURE.read_text("utf-8").split("\nsrc/skillery/\n")
    drawn = {line.split()[0] for line in tree.split("\n```")[0].splitlines()}
    rooms = {f"{file.relative_to(SOURCES).parts[0]}/" for file in SOURCES.glob("*/*.py")}

    assert {name for name in drawn if not (SOURCES / name).exists()} == set()
    assert rooms - drawn == set()
    assert {file.name for file in SOURCES.glob("*.py")} - drawn == {"__init__.py", "__main__.py"}


def test_modules_that_pages_name_exist() -> None:
    """A name such as `labels/labels.py` on a page is a file of the repository, or the end of the path of a file."""
    files = {f"/{file.relative_to(ROOT)}" for folder in CODE_ROOTS for file in (ROOT / folder).rglob("*.py")}

    def unknown(page: Path) -> list[str]:
        text = re.sub(r"\bCreate `[^`]+`", "", page.read_text("utf-8"))
        named = set(re.findall(r"`([\w/-]+/\w+\.py)`", text))
        far = {name for name in named if not (page.parent / name).exists()}
        return sorted(name for name in far if not any(file.endswith(f"/{name}") for file in files))

    assert problems(WRITTEN, unknown) == {}


def test_names_in_the_code_column_of_the_glossary_exist() -> None:
    """A path such as `labels/locks.py` is in src/skillery, and a dotted name such as `labels.locks.Lock` resolves."""
    rows = [line.split(" | ") for line in (ROOT / "docs/reference/glossary.md").read_text("utf-8").splitlines()]
    names = {name for row in rows if len(row) == 3 for name in re.findall(r"`([^`/]+(?:/[^`]*)?)`", row[2])}
    paths = {name for name in names if "/" in name or name.endswith(".py")}
    # Other dotted names are settings, keys of skill.toml and attributes of classes.
    dotted = {name for name in names - paths if "." in name and (SOURCES / name.partition(".")[0]).is_dir()}

    assert {name for name in paths if not (SOURCES / name).exists()} == set()
    assert {name for name in dotted if not _resolves(name)} == set()
    assert len(dotted) > 10


def _resolves(name: str) -> bool:
    """Return whether a name below the package `skillery` is an object of a module."""
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(f"skillery.{module}"), attribute)
    except ImportError:
        return False


def functions_of(file: str) -> set[str]:
    """Return the names of the functions, and of the methods as `Class.method`."""
    body = ast.parse((SOURCES / file).read_text("utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    classes = [one for one in body if isinstance(one, ast.ClassDef)]
    methods = {f"{one.name}.{each.name}" for one in classes for each in one.body if isinstance(each, kinds)}
    return {one.name for one in body if isinstance(one, kinds)} | methods


@pytest.mark.parametrize("method", ["list_skills", "create_skill", "execute_skill"])
def test_the_path_of_a_call_is_drawn_with_functions_that_exist(method: str) -> None:
    section = ARCHITECTURE.read_text("utf-8").split(f"\n### {method}\n")[1]
    block = re.search(r"```path\n(.*?)```", section, re.DOTALL)
    assert block is not None
    steps = [line.split()[:2] for line in block[1].splitlines()]
    files = [file for file, _ in steps]

    assert [(file, name) for file, name in steps if name not in functions_of(file)] == []
    assert len([*groupby(files)]) == len(set(files)), "a path never returns to a module"


def test_list_skills_passes_three_modules_from_route_to_sql() -> None:
    block = ARCHITECTURE.read_text("utf-8").split("\n### list_skills\n")[1].split("```")[1]

    assert len({line.split()[0] for line in block.splitlines()[1:]}) == 3


def test_pages_name_no_capability_that_does_not_exist() -> None:
    table = (ROOT / "docs/reference/hooks.md").read_text("utf-8").split("| capability |")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)

    assert named
    assert set(named) <= set(Capability)
