"""The lint of a skill folder: what publishing accepts, and what its readers and agents stumble over.

RULES is the table. Each rule yields warnings, which begin with the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from skillery.authoring.scaffold import DESCRIPTIONS, KINDS, filled_template
from skillery.errors import InvalidBundle
from skillery.formats.bundle import SKILL_MD, SKILL_TOML
from skillery.formats.package_json import JAVASCRIPT
from skillery.formats.skill_md import parse_skill_md
from skillery.formats.toml_lines import line_of, lines_of
from skillery.formats.tools_json import FILE as TOOLS_JSON
from skillery.formats.tools_json import NO_TOOLS, read_tools
from skillery.formats.wording import quoted
from skillery.formats.words import spelt_words, words_of
from skillery.publishing.folders import SkillFolder

SCRIPT_ENDINGS = (".sh", ".py", *JAVASCRIPT)
MOST = 20
"""Limit of the warnings of one rule."""
_LINK = re.compile(r"\]\(\s*<?([^)\s>#?]+)")
_PATH = re.compile(r"`((?:\./)?(?:scripts|resources|references|assets|code|tools|examples)/[\w./-]+\.\w{1,8})`")
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/|#")
_PORTABLE = re.compile(r"[A-Za-z0-9._+@=,()\[\] -]+")
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(1, 10))})
_FORMS = ("#", "|---", "name:", "description:", "from skills.", "Mount `")
"""Starts of lines of a template that are right for every skill."""
_ROW = re.compile(r"\| `(\w+)`")
_KEY = re.compile(r"(?:unknown key )?([\w.\[\]-]+)")
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


class Folder:
    """The parts of a skill folder that the rules read."""

    def __init__(self, skill: SkillFolder) -> None:
        self.manifest: Mapping[str, Any] = skill.manifest
        self.files = {file.path: file for file in skill.files}
        self.lines = skill.skill_md.splitlines()
        toml = self.files.get(SKILL_TOML)
        self.toml = toml.content.decode("utf-8-sig", "replace") if toml else ""
        try:
            self.frontmatter = parse_skill_md(skill.skill_md).frontmatter
        except InvalidBundle:
            self.frontmatter = {}  # the gate reports it

    @cached_property
    def tools(self) -> dict[str, str]:
        """The script of each tool that has one, by name."""
        given = self.files.get(TOOLS_JSON)
        found = read_tools(given.content, frozenset(self.files)) if given else NO_TOOLS
        return {tool.name: tool.script for tool in found.tools if tool.script}

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.manifest.get(key)
        return value if isinstance(value, Mapping) else {}

    def examples(self, key: str) -> list[Mapping[str, Any]]:
        given = self.manifest.get(key)
        return [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []

    def place(self, path: str) -> str:
        """Return the place of a key of skill.toml."""
        return f"{SKILL_TOML}:{line_of(lines_of(self.toml, {path}), path)}"


def placed(skill: SkillFolder, warnings: Sequence[str]) -> list[str]:
    """Return the warnings of a manifest. Those that begin with a key of skill.toml get its file and line."""
    folder = Folder(skill)
    keys = [_KEY.match(warning) for warning in warnings]
    lines = lines_of(folder.toml, {key[1] for key in keys if key})
    return [
        f"{SKILL_TOML}:{lines[key[1]]}: {warning}" if key and key[1] in lines else warning
        for key, warning in zip(keys, warnings, strict=True)
    ]


def lint(skill: SkillFolder) -> list[str]:
    """Return the warnings of all rules."""
    folder = Folder(skill)
    return [warning for rule in RULES for _, warning in zip(range(MOST), rule(folder), strict=False)]


def _template(folder: Folder) -> Iterator[str]:
    """Compare with SKILL.md of the templates. As long as the description is that of a template, its sentences are true:
    only the placeholders are left.
    """
    known = _template_lines(str(folder.manifest.get("name")))
    is_new = folder.manifest.get("description") in DESCRIPTIONS.values()
    names = {*folder.table("inputs"), *folder.tools}
    for number, line in enumerate(folder.lines, 1):
        row = _ROW.match(line)
        is_placeholder = row or "…" in line or line.startswith("- State ")
        if line in known and not (row and row[1] in names) and (is_placeholder or not is_new):
            yield f"{SKILL_MD}:{number}: the line is still that of the template: {quoted(line)}"


def _template_lines(name: str) -> frozenset[str]:
    """Return the lines of all templates that say something about their own skill: no headings, and no short lines."""
    lines = [line for kind in KINDS for line in filled_template(kind, name)[SKILL_MD].splitlines()]
    headings = {row for row, below in pairwise(lines) if below.startswith("|---")}
    return frozenset(line for line in lines if len(line) > 20 and not line.startswith(_FORMS) and line not in headings)


def _names(folder: Folder) -> Iterator[str]:
    name, stated = folder.manifest.get("name"), folder.frontmatter.get("name")
    if isinstance(name, str) and isinstance(stated, str) and _NAME.fullmatch(stated):
        same = {name, name.rpartition(".")[2], name.replace(".", "-"), name.replace(".", "-").replace("_", "-")}
        if stated not in same:
            yield f"{SKILL_MD}:{_line(folder, 'name:')}: the name is {quoted(stated)}, in skill.toml {quoted(name)}"
    text, other = folder.manifest.get("description"), folder.frontmatter.get("description")
    if isinstance(text, str) and isinstance(other, str) and text.split() != other.split():
        place = f"{SKILL_MD}:{_line(folder, 'description:')}"
        yield f"{place}: the description differs from that of skill.toml; agents read both: {quoted(text)}"


def _references(folder: Folder) -> Iterator[str]:
    folders = {path[: at + 1] for path in folder.files for at, letter in enumerate(path) if letter == "/"}
    for number, line in enumerate(folder.lines, 1):
        for path in [*_LINK.findall(line), *_PATH.findall(line)]:
            bare = path.removeprefix("./")
            if _ADDRESS.match(path) or bare in folder.files or f"{bare.rstrip('/')}/" in folders:
                continue
            yield f"{SKILL_MD}:{number}: names the file {quoted(path)}, which the skill does not have"


def _line_ends(folder: Folder) -> Iterator[str]:
    for file in folder.files.values():
        is_script = file.path.endswith(SCRIPT_ENDINGS) or file.content.startswith(b"#!")
        first = file.content.partition(b"\n")[0]
        if is_script and first.endswith(b"\r") and (first.startswith(b"#!") or file.path.endswith(".sh")):
            yield f"{file.path}:1: the lines end with CR LF, which the shell refuses: save the file with LF"


def _portable(folder: Folder) -> Iterator[str]:
    for file in folder.files.values():
        for part in file.path.split("/"):
            if part.partition(".")[0].lower() in _RESERVED:
                yield f"{file.path}: Windows reserves the name {quoted(part)}: take another name"
                break
            if part.endswith((" ", ".")) or not _PORTABLE.fullmatch(part):
                yield f"{file.path}: the name {quoted(part)} is not portable: use letters, digits, '.', '_' and '-'"
                break


def _untested(folder: Folder) -> Iterator[str]:
    called = {example.get("tool") for example in folder.examples("tool_examples")}
    tested = folder.table("runtime").get("entrypoint") if folder.examples("examples") else None
    left = [name for name, script in folder.tools.items() if script != tested and name not in called]
    if left:
        yield f"{TOOLS_JSON}: no example calls {', '.join(left)}: write [[tool_examples]] with tool, args and expect"


def _vague(folder: Folder) -> Iterator[str]:
    """Compare the words of the names of examples with the texts that a search reads."""
    asked = example_words(folder.manifest)
    words = set(words_of(asked))
    texts = (folder.manifest.get("name"), folder.manifest.get("description"), " ".join(_tags(folder)))
    read = set(words_of(" ".join(str(text) for text in texts if text)))
    if len(words) > 1 and not words & read:
        shown = ", ".join(spelt_words(asked)[:5])
        place = folder.place("description")
        yield f"{place}: the description has no word of the skill's own examples ({shown}): a search does not find it"


def example_words(manifest: Mapping[str, Any]) -> str:
    """Return the names of the examples of a manifest, which are what its author would search for."""
    given = [manifest.get("examples"), manifest.get("tool_examples")]
    rows = [row for rows in given if isinstance(rows, list) for row in rows if isinstance(row, Mapping)]
    return " ".join(str(row["name"]) for row in rows if row.get("name"))


def _tags(folder: Folder) -> list[str]:
    tags = folder.manifest.get("tags")
    return [str(tag) for tag in tags] if isinstance(tags, list) else []


def _line(folder: Folder, begin: str) -> int:
    return next((number for number, line in enumerate(folder.lines, 1) if line.startswith(begin)), 1)


RULES: tuple[Callable[[Folder], Iterator[str]], ...] = (
    _template,
    _names,
    _references,
    _line_ends,
    _portable,
    _untested,
    _vague,
)
