"""A tree of skills with all the shapes of public repositories. Equal seeds and sizes give equal trees.

    corpus = grow(folder / "corpus", skills=2_000)
    corpus.root        the repository to import
    corpus.paths       every path at which an agent finds a skill, links followed
    corpus.lost        links that lead to no skill, or out of the repository

Shapes: canonical folders, agent folders with copies, links and other skills, folders of links, equal names in long
folders, nested skills, collections, SKILL.md files that need a repair, and scripts that import undeclared packages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.archives import skill_md

SEED = 14
LONG = "packages/some_long_common_directory_name/workflows"
PACKAGES = ("requests", "yaml", "numpy", "pandas", "bs4", "PIL", "docx", "openpyxl", "rich", "httpx")
"""Import names. The distributions of `yaml`, `bs4`, `PIL` and `docx` have other names."""
ODD = (
    "---\nname: {name}\ndescription: Use it: when {name} is asked for\n---\n",
    "---\r\nname: {name}\r\ndescription: Lines of another system.\r\n---\r\n",
    "\ufeff---\nname: {name}\ndescription: With a mark before it.\n---\n",
    "---\nname: {name}\ndescription: With keys that nobody knows.\nauthor: me\ntags: [a, b]\n---\n",
    "---\nname: {name}\nversion: 1.10\n---\n",
    "# {name}\n\nNo frontmatter at all.\n",
)
SUBJECTS = (
    "invoice",
    "kubernetes",
    "slides",
    "database",
    "sequencing",
    "figure",
    "contract",
    "theme",
    "deploy",
    "test",
)
VERBS = ("reads", "writes", "checks", "converts", "reviews", "plans", "draws", "translates")


class Corpus(NamedTuple):
    root: Path
    paths: tuple[str, ...]
    """Each folder with a skill, also behind links. Nested skills are files of other skills."""
    nested: tuple[str, ...]
    """Each SKILL.md that is a file of another skill."""
    lost: tuple[str, ...]
    """Links that are not followed."""
    undeclared: tuple[str, ...]
    """Skills whose scripts import packages that no file declares."""


class _Growing:
    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.skills = 0
        self.paths: list[str] = []
        self.nested: list[str] = []
        self.lost: list[str] = []
        self.undeclared: list[str] = []

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode())

    def link(self, path: str, target: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def skill(self, path: str, name: str, *, odd: bool = False, body: str = "") -> None:
        """Write a skill with a few files, of a random size."""
        what = f"{name} {self.random.choice(VERBS)} a {self.random.choice(SUBJECTS)} when asked for one."
        text = f"# {name}\n\n{what}\n\n{body}{self._words(self.random.randrange(20, 400))}\n"
        head = self.random.choice(ODD).format(name=name) if odd else skill_md(name, what, "\n")
        self.write(f"{path}/SKILL.md", head + text)
        for number in range(self.random.choice((0, 0, 1, 1, 2, 4))):
            self.write(f"{path}/references/{number}.md", self._words(self.random.randrange(10, 600)))
        self.paths.append(path)
        self.skills += 1

    def script(self, path: str) -> None:
        """Write a script that imports a package which no file of the skill declares."""
        package = self.random.choice(PACKAGES)
        text = f"import json\n\nimport {package}\n\nprint(json.dumps({package}.__name__))\n"
        self.write(f"{path}/scripts/main.py", text)
        self.undeclared.append(path)

    def _words(self, number: int) -> str:
        return " ".join(self.random.choices(SUBJECTS + VERBS, k=number))


# Each function makes one shape from a number and records the new paths in the corpus.


def _canonical(grown: _Growing, number: int) -> None:
    name = f"skill-{number:05d}"
    grown.skill(f"skills/{name}", name, odd=number % 3 == 0)
    if number % 2:
        grown.script(f"skills/{name}")


def _linked(grown: _Growing, number: int) -> None:
    """Write one skill and two links to it, as `npx skills` makes them."""
    name = f"linked-{number:05d}"
    grown.skill(f".agents/skills/{name}", name)
    for agent in (".claude", ".cursor"):
        grown.link(f"{agent}/skills/{name}", f"../../.agents/skills/{name}")
        grown.paths.append(f"{agent}/skills/{name}")


def _copied(grown: _Growing, number: int) -> None:
    """Write a skill, an identical copy and a different skill of the same name in agent folders."""
    name = f"copied-{number:05d}"
    path = f"skills/{name}"
    grown.skill(path, name)
    for file in sorted((grown.root / path).rglob("*.md")):
        inside = file.relative_to(grown.root / path).as_posix()
        grown.write(f".opencode/skills/{name}/{inside}", file.read_text())
    grown.paths.append(f".opencode/skills/{name}")
    grown.skill(f".agents/skills/{name}", name, body="Of an agent.\n\n")


def _equal(grown: _Growing, number: int) -> None:
    """Write four skills of one name, in folders whose names share more than the first forty characters."""
    for step in range(4):
        path = f"{LONG}/{number:05d}/{step:02d}/skills/rep-{number % 50:02d}"
        grown.skill(path, f"rep-{number % 50:02d}", body=f"Step {step} of {number}.\n\n")


def _nesting(grown: _Growing, number: int) -> None:
    """Write a skill that contains a template of a skill, or a collection that lists its skills."""
    name = f"outer-{number:05d}"
    path = f"plugins/{name}"
    grown.skill(path, name)
    inner = f"{path}/{'templates' if number % 2 else 'inner'}/SKILL.md"
    grown.write(inner, skill_md(f"inner-{number:05d}", body=f"# Inner {number}\n"))
    grown.nested.append(inner)
    if not number % 2:
        grown.write(f"{path}/SKILL.md", skill_md(name, body=f"# {name}\n\n- [inner](inner/SKILL.md)\n"))


def _single(grown: _Growing, number: int) -> None:
    """Write a folder with only a link to a page elsewhere, and another with a link to the SKILL.md of a skill."""
    name = f"page-{number:05d}"
    grown.write(f"docs/{name}.md", skill_md(name, body=f"# Page {number}\n"))
    grown.link(f"skills/{name}/SKILL.md", f"../../docs/{name}.md")
    grown.link(f".windsurf/skills/{name}/SKILL.md", f"../../../docs/{name}.md")
    grown.paths += [f"skills/{name}", f".windsurf/skills/{name}"]


def _lost(grown: _Growing, number: int) -> None:
    """Write a skill and, in another folder, a link that cannot be followed."""
    name = f"beside-{number:05d}"
    targets = {"loop": f"loop-{number:05d}", "gone": "nothing", "out": "../../../outside", "up": "../.."}
    kind = ("loop", "gone", "out", "up")[number % 4]
    grown.skill(f"skills/{name}", name)
    grown.link(f"more/{kind}-{number:05d}", targets[kind])
    grown.lost.append(f"more/{kind}-{number:05d}")


SHAPES: tuple[Callable[[_Growing, int], None], ...] = (
    *[_canonical] * 8,
    *[_linked] * 2,
    _copied,
    _equal,
    _nesting,
    _single,
    _lost,
)


def grow(root: Path, skills: int = 2_000, seed: int = SEED) -> Corpus:
    """Write a repository with at least `skills` skills. Links and copies do not count."""
    grown = _Growing(root, seed)
    grown.write(".git/HEAD", "ref: refs/heads/main\n")
    grown.write("README.md", "# Skills\n")
    (root.parent / "outside").mkdir(exist_ok=True)
    (root.parent / "outside/SKILL.md").write_text(skill_md("outside"))
    grown.link(".codex/skills", "../skills")
    number = 0
    while grown.skills < skills:
        SHAPES[number % len(SHAPES)](grown, number)
        number += 1
    grown.paths += [f".codex/{path}" for path in grown.paths if path.startswith("skills/")]
    return Corpus(root, *(tuple(sorted(one)) for one in (grown.paths, grown.nested, grown.lost, grown.undeclared)))
