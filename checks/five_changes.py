"""`python -m checks.five_changes [WORDS …]`: count the files that five changes touch. `make changes` counts all five.

Each change is a recipe of docs/design/changes.md. It is applied to a copy of the checkout, and must pass the types and
its own test there. The command fails if a recipe fails or touches more files than LIMITS. WORDS choose the changes
whose names contain one of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.mutants import CHECKOUT, make_copy

RECIPES = CHECKOUT / "docs/design/changes.md"
STEP = re.compile(
    r"(?P<verb>Create|Append to|Insert before (?P<ticks>`+)(?P<anchor>[^\n]+?)(?P=ticks) in)\s+`(?P<path>[^`]+)`:\n\n"
    r"(?P<indent> *)(?P<fence>`{3,})\w+\n(?P<code>.*?)\n(?P=indent)(?P=fence)\n",
    re.DOTALL,
)
GENERATOR = "skillery.client_source.python"
"""The module that `make client` runs."""


class Limit(NamedTuple):
    """The most files that a change may touch."""

    by_hand: int
    generated: int


LIMITS = {
    "a method": Limit(4, 1),
    "a filter": Limit(5, 1),
    "a column to versions": Limit(6, 1),
    "a kind of backends": Limit(7, 0),
    "a failure type": Limit(4, 0),
}
"""The limit of each section `## Adding …`, by the rest of its heading."""


class Step(NamedTuple):
    """A step of a recipe: the code that it adds to a file."""

    verb: str
    anchor: str | None
    path: str
    code: str

    @property
    def tests(self) -> list[str]:
        """The tests that the step writes, as arguments of pytest."""
        return [f"{self.path}::{name}" for name in re.findall(r"^def (test_\w+)", self.code, re.MULTILINE)]

    def edited(self, text: str) -> str:
        """Return the text of the file after the step. Raise ValueError if the file does not have the anchor."""
        if self.anchor is None:
            return f"{text}\n\n{self.code}\n" if text else f"{self.code}\n"
        start = text.index(self.anchor)
        line = text[text.rfind("\n", 0, start) + 1 : start]
        indent = line if line.isspace() else ""
        end = "\n\n" if "\n\n" in self.code else "\n"
        return text[:start] + textwrap.indent(self.code, indent).removeprefix(indent) + end + indent + text[start:]


class Count(NamedTuple):
    """The files that a change touches, and the lines that it changes by hand."""

    by_hand: list[str]
    generated: list[str]
    lines: int

    def excess(self, limit: Limit) -> list[str]:
        """Return a line for each limit that the change exceeds."""
        kinds = (("by hand", self.by_hand, limit.by_hand), ("generated", self.generated, limit.generated))
        return [
            f"{len(files)} files {kind}, and the limit is {most}: {', '.join(files)}"
            for kind, files, most in kinds
            if len(files) > most
        ]


def steps_of(change: str) -> list[Step]:
    """Return the steps of a recipe. NEXT and LAST stand for the next and the last revision of the database."""
    section = RECIPES.read_text("utf-8").split(f"\n## Adding {change}\n")[1].split("\n## ")[0]
    last = max(path.name[:4] for path in (CHECKOUT / "migrations/versions").glob("[0-9]*.py"))
    section = re.sub(r"\bLAST\b", last, re.sub(r"\bNEXT(?=\b|_)", f"{int(last) + 1:04}", section))
    return [
        Step(match["verb"], match["anchor"], match["path"], textwrap.dedent(match["code"]))
        for match in STEP.finditer(section)
    ]


class Copy:
    """A copy of the checkout with its uncommitted files, as a repository whose index is the state before a change."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_copy(folder)
        if (cache := CHECKOUT / ".mypy_cache").exists():
            shutil.copytree(cache, folder / ".mypy_cache")
        self.run("git", "init", "--quiet")
        self.run("git", "add", "--all")
        self.base = self.run("git", "write-tree").strip()

    def run(self, *command: str) -> str:
        """Return the output of a command in the copy. Raise RuntimeError with the output if the command fails."""
        # A test that runs this code is no worker of the tests in the copy.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as running:
            output, _ = running.communicate()
        if running.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{output}")
        return output

    def python(self, *arguments: str) -> str:
        return self.run(".venv/bin/python", "-m", *arguments)

    def measure(self, change: str) -> Count:
        """Apply a recipe to the original files, check it, and return its counts. Raise RuntimeError if it fails."""
        self.run("git", "read-tree", "--reset", "-u", self.base)
        self.run("git", "clean", "-fdq")
        steps = steps_of(change)
        for step in steps:
            file = self.folder / step.path
            if step.verb == "Create":
                file.touch(exist_ok=False)
            file.write_text(step.edited(file.read_text("utf-8")), "utf-8")
        modules = sorted({step.path for step in steps if step.path.endswith(".py")})
        self.python("ruff", "check", "--quiet", "--fix", *modules)
        self.python("ruff", "format", "--quiet", *modules)
        self.run("git", "add", "--all")
        by_hand = self.run("git", "diff", "--cached", "--numstat", self.base).splitlines()
        self.python(GENERATOR)
        generated = self.run("git", "ls-files", "--modified", "--others", "--exclude-standard").splitlines()
        self.python("mypy", "--follow-imports=silent", *modules)
        self.python("pytest", "-q", *(test for step in steps for test in step.tests))
        rows = [row.split("\t") for row in by_hand]
        names = [name for _, _, name in rows]
        lines = sum(int(added) + int(deleted) for added, deleted, _ in rows)
        return Count(names, [name for name in generated if name not in names], lines)


@contextmanager
def copied() -> Iterator[Copy]:
    """Yield a copy of the checkout, and delete it at the end."""
    with tempfile.TemporaryDirectory(prefix="changes-") as folder:
        yield Copy(Path(folder))


def main() -> int:
    words = sys.argv[1:]
    failures = []
    print(f"{'change':24}{'files by hand':>15}{'generated':>11}{'lines':>7}")
    with copied() as copy:
        for change, limit in LIMITS.items():
            if words and not any(word in change for word in words):
                continue
            try:
                count = copy.measure(change)
            except (RuntimeError, ValueError, OSError) as error:
                failures.append(f"{change}: {error}")
                continue
            print(f"{change:24}{len(count.by_hand):15}{len(count.generated):11}{count.lines:7}", flush=True)
            failures += [f"{change}: {line}" for line in count.excess(limit)]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
