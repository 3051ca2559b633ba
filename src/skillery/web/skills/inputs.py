"""The inputs of a skill and of its tools, and its examples, as rows of tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from skillery.formats.check_results import CheckedExample
from skillery.method import or_none
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
    return [_input(str(name), declaration) for name, declaration in declared.items()]


async def tools_of(request: PageRequest, opened: Opened, limit: int = 1000) -> list[ToolRow]:
    """Return the tools of a version. Raise the errors of list_tools."""
    return (await request.do(list_tools, ListTools(skill=f"{opened.name}@{opened.version}", limit=limit))).tools


def tool_of(tool: ToolRow) -> Tool:
    return Tool(tool.name, tool.description, inputs_of(inputs_of_schema(tool.parameters)))


def _input(name: str, declaration: Mapping[str, Any]) -> Input:
    choices = declaration.get("enum")
    return Input(
        name,
        str(declaration.get("description", "")),
        str(declaration.get("type", "any")),
        None if choices is None else [as_json(choice) for choice in choices[:MOST_CHOICES]],
        len(choices or ()),
        as_json(declaration["default"]) if "default" in declaration else None,
        bool(declaration.get("required")),
    )


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:2000]


# -- The examples of a version: the expected results, and the results of the last check --------------------------------


class ShownExample(NamedTuple):
    name: str
    expected: str
    status: str
    duration_ms: float | None
    run_id: str | None
    """None if the caller may not see the run."""


def examples_of(request: PageRequest, opened: Opened) -> list[ShownExample]:
    """Return the examples of a version with the results of the last check."""
    checked = {example.name: example for example in or_none(opened.skill.examples) or ()}
    sees_runs = request.known is not None and (
        "admin" in request.known.scopes or request.known.name == opened.facts.publisher.name
    )
    shown = []
    for number, example in enumerate(opened.skill.manifest.get("examples") or (), 1):
        name = str(example.get("name") or f"Example {number}")
        result = checked.get(name) or CheckedExample(name, "not_run")
        run_id = result.run_id if sees_runs else None
        shown.append(ShownExample(name, _expected(example), result.status, result.duration_ms, run_id))
    return shown


def _expected(example: dict[str, Any]) -> str:
    if "expect_error" in example:
        return f"fails with {example['expect_error']}, as expected"
    for key in ("expect", "expect_subset"):
        if key in example:
            value = example[key]
            if isinstance(value, dict):
                return ", ".join(f"{name} {as_json(part)}" for name, part in value.items())
            return as_json(value)
    return "completes"
