"""Tools that were defined by code (`define_tool`): the handler made from the code, and the skill made for the handler.

Source: §8 of Skill Tools 1.0.0.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from skillery.errors import InvalidName
from skillery.formats.agent_skill import yaml_text
from skillery.formats.names import parse_skill_name
from skillery.formats.python_source import SourceFault, find_fault, parsed_source
from skillery.formats.tools import FILE, Tool
from skillery.formats.wording import printable, quoted

MADE_BY = "define_tool"
Language = Literal["javascript", "python", "bash"]
ENDINGS: dict[Language, str] = {"javascript": ".js", "python": ".py", "bash": ".sh"}
_JAVASCRIPT = "export default async function handler(args) {{\n{}\n}}\n"
_BASH = "#!/usr/bin/env bash\n{}\n"


class Written(NamedTuple):
    """A skill in the form of the params of create_skill."""

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
    segment = tool.replace("_", "-")
    try:
        return parse_skill_name(f"{namespace}.{segment}" if namespace else segment)
    except InvalidName:
        raise InvalidName(
            f"the tool {quoted(tool)} would get the skill name {quoted(segment)}, which is not valid",
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
    """Return the SKILL.md of a skill with this tool."""
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


# Makes the handler file of a tool from the Python function body given to `define_tool` (§8 of Skill Tools 1.0.0).


_HANDLER = "{}def handler(args):\n{}\n"
_INDENT = "    "
_TEXTS = (ast.Constant, ast.JoinedStr, getattr(ast, "TemplateStr", ast.JoinedStr))  # TemplateStr: from Python 3.14 on
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def python_handler(code: str) -> str | SourceFault:
    """Return a file with a handler that has the body `code`, or the fault of this body. Call this function in a compile
    worker.

    The handler is `async` if the body only compiles in an async function.
    """
    content = _handler_around(code)
    fault = find_fault(content.encode("utf-8", "replace"), "handler")
    if fault is None:
        return _only_definitions(content) or content
    async_handler = _handler_around(code, is_async=True)
    return fault if find_fault(async_handler.encode("utf-8", "replace"), "handler") else async_handler


def _only_definitions(content: str) -> SourceFault | None:
    """Return a fault if the body of the handler only defines functions, so that a call would return nothing."""
    tree = parsed_source(content.encode("utf-8", "replace"))
    handler = tree.body[-1] if tree else None
    statements = handler.body if isinstance(handler, ast.FunctionDef) else []
    functions = [statement for statement in statements if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not functions or not all(isinstance(statement, _DEFINITIONS) for statement in statements):
        return None
    last_function = functions[-1]
    call = f"return {'await ' if isinstance(last_function, ast.AsyncFunctionDef) else ''}{last_function.name}(args)"
    return SourceFault(
        f"only defines the function {quoted(last_function.name)} and returns nothing; add a last line such as "
        f"'{call}', or write only the lines of the function",
        last_function.lineno,
    )


def _handler_around(code: str, *, is_async: bool = False) -> str:
    """Return a file with a handler. The first line is its `def`, the next lines are the body."""
    body = _indented(code.replace("\r\n", "\n").replace("\r", "\n").strip("\n"))
    return _HANDLER.format("async " if is_async else "", body)


def _indented(code: str) -> str:
    """Return the code, indented by one level. Lines that begin inside a string are not indented, so strings stay the
    same.
    """
    tree = parsed_source(f"\n{code}".encode("utf-8", "replace"))
    inside = set(_lines_inside_texts(tree)) if tree else set()
    return "\n".join(
        line if number in inside or not line.strip() else _INDENT + line
        for number, line in enumerate(code.split("\n"), 2)
    )


def _lines_inside_texts(tree: ast.Module) -> Iterator[int]:
    """Yield the numbers of the lines that begin inside a string, or between two strings that Python joins."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _TEXTS):
            yield from range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
        else:
            pending.extend(ast.iter_child_nodes(node))
