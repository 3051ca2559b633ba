"""`/s/{ref}`: what a skill does, how to use it, what it may do, and how it is used."""

from __future__ import annotations

from typing import Any, NamedTuple

from markupsafe import Markup

from skillery.web.frame import CallFailed, Page, PageRequest
from skillery.web.markdown import Place, split_frontmatter
from skillery.web.skills.examples import examples_of, json_of
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
        "examples": examples_of(request, opened),
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
                "choices": None if choices is None else [json_of(choice) for choice in choices[:50]],
                "choices_count": len(choices or ()),
                "default": json_of(one["default"]) if "default" in one else None,
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
