"""A tree of skills with all the shapes of public repositories. Equal seeds and sizes give equal trees.

    corpus = grow(folder / "corpus", skills=2_000)
    corpus.root        the repository to import
    corpus.paths       every path at which an agent finds a skill, links followed
    corpus.lost        links that lead to no skill, or out of the repository
    windows_zip(20)    the bytes of a zip with skills of Windows

    python -m tests.support.skill_corpus FOLDER [SKILLS]     writes FOLDER/tree and FOLDER/windows.zip

Shapes: canonical folders, agent folders with copies, links and other skills, folders of links, equal names in long
folders, nested skills, collections, translations, SKILL.md files that need a repair, scripts that import undeclared,
optional or npm packages or state extras, file names and line ends of other systems, and skills for people.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.archives import of_windows, skill_md

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
    people: tuple[str, ...]
    """Skills that only people start."""


class _Growing:
    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.skills = 0
        self.paths: list[str] = []
        self.nested: list[str] = []
        self.lost: list[str] = []
        self.undeclared: list[str] = []
        self.people: list[str] = []

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode())

    def link(self, path: str, target: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def skill(
        self, path: str, name: str, *, odd: bool = False, body: str = "", keys: Mapping[str, str] | None = None
    ) -> None:
        """Write a skill with a few files, of a random size."""
        what = f"{name} {self.random.choice(VERBS)} a {self.random.choice(SUBJECTS)} when asked for one."
        text = f"# {name}\n\n{what}\n\n{body}{self._words(self.random.randrange(20, 400))}\n"
        head = self.random.choice(ODD).format(name=name) if odd else skill_md(name, what, "\n", **(keys or {}))
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


def _collected(grown: _Growing, number: int) -> None:
    """Write a collection of four skills, which its SKILL.md lists."""
    name = f"bundle-{number:05d}"
    parts = [f"{part}-{number:05d}" for part in ("draft", "edit", "print", "send")]
    grown.skill(f"bundles/{name}", name, body="".join(f"- [{part}]({part}/SKILL.md)\n" for part in parts))
    for part in parts:
        grown.skill(f"bundles/{name}/{part}", part)


def _translated(grown: _Growing, number: int) -> None:
    """Write a skill and two translations of it."""
    name = f"guide-{number:05d}"
    grown.skill(f"skills/{name}", name)
    for language, text in (("zh-CN", "检查数据库。"), ("de", "Prüft die Datenbank.")):
        grown.skill(f"docs/{language}/skills/{name}", name, body=f"{text}\n\n")


def _packaged(grown: _Growing, number: int) -> None:
    """Write a skill with an npm package, one with an optional package of 900 MB, and one with extras of a package."""
    for kind in ("npm", "optional", "extras"):
        body = 'Run `pip install "markitdown[all]"` first.\n\n' if kind == "extras" else ""
        grown.skill(f"packaged/{kind}-{number:05d}", f"{kind}-{number:05d}", body=body)
    path = f"packaged/npm-{number:05d}"
    grown.write(f"{path}/package.json", '{"dependencies": {"axios": "^1"}}\n')
    grown.write(f"{path}/scripts/get.mjs", 'import axios from "axios";\nconsole.log(typeof axios);\n')
    optional = "def train():\n    import torch\n    return torch\n\n\nprint('no training today')\n"
    grown.write(f"packaged/optional-{number:05d}/scripts/train.py", optional)
    script = "import sys\n\nfrom markitdown import MarkItDown\n\nprint(MarkItDown().convert(sys.argv[1]))\n"
    grown.write(f"packaged/extras-{number:05d}/scripts/read.py", script)


def _foreign(grown: _Growing, number: int) -> None:
    """Write a skill with a Chinese name in deep folders, and one with a script in CR LF and names that Windows or macOS
    write otherwise or not at all.
    """
    grown.skill(f"skills/检查-{number:05d}", f"检查-{number:05d}")
    grown.write(f"skills/检查-{number:05d}/{'deep/' * 7}page.md", "A page.\n")
    path = f"skills/foreign-{number:05d}"
    grown.skill(path, f"foreign-{number:05d}")
    grown.write(f"{path}/scripts/run.sh", "#!/bin/sh\r\necho ran\r\n")
    grown.write(f"{path}/references/plan: first.md", "A name with a colon.\n")
    grown.write(f"{path}/references/re\u0301sume\u0301.md", "A name in the Unicode form NFD.\n")


def _human(grown: _Growing, number: int) -> None:
    """Write a skill for people, one for models and an internal one."""
    for kind, key, value in (
        ("people", "disable-model-invocation", "true"),
        ("models", "user-invocable", "false"),
        ("internal", "metadata", "{internal: true}"),
    ):
        grown.skill(f"skills/{kind}-{number:05d}", f"{kind}-{number:05d}", keys={key: value})
    grown.people.append(f"skills/people-{number:05d}")


SHAPES: tuple[Callable[[_Growing, int], None], ...] = (
    *[_canonical] * 8,
    *[_linked] * 2,
    _copied,
    _equal,
    _nesting,
    _single,
    _lost,
    _collected,
    _translated,
    _packaged,
    _foreign,
    _human,
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
    listed = grown.paths, grown.nested, grown.lost, grown.undeclared, grown.people
    return Corpus(root, *(tuple(sorted(paths)) for paths in listed))


def windows_zip(skills: int) -> bytes:
    """Return a zip of Windows in GB18030, with CR LF and folders as entries."""
    files: dict[str, str | bytes] = {}
    for number in range(skills):
        path = f"of-windows-{number:05d}"
        files |= {
            f"{path}/SKILL.md": skill_md(path, body="# Title\n\nSee 数据/报告.md.\n").replace("\n", "\r\n"),
            f"{path}/数据/": b"",
            f"{path}/数据/报告.md": f"Report {number}.\r\n",
            f"{path}/scripts/run.sh": "#!/bin/sh\r\necho ran\r\n",
        }
    return of_windows(files, "gb18030")


if __name__ == "__main__":
    place, size = Path(sys.argv[1]), int((*sys.argv[2:], "2000")[0])
    place.mkdir(parents=True)
    tree = grow(place / "tree", size)
    (place / "windows.zip").write_bytes(windows_zip(size // 20))
    sys.stdout.write(f"{len(tree.paths)} paths of skills in {tree.root}, {size // 20} in windows.zip\n")
