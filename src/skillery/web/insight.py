"""`/insight`: what is used and by whom, what fails, which skills reach what, and which searches lead nowhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from skillery.errors import InvalidParams
from skillery.http.requests import send_bytes
from skillery.method import Params
from skillery.runs.failures import ListFailures, list_failures
from skillery.skills.insight import GetActivity, ListSearches, get_activity, has_insight, list_searches
from skillery.skills.reach import ListReach, ReachPage, list_reach
from skillery.web.frame import Answer, Direct, Page, PageRequest
from skillery.web.sending import RAW_HEADERS
from skillery.web.views.tables import Table, as_csv

DAYS = (7, 30, 90)
MOST_COLUMNS = 12
_CSV = "text/csv; charset=utf-8"
_FIELDS = {"namespace": "ns", "skill": "skill", "target": "target", "cursor": "cursor"}
"""Texts of the query, by the name of their param."""


def shows(key: str) -> Callable[[PageRequest], bool]:
    """Return the function that decides who sees a page. Each caller who may publish sees what fails."""
    if key == "failures":
        return lambda request: request.may("publish")
    return lambda request: request.known is not None and has_insight(request.known)


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
    if request.query.get("as") == "csv":
        columns = tab.columns.split()
        cells = ((row[name] for name in columns) for row in tab.rows(result))
        table = Table(columns, [["" if cell is None else str(cell) for cell in row] for row in cells])
        headers = [*RAW_HEADERS, ("content-disposition", f'attachment; filename="{key}.csv"')]
        return Direct(partial(send_bytes, status=200, body=as_csv(table).encode(), kind=_CSV, headers=headers))
    values = {
        "tab": key,
        "tabs": {name: other.words for name, other in TABS.items()},
        "params": params,
        "problem": problem,
        "days": DAYS,
        "sorts": tab.sorts,
        "result": result,
        "same": json.dumps({"method": tab.method.__name__, "params": msgspec.to_builtins(params)}, ensure_ascii=False),
    }
    title = "Insight" if key == "overview" else f"Insight: {tab.words}"
    return Page(f"insight_{key}.html", title, {**values, **tab.values(result)}, "insight")


def _params(request: PageRequest, tab: Tab) -> Params:
    query = request.query
    params: dict[str, Any] = {name: query.get(field, "").strip() for name, field in _FIELDS.items()}
    if (days := query.get("days", "")) in map(str, DAYS):
        params["days"] = int(days)
    if query.get("sort") in tab.sorts:
        params["sort"] = query["sort"]
    params |= {"wanted": query.get("show") != "all", "limit": tab.limit}
    return tab.params(**{name: value for name, value in params.items() if name in tab.params.__struct_fields__})


def _matrix(page: ReachPage) -> dict[str, Any]:
    """Return the columns, which are the most frequent targets, hosts first, and the rows of the table.

    A row has a skill, its reach by column, and its reach of the other targets.
    """
    counts = Counter((reach.kind, reach.target) for skill in page.skills for reach in skill.reach)
    frequent = [key for key, _ in counts.most_common(MOST_COLUMNS)]
    columns = sorted(frequent, key=lambda key: (key[0], key[1].removeprefix("https://")))
    rows = []
    for skill in page.skills:
        others = {(reach.kind, reach.target): reach for reach in skill.reach}
        rows.append((skill, [others.pop(key, None) for key in columns], list(others.values())))
    refused = [(skill, reach) for skill in page.skills for reach in skill.reach if reach.refused]
    return {"columns": columns, "matrix": rows, "attention": refused[:10]}


TABS = {
    "overview": Tab(
        "Overview",
        get_activity,
        GetActivity,
        20,
        "skill runs loads callers failed p95_ms busy_ms last_day",
        lambda report: ({"skill": row.name, **asdict(row)} for row in report.skills),
        {
            "used": "most used",
            "callers": "most callers",
            "failed": "most failures",
            "busy": "most time",
            "unused": "never used",
        },
    ),
    "failures": Tab(
        "Failures",
        list_failures,
        ListFailures,
        20,
        "skill error_type message place runs callers since_version last_version first_day last_at",
        lambda page: map(asdict, page.failures),
        {"harm": "runs × callers", "newest": "newest first"},
    ),
    "reach": Tab(
        "Reach",
        list_reach,
        ListReach,
        50,
        "skill kind target declared granted runs refused bytes_out bytes_in last_day",
        lambda page: ({"skill": skill.name, **asdict(reach)} for skill in page.skills for reach in skill.reach),
        values=_matrix,
    ),
    "searches": Tab(
        "Searches",
        list_searches,
        ListSearches,
        100,
        "words times matched opened callers last_day",
        lambda page: map(asdict, page.searches),
    ),
}
