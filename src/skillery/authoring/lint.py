"""The lint of a skill folder: problems that publishing accepts, and that hinder readers and agents.

RULES is the table. Each rule yields warnings, which begin with the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from skillery.authoring.scaffold import DESCRIPTIONS, KINDS, filled_template
from skillery.errors import InvalidBundle
from skillery.formats.bundle import SKILL_MD, SKILL_TOML
from skillery.formats.package_json import JAVASCRIPT
from skillery.formats.search_fields import LEAST_SHARE, MAX_BODY, search_fields
from skillery.formats.skill_md import parse_skill_md
from skillery.formats.toml_lines import line_of, lines_of
from skillery.formats.tools import FILE as TOOLS_JSON
from skillery.formats.tools import NO_TOOLS, read_tools
from skillery.formats.wording import quoted
from skillery.formats.words import parse_query, words_of
from skillery.publishing.folders import SkillFolder

SCRIPT_ENDINGS = (".sh", ".py", *JAVASCRIPT)
LONGEST_QUERY = 200
MOST = 20
"""Limit of the warnings of one rule."""
_PORTABLE = re.compile(r"[A-Za-z0-9._+@=,()\[\] -]+")
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{kind}{n}" for kind in ("com", "lpt") for n in range(1, 10))})
_FORMS = ("#", "|---", "name:", "description:", "from skills.", "Mount `")
"""Starts of lines of a template that are right for every skill."""
_ROW = re.compile(r"\| `(\w+)`")
_KEY = re.compile(r"(?:unknown key )?([\w.\[\]-]+)")
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


class Match(NamedTuple):
    """The words of the examples of a skill, as a search for them. `missing` are the words that are in no searched text.

    `is_described` says whether the name, the description or the tags have one of the words.
    """

    words: list[str]
    missing: list[str]
    is_described: bool


class Folder:
    """The parts of a skill folder that the rules read."""

    def __init__(self, skill: SkillFolder) -> None:
        self.manifest: Mapping[str, Any] = skill.manifest
        self.files = {file.path: file for file in skill.files}
        self.lines = skill.skill_md.splitlines()
        toml = self.files.get(SKILL_TOML)
        self.toml = toml.content.decode("utf-8-sig", "replace") if toml else ""
        try:
            skill_md = parse_skill_md(skill.skill_md)
            self.frontmatter, self.body = skill_md.frontmatter, skill_md.body
        except InvalidBundle:
            self.frontmatter, self.body = {}, ""  # the gate reports it

    @cached_property
    def tools(self) -> dict[str, str]:
        """The script of each tool that has one, by name."""
        file = self.files.get(TOOLS_JSON)
        tools = read_tools(file.content, frozenset(self.files)) if file else NO_TOOLS
        return {tool.name: tool.script for tool in tools.tools if tool.script}

    @cached_property
    def match(self) -> Match:
        """The words of the examples, and which of them a search finds, as the registry indexes the texts."""
        terms = parse_query(example_words(self.manifest).replace("\0", " ")).terms
        name, description = (str(self.manifest.get(key) or "") for key in ("name", "description"))
        fields = search_fields(name, description, _tags(self))
        described = [term.word for term in terms if any(map(term.matches, fields.impacts))]
        other_words = {*fields.further, *words_of(self.body[:MAX_BODY])}
        missing = [
            term.spelt for term in terms if term.word not in described and not any(map(term.matches, other_words))
        ]
        return Match([term.spelt for term in terms], missing, bool(described))

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.manifest.get(key)
        return value if isinstance(value, Mapping) else {}

    def examples(self, key: str) -> list[Mapping[str, Any]]:
        values = self.manifest.get(key)
        return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []

    def place(self, path: str) -> str:
        """Return the place of a key of skill.toml."""
        return f"{SKILL_TOML}:{line_of(lines_of(self.toml, {path}), path)}"


def placed(skill: SkillFolder, warnings: Sequence[str]) -> list[str]:
    """Return the warnings of a manifest. A warning that begins with a key of skill.toml gets the file and the line of
    the key.
    """
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
    """Yield a warning for each line of SKILL.md that is still a line of a template.

    As long as skill.toml has the description of a template, the author has just begun: then only placeholders get one.
    """
    template_lines = _template_lines(str(folder.manifest.get("name")))
    is_new = folder.manifest.get("description") in DESCRIPTIONS.values()
    names = {*folder.table("inputs"), *folder.tools}
    for number, line in enumerate(folder.lines, 1):
        row = _ROW.match(line)
        is_placeholder = row or "…" in line or line.startswith("- State ")
        if line in template_lines and not (row and row[1] in names) and (is_placeholder or not is_new):
            yield f"{SKILL_MD}:{number}: the line is still that of the template: {quoted(line)}"


def _template_lines(name: str) -> frozenset[str]:
    """Return the lines of all templates that say something about their own skill: no headings, and no short lines."""
    lines = [line for kind in KINDS for line in filled_template(kind, name)[SKILL_MD].splitlines()]
    headings = {row for row, next_row in pairwise(lines) if next_row.startswith("|---")}
    return frozenset(line for line in lines if len(line) > 20 and not line.startswith(_FORMS) and line not in headings)


def _names(folder: Folder) -> Iterator[str]:
    """Yield a warning if SKILL.md has another name or description than skill.toml."""
    name, stated_name = folder.manifest.get("name"), folder.frontmatter.get("name")
    if isinstance(name, str) and isinstance(stated_name, str) and _NAME.fullmatch(stated_name):
        accepted_names = {
            name,
            name.rpartition(".")[2],
            name.replace(".", "-"),
            name.replace(".", "-").replace("_", "-"),
        }
        if stated_name not in accepted_names:
            place = f"{SKILL_MD}:{_line(folder, 'name:')}"
            yield f"{place}: the name is {quoted(stated_name)}, in skill.toml {quoted(name)}"
    text, other = folder.manifest.get("description"), folder.frontmatter.get("description")
    if isinstance(text, str) and isinstance(other, str) and text.split() != other.split():
        place = f"{SKILL_MD}:{_line(folder, 'description:')}"
        yield f"{place}: the description differs from that of skill.toml; agents read both: {quoted(text)}"


def _line_ends(folder: Folder) -> Iterator[str]:
    for file in folder.files.values():
        is_script = file.path.endswith(SCRIPT_ENDINGS) or file.content.startswith(b"#!")
        first_line = file.content.partition(b"\n")[0]
        if is_script and first_line.endswith(b"\r") and (first_line.startswith(b"#!") or file.path.endswith(".sh")):
            yield f"{file.path}:1: the lines end with CR LF, which the shell refuses: save the file with LF"


def _portable(folder: Folder) -> Iterator[str]:
    """Yield a warning for each path that another operating system does not accept."""
    for file in folder.files.values():
        for part in file.path.split("/"):
            if part.partition(".")[0].lower() in _RESERVED:
                yield f"{file.path}: Windows reserves the name {quoted(part)}: take another name"
                break
            if part.endswith((" ", ".")) or not _PORTABLE.fullmatch(part):
                yield f"{file.path}: the name {quoted(part)} is not portable: use letters, digits, '.', '_' and '-'"
                break


def _untested(folder: Folder) -> Iterator[str]:
    """Yield a warning if no example calls a tool that has a script."""
    called = {example.get("tool") for example in folder.examples("tool_examples")}
    tested = folder.table("runtime").get("entrypoint") if folder.examples("examples") else None
    names = [name for name, script in folder.tools.items() if script != tested and name not in called]
    if names:
        yield f"{TOOLS_JSON}: no example calls {', '.join(names)}: write [[tool_examples]] with tool, args and expect"


def _vague(folder: Folder) -> Iterator[str]:
    """Yield a warning if a search for the words of the examples does not find the skill."""
    match = folder.match
    if len(match.words) < 2:
        return
    place = folder.place("description")
    if not match.is_described:
        words = ", ".join(match.words[:5])
        yield f"{place}: the description has no word of the skill's own examples ({words}): a search does not find it"
    # A registry compares the weights of the words, which depend on its other skills.
    elif LEAST_SHARE * (len(match.words) - len(match.missing)) < len(match.words):
        words = ", ".join(match.missing[:5])
        yield f"{place}: a search for the words of the skill's own examples does not find it: no text has {words}"


def search_line(skill: SkillFolder) -> str:
    """Return how many words of the skill's own examples a search finds in its texts, or "" if it has no examples."""
    match = Folder(skill).match
    without = f"; no text has {', '.join(match.missing)}" if match.missing else ""
    count = len(match.words)
    return f"finds {count - len(match.missing)} of the {count} words of its examples{without}" if count else ""


def example_words(manifest: Mapping[str, Any]) -> str:
    """Return the names of the examples of a manifest: its author would search for these words."""
    values = [manifest.get("examples"), manifest.get("tool_examples")]
    rows = [row for rows in values if isinstance(rows, list) for row in rows if isinstance(row, Mapping)]
    return " ".join(str(row["name"]) for row in rows if row.get("name"))[:LONGEST_QUERY]


def _tags(folder: Folder) -> list[str]:
    tags = folder.manifest.get("tags")
    return [str(tag) for tag in tags] if isinstance(tags, list) else []


def _line(folder: Folder, begin: str) -> int:
    return next((number for number, line in enumerate(folder.lines, 1) if line.startswith(begin)), 1)


RULES: tuple[Callable[[Folder], Iterator[str]], ...] = (
    _template,
    _names,
    _line_ends,
    _portable,
    _untested,
    _vague,
)
