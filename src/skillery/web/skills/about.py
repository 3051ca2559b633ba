"""`/s/{ref}`: what a skill does, how to use it, what it may do, and how it is used."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from markupsafe import Markup

from skillery.web.frame import CallFailed, Page, PageRequest
from skillery.web.markdown import Place, split_frontmatter
from skillery.web.skills.opened import Opened, may_change, open_version, page_of
from skillery.web.skills.snippets import CLIENTS, snippet_of

FIRST_INPUTS = 8
_MOST_SKILL_MD = 1024 * 1024
_HEIGHT = 56
VISIBILITIES = {
    "public": "all users of this server",
    "namespace": "users with a grant for its name",
    "private": "its publishers",
}


class ShownExample(NamedTuple):
    name: str
    expected: str
    status: str
    duration_ms: float | None
    run_id: str | None
    """None if the caller may not see the run."""


class Bar(NamedTuple):
    """A day of the chart, in the coordinates of the picture."""

    x: int
    y: int
    height: int
    failed: int
    """Height of the failed runs."""


async def show_about(request: PageRequest) -> Page:
    return await about_page(request)


async def about_page(request: PageRequest, values: dict[str, Any] | None = None, status: int = 200) -> Page:
    """Return the page. `values` replaces values of the template, for a change that was refused."""
    opened = await open_version(request, "full")
    skill = opened.skill
    skill_md = skill.get("skill_md") or ""
    frontmatter, body = split_frontmatter(skill_md)
    shown = await request.site.texts.markdown(
        opened.digest, Place(opened.exact, "SKILL.md"), body if len(body) <= _MOST_SKILL_MD else body[:_MOST_SKILL_MD]
    )
    can_change = may_change(request, opened.name)
    labels = (await request.call("list_labels", {"name": opened.name, "limit": 1}))["labels"] if can_change else []
    more = {
        "files_count": len(skill.get("files") or ()),
        "inputs": _inputs(skill["manifest"]),
        "first_inputs": FIRST_INPUTS,
        "tools": await _tools(request, opened),
        "examples": _examples(request, opened),
        "findings": skill.get("findings") or [],
        "skill_md": Markup("\n").join(shown.lines),
        "skill_md_is_plain": shown.is_plain,
        "frontmatter": frontmatter,
        "clients": CLIENTS,
        "snippet": snippet_of(request, opened),
        "may_do": _may_do(skill["manifest"]),
        "usage": skill.get("usage") or {},
        "days": opened.facts.days,
        "bars": _bars(opened.facts.days),
        "can_change": can_change,
        "all_labels": labels,
        "visibilities": VISIBILITIES,
        "problem": None,
        "typed": {},
    }
    page = page_of(request, opened, "about", "skill_about.html", **{**more, **(values or {})})
    return page._replace(status=status)


def _inputs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, one in (manifest.get("inputs") or {}).items():
        choices = one.get("enum")
        rows.append(
            {
                "name": name,
                "description": one.get("description", ""),
                "type": one.get("type", "any"),
                "choices": None if choices is None else [_json(choice) for choice in choices[:50]],
                "choices_count": len(choices or ()),
                "default": _json(one["default"]) if "default" in one else None,
                "required": bool(one.get("required")),
            }
        )
    return rows


async def _tools(request: PageRequest, opened: Opened) -> list[dict[str, Any]]:
    try:
        found = await request.call("list_tools", {"skill": f"{opened.name}@{opened.version}", "limit": 100})
    except CallFailed:
        return []  # a withdrawn version offers no tools
    tools: list[dict[str, Any]] = found["tools"]
    return tools


def _examples(request: PageRequest, opened: Opened) -> list[ShownExample]:
    checked = {one["name"]: one for one in opened.skill.get("examples") or ()}
    sees_runs = request.known is not None and (
        "admin" in request.known.scopes or request.known.name == opened.facts.publisher.name
    )
    found = []
    for number, one in enumerate(opened.skill["manifest"].get("examples") or (), 1):
        name = str(one.get("name") or f"Example {number}")
        result = checked.get(name, {})
        run_id = result.get("run_id") if sees_runs else None
        status = result.get("status", "not_run")
        found.append(ShownExample(name, _expected(one), status, result.get("duration_ms"), run_id))
    return found


def _expected(example: dict[str, Any]) -> str:
    if "expect_error" in example:
        return f"fails with {example['expect_error']}, as expected"
    for key in ("expect", "expect_subset"):
        if key in example:
            value = example[key]
            if isinstance(value, dict):
                return ", ".join(f"{name} {_json(part)}" for name, part in value.items())
            return _json(value)
    return "completes"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:2000]


def _may_do(manifest: dict[str, Any]) -> dict[str, Any]:
    runtime = manifest.get("runtime") or {}
    permissions = manifest.get("permissions") or {}
    return {
        "runs_code": bool(runtime),
        "hosts": permissions.get("network") or [],
        "secrets": permissions.get("secrets") or [],
        "limits": runtime.get("limits") or {},
        "workspace": bool(runtime.get("workspace")),
        "packages": len(runtime.get("dependencies") or ()),
    }


def _bars(days: list[Any]) -> list[Bar]:
    """Return the bars of the chart. A day with runs has a height of at least one pixel."""
    highest = max((day.runs for day in days), default=0)
    if not highest:
        return []
    bars = []
    for number, day in enumerate(days):
        height = max(1, round(day.runs / highest * (_HEIGHT - 3))) if day.runs else 0
        failed = max(1, round(day.failed / highest * (_HEIGHT - 3))) if day.failed else 0
        bars.append(Bar(number * 10, _HEIGHT - 1 - height, height, failed))
    return bars
