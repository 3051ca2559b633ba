"""The inputs of a skill and of its tools, as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from skillery.tools.tool_listings import ListTools, ToolRow, list_tools
from skillery.web.frame import PageRequest
from skillery.web.runs.fields import inputs_of_schema
from skillery.web.skills.opened import Opened

MOST_CHOICES = 50


class Input(NamedTuple):
    """An input. Values are JSON."""

    name: str
    description: str
    type: str
    choices: list[str] | None
    """The first allowed values. None: all values of the type."""
    choices_count: int
    default: str | None
    required: bool


class Tool(NamedTuple):
    name: str
    description: str
    inputs: list[Input]


def inputs_of(declared: Mapping[str, Mapping[str, Any]]) -> list[Input]:
    """Return the rows of `[inputs]`."""
    return [_input(str(name), one) for name, one in declared.items()]


async def tools_of(request: PageRequest, opened: Opened, limit: int = 1000) -> list[ToolRow]:
    """Return the tools of a version. Raise the errors of list_tools."""
    return (await request.do(list_tools, ListTools(skill=f"{opened.name}@{opened.version}", limit=limit))).tools


def tool_of(tool: ToolRow) -> Tool:
    return Tool(tool.name, tool.description, inputs_of(inputs_of_schema(tool.parameters)))


def _input(name: str, one: Mapping[str, Any]) -> Input:
    choices = one.get("enum")
    return Input(
        name,
        str(one.get("description", "")),
        str(one.get("type", "any")),
        None if choices is None else [as_json(choice) for choice in choices[:MOST_CHOICES]],
        len(choices or ()),
        as_json(one["default"]) if "default" in one else None,
        bool(one.get("required")),
    )


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:2000]
