"""Tools that were defined by code (`define_tool`): the handler made from the code, and the skill made for the handler.

Source: §8 of Skill Tools 1.0.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from skillery.errors import InvalidName
from skillery.formats.agent_skill import yaml_text
from skillery.formats.names import parse_skill_name
from skillery.formats.tools import Tool
from skillery.formats.tools_json import FILE
from skillery.formats.wording import printable, quoted

MADE_BY = "define_tool"
Language = Literal["javascript", "python", "bash"]
ENDINGS: dict[Language, str] = {"javascript": ".js", "python": ".py", "bash": ".sh"}
_JAVASCRIPT = "export default async function handler(args) {{\n{}\n}}\n"
_BASH = "#!/usr/bin/env bash\n{}\n"


class Written(NamedTuple):
    """A skill in the form that create_skill takes."""

    manifest: dict[str, Any]
    skill_md: str
    files: dict[str, str]


def script_path(name: str, language: Language) -> str:
    return f"scripts/{name}{ENDINGS[language]}"


def handler_of(code: str, language: Literal["javascript", "bash"]) -> str:
    """Return a handler file with the body `code`. For Python, a compile worker makes it (`python_handler`).

    In bash, the body is the whole program: the arguments are on stdin and in `$1`.
    """
    return {"javascript": _JAVASCRIPT, "bash": _BASH}[language].format(code.replace("\r\n", "\n").strip("\n"))


def defined_skill_name(tool: str, namespace: str) -> str:
    """Return the skill name for a tool: `fetch_weather` becomes `fetch-weather`, below `namespace` unless this is "".

    Raise InvalidName if the result is not a valid skill name.
    """
    last = tool.replace("_", "-")
    try:
        return parse_skill_name(f"{namespace}.{last}" if namespace else last)
    except InvalidName:
        raise InvalidName(
            f"the tool {quoted(tool)} would get the skill name {quoted(last)}, which is not valid",
            hint="Choose a name with single underscores between words, and not at its end.",
            name=tool[:128],
        ) from None


def defined_tool_name(skill: str) -> str:
    """Return the tool name for a skill name that `defined_skill_name` returned, in any namespace."""
    return skill.rpartition(".")[2].replace("-", "_")


def write_skill(tool: Tool, skill: str, version: str, content: str) -> Written:
    """Return a skill with this tool: the manifest, SKILL.md, and the other files by path. `content` is the text of the
    handler file.
    """
    assert tool.script is not None, "a defined tool has a script"
    declaration = {
        "name": tool.name,
        "description": tool.description,
        "script": tool.script,
        "parameters": tool.declared,
    }
    files = {FILE: json.dumps([declaration], indent=2, ensure_ascii=False) + "\n", tool.script: content}
    return Written({"name": skill, "version": version, "description": tool.description}, _skill_md(tool, skill), files)


def _skill_md(tool: Tool, skill: str) -> str:
    lines = [
        "---",
        f"name: {yaml_text(skill)}",
        f"description: {yaml_text(tool.description)}",
        "---",
        "",
        f"# {skill}",
        "",
        tool.description.strip(),
        "",
        f"Call the tool `{tool.name}` (`call_tool`, name `{skill}/{tool.name}`). An agent defined it with `{MADE_BY}`.",
        *_parameter_lines(tool),
    ]
    return "\n".join(lines) + "\n"


def _parameter_lines(tool: Tool) -> Iterator[str]:
    if tool.parameters:
        yield from ("", "Parameters:", "")
    for name, parameter in tool.parameters.items():
        optional = ", optional" if parameter.optional else ""
        yield f"- `{printable(name)}` ({parameter.type}{optional}): {' '.join(parameter.description.split())}"
