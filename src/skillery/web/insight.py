"""`/insight` and `/s/{ref}/insight`: uses and callers, failures, reach, and searches that lead nowhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from skillery.errors import InvalidParams
from skillery.http.requests import send_bytes
from skillery.method import Params
from skillery.runs.failures import FailureGroup, ListFailures, list_failures
from skillery.skills.insight import ActivityReport, GetActivity, ListSearches, get_activity, has_insight, list_searches
from skillery.skills.reach import ListReach, ReachPage, by_target, list_reach, secrets_of
from skillery.versions.dependents import ListDependents, list_dependents
from skillery.web.display import counted
from skillery.web.frame import Answer, Direct, Page, PageRequest
from skillery.web.sending import RAW_HEADERS
from skillery.web.skill_opened import life_of, open_version, page_of, sees_insight, without_value
from skillery.web.views.tables import Table, as_csv

DAYS = (7, 30, 90)
MOST_COLUMNS = 12
MOST_BY_HOST = 500
"""The maximum number of skills whose hosts and secrets the page by host lists."""
_CSV = "text/csv; charset=utf-8"
_FIELDS = {"namespace": "ns", "skill": "skill", "target": "target", "cursor": "cursor"}
"""Texts of the query, by the name of their param."""


def shows(key: str) -> Callable[[PageRequest], bool]:
    """Return the function that decides who sees a page. Each caller who may publish sees what fails."""
    if key == "failures":
        return lambda request: request.may("publish")
    return lambda request: has_insight(request.identity)


def shows_skill(request: PageRequest) -> bool:
    """Return whether the caller has insight into the skill in the address."""
    return sees_insight(request, request.parameter("ref").partition("@")[0])


class Tab(NamedTuple):
    """A page of insight about the result of one method. The name of its template and of its CSV is its key in TABS."""

    words: str
    method: Callable[..., Any]
    params: type[Params]
    limit: int
    columns: str
    """The columns of its CSV."""
    rows: Callable[[Any], Iterable[dict[str, Any]]]
    """Function that returns the rows of its CSV, from the result of the method."""
    sorts: dict[str, str] = {}
    """The words of each order. The first one is the default."""
    values: Callable[[Any], dict[str, Any]] = lambda _: {}
    """Function that returns further values of its template."""


async def show(request: PageRequest, key: str) -> Answer:
    """Return a page of insight, or its rows as CSV if the address says so. Wrong params become the usual ones."""
    tab, params, problem = TABS[key], _params(request, TABS[key]), None
    try:
        result = await request.do(tab.method, params)
    except InvalidParams as error:
        problem, params = error, tab.params()
        result = await request.do(tab.method, params)
    by = request.query.get("by")
    by_caller, targets = key == "use" and by == "caller", by_target(result) if key == "reach" and by == "host" else None
    if request.query.get("as") == "csv":
        if by_caller:
            return _as_csv(key, _CALLER_COLUMNS, map(asdict, result.callers))
        if targets is not None:
            return _as_csv(key, _TARGET_COLUMNS, (target._asdict() for target in targets))
        return _as_csv(key, tab.columns, tab.rows(result))
    failures: list[FailureGroup] = []
    if key == "overview" and isinstance(params, GetActivity):
        failures = await _failures(request, "", params.namespace, params.days)
    values = {
        "tab": key,
        "tabs": {name: other.words for name, other in TABS.items()},
        "params": params,
        "problem": problem,
        "days": DAYS,
        "sorts": tab.sorts,
        "result": result,
        "by_caller": by_caller,
        "targets": targets,
        "valueless": await without_value(request, secrets_of(result.skills)) if key == "reach" else (),
        "failures": failures,
        "same": json.dumps({"method": tab.method.__name__, "params": msgspec.to_builtins(params)}, ensure_ascii=False),
    }
    title = "Insight" if key == "overview" else f"Insight: {tab.words}"
    return Page(f"insight_{key}.html", title, {**values, **tab.values(result)}, "insight")


async def show_skill(request: PageRequest) -> Answer:
    """Return the page with the use of a skill by version and caller, its failures and its reach, or its rows as CSV."""
    opened = await open_version(request)
    days = _days(request) or 30
    activity = await request.do(get_activity, GetActivity(skill=opened.name, days=days))
    if request.query.get("as") == "csv":
        return _as_csv(opened.name, "version runs loads callers failed busy_ms", map(asdict, activity.versions))
    reach = (await request.do(list_reach, ListReach(skill=opened.name, days=days))).skills
    dependents = await request.do(list_dependents, ListDependents(name=opened.name, limit=20))
    values = {
        "result": activity,
        "days": DAYS,
        "chosen_days": days,
        "reach": reach[0] if reach else None,
        "dependents": dependents,
        "life": await life_of(request, opened),
        "valueless": await without_value(request, secrets_of(reach)),
        "failures": await _failures(request, opened.name, "", days),
    }
    return page_of(request, opened, "insight", "skill_insight.html", part="Insight", **values)


async def _failures(request: PageRequest, skill: str, namespace: str, days: int) -> list[FailureGroup]:
    params = ListFailures(skill=skill, namespace=namespace, days=days, limit=5)
    return (await request.do(list_failures, params)).failures


def _as_csv(name: str, columns: str, rows: Iterable[dict[str, Any]]) -> Direct:
    """Return the rows as a file. `columns` are the keys of each row that the file has."""
    head = columns.split()
    cells = ((row[key] for key in head) for row in rows)
    table = Table(head, [["" if cell is None else _text(cell) for cell in row] for row in cells])
    headers = [*RAW_HEADERS, ("content-disposition", f'attachment; filename="{name}.csv"')]
    return Direct(partial(send_bytes, status=200, body=as_csv(table).encode(), kind=_CSV, headers=headers))


def _text(cell: Any) -> str:
    """Return the text of a cell. A list has spaces between its entries."""
    return " ".join(cell) if isinstance(cell, list) else str(cell)


def _days(request: PageRequest) -> int | None:
    return next((days for days in DAYS if str(days) == request.query.get("days")), None)


def _params(request: PageRequest, tab: Tab) -> Params:
    query = request.query
    params: dict[str, Any] = {name: query.get(field, "").strip() for name, field in _FIELDS.items()}
    if days := _days(request):
        params["days"] = days
    if query.get("sort") in tab.sorts:
        params["sort"] = query["sort"]
    limit = MOST_BY_HOST if query.get("by") == "host" else tab.limit
    params |= {"wanted": query.get("show") != "all", "limit": limit}
    return tab.params(**{name: value for name, value in params.items() if name in tab.params.__struct_fields__})


def _matrix(page: ReachPage) -> dict[str, Any]:
    """Return the columns, which are the most frequent targets, hosts first, and the rows of the table.

    A row has a skill, its reach by column, and its reach of the other targets.
    """
    counts = Counter((reach.kind, reach.target) for skill in page.skills for reach in skill.reach)
    frequent = [key for key, _ in counts.most_common(MOST_COLUMNS)]
    columns = sorted(frequent, key=lambda key: (key[0], key[1].removeprefix("https://")))
    rows = []
    for skill in filter(attrgetter("reach"), page.skills):
        others = {(reach.kind, reach.target): reach for reach in skill.reach}
        rows.append((skill, [others.pop(key, None) for key in columns], list(others.values())))
    refused = [(skill, reach) for skill in page.skills for reach in skill.reach if reach.refused]
    return {"columns": columns, "matrix": rows, "attention": refused[:10]}


def _skills(report: ActivityReport) -> Iterable[dict[str, Any]]:
    return ({"skill": row.name, **asdict(row)} for row in report.skills)


def _reach(page: ReachPage) -> Iterator[dict[str, Any]]:
    """Yield the hosts, secrets and required skills of each skill, and those that calls of a required skill reach."""
    for skill in page.skills:
        row = dict.fromkeys(_REACH_COLUMNS.split()) | {"skill": skill.name, "through": ""}
        for reach in skill.reach:
            yield row | asdict(reach)
        for each in skill.requires:
            yield row | {"kind": "skill", "target": f"{each.name}@{each.version}"}
            for kind, targets in (("host", each.network), ("secret", each.secrets)):
                yield from (row | {"kind": kind, "target": target, "through": each.name} for target in targets)
        if skill.requires_hidden:
            yield row | {"kind": "skill", "target": counted(skill.requires_hidden, "hidden skill")}


_REACH_COLUMNS = "skill kind target declared granted runs refused bytes_out bytes_in last_day"
_SKILL_COLUMNS = "skill runs loads callers failed p95_ms busy_ms last_day"
_TARGET_COLUMNS = "kind target skills runs refused last_day"
_CALLER_COLUMNS = "caller skills runs loads failed busy_ms last_day"
TABS = {
    "overview": Tab("Overview", get_activity, GetActivity, 10, _SKILL_COLUMNS, _skills),
    "failures": Tab(
        "Failures",
        list_failures,
        ListFailures,
        20,
        "skill error_type message place runs callers since_version last_version first_day last_at",
        lambda page: map(asdict, page.failures),
        {"harm": "runs × callers", "newest": "newest first"},
    ),
    "use": Tab(
        "Use",
        get_activity,
        GetActivity,
        200,
        _SKILL_COLUMNS,
        _skills,
        {
            "used": "most used",
            "unused": "not used",
            "slow": "slow",
            "busy": "expensive",
            "failed": "failing",
            "callers": "most callers",
            "deprecated": "deprecated but used",
        },
    ),
    "reach": Tab("Reach", list_reach, ListReach, 50, f"{_REACH_COLUMNS} through", _reach, values=_matrix),
    "searches": Tab(
        "Searches",
        list_searches,
        ListSearches,
        100,
        "words times matched opened callers last_day",
        lambda page: map(asdict, page.searches),
    ),
}
