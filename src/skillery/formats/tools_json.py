"""tools.json: the tools of a bundle, by the convention Skill Tools 1.0.0.

The file name is older than the convention, and thousands of files with this name have another purpose. The content
decides. `[]`, an array of objects, or an object with `name` and `description` counts as Skill Tools and must follow the
rules. Any other content is an ordinary file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

import msgspec

from skillery.errors import InvalidBundle
from skillery.formats.json_values import kind_of
from skillery.formats.problems import MAX_SHOWN, Problem, raise_problems
from skillery.formats.strict_json import Unreadable, read_json
from skillery.formats.tools import Tool, ToolReader
from skillery.formats.wording import quoted

FILE = "tools.json"
MAX_TOOLS = 1_000
MAX_AGENT_SKILLS_NAME = 64

_AGENT_SKILLS_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
HINT = (
    f"{FILE} is an array of tools by Skill Tools 1.0.0, e.g. "
    '[{"name": "count_words", "description": "Counts words.", "script": "scripts/count_words.py", "parameters": '
    '{"text": {"type": "string", "description": "The text"}}}]; a file with another purpose needs another name.'
)


class ToolsFile(msgspec.Struct, frozen=True):
    """A parsed tools.json: its tools and problems, or the reason why the file is an ordinary file."""

    tools: tuple[Tool, ...] = ()
    """The valid tools."""
    problems: tuple[Problem, ...] = ()
    """The broken rules. A strict caller refuses the file (`refuse_broken`). A lenient caller omits the tools that
    break a rule, and lists the problems as warnings (`skipped`).
    """
    warnings: tuple[str, ...] = ()
    is_skill_tools: bool = False
    """False for a file that is not a list of tools. `problems` then has the reason."""

    @property
    def has_scripts(self) -> bool:
        """Whether a tool has a script. If so, the skill is an action skill by default."""
        return any(tool.script is not None for tool in self.tools)

    @property
    def skipped(self) -> tuple[str, ...]:
        """The problems as warnings about omitted tools, or about an ordinary file with this name."""
        if not self.is_skill_tools:
            return tuple(
                f"{problem.message}: it is treated as an ordinary file without tools" for problem in self.problems
            )
        return tuple(f"{problem.message}; that tool is left out" for problem in self.problems[:MAX_SHOWN])


NO_TOOLS = ToolsFile()
"""The result for a bundle without tools.json."""


def read_tools(data: bytes, paths: Set[str]) -> ToolsFile:
    """Return the tools of a bundle. `data` is the content of tools.json, `paths` are the files of the bundle.

    No content raises an error: problems are part of the result.
    """
    value = read_json(data)
    if isinstance(value, Unreadable):
        return _no_tools(value.why, value.line)
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return _tools_file(ToolReader(paths), [(f"{FILE}[{i}]", tool) for i, tool in enumerate(value)])
    if isinstance(value, dict) and "name" in value and "description" in value:
        reader = ToolReader(paths)
        reader.problem(FILE, "is an object; it must be an array, even of one tool")
        return msgspec.structs.replace(_tools_file(reader, [(FILE, value)]), tools=())
    what = "an array with values other than objects" if isinstance(value, list) else kind_of(value)
    return _no_tools(f"is {what}, not an array of tools", 1)


def _no_tools(why: str, line: int | None) -> ToolsFile:
    return ToolsFile(problems=(Problem(f"{FILE} {why}", path=FILE, file=FILE, line=line),))


def _tools_file(reader: ToolReader, given: list[tuple[str, dict[str, Any]]]) -> ToolsFile:
    if len(given) > MAX_TOOLS:
        reader.problem(FILE, f"has {len(given)} tools, at most {MAX_TOOLS} are allowed")
    tools = [reader.tool(where, table) for where, table in given[:MAX_TOOLS]]
    return ToolsFile(
        tools=tuple(tool for tool in tools if tool),
        problems=tuple(reader.problems),
        warnings=tuple(reader.warnings[:MAX_SHOWN]),
        is_skill_tools=True,
    )


def refuse_broken(file: ToolsFile) -> None:
    """Raise InvalidBundle, with a list of the broken rules, if the file breaks a rule."""
    if file.problems:
        raise_problems(InvalidBundle, file.problems, hint=HINT)


def name_warnings(name: str, stated: object) -> Iterator[str]:
    """Yield warnings about the name of a skill with tools: other runtimes may refuse it, or SKILL.md has another name.

    `stated` is the `name` in the frontmatter of SKILL.md, or None.
    """
    if len(name) > MAX_AGENT_SKILLS_NAME or not _AGENT_SKILLS_NAME.fullmatch(name):
        yield (
            f"Skill Tools does not allow the name {quoted(name, 140)}: it must be lowercase letters, digits and single "
            f"hyphens, at most {MAX_AGENT_SKILLS_NAME} characters; other runtimes may refuse it"
        )
    if isinstance(stated, str) and stated != name:
        yield f"SKILL.md: the name in the frontmatter is {quoted(stated)}, the skill's is {quoted(name, 140)}"
