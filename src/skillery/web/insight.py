"""`/insight`: what is used and by whom, which skills reach what, and which searches lead nowhere."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from skillery.errors import InvalidParams
from skillery.http.requests import send_bytes
from skillery.method import Params
from skillery.skills.insight import (
    Activity,
    ActivityReport,
    GetActivity,
    ListSearches,
    get_activity,
    has_insight,
    list_searches,
)
from skillery.skills.reach import ListReach, Reach, SkillReach, list_reach
from skillery.web.display import number
from skillery.web.frame import Answer, Direct, Page, PageRequest
from skillery.web.sending import RAW_HEADERS
from skillery.web.views.charts import spark
from skillery.web.views.tables import Table, as_csv

TABS = {"": "Overview", "failures": "Failures", "reach": "Reach", "searches": "Searches"}
DAYS = (7, 30, 90)
SORTS = {
    "used": "most used",
    "callers": "most callers",
    "failed": "most failures",
    "busy": "most time",
    "unused": "never used",
}
MOST_COLUMNS = 12
MOST_ROWS = 50
_CSV = "text/csv; charset=utf-8"


def shows_insight(request: PageRequest) -> bool:
    return request.known is not None and has_insight(request.known)


def _days(request: PageRequest, usual: int) -> int:
    days = request.query.get("days", "")
    return int(days) if days in map(str, DAYS) else usual


def _page(request: PageRequest, tab: str, method: str, params: Params, rows: Table, **values: Any) -> Answer:
    """Return a page of insight, or its rows as CSV if the address says so. `method` and `params` give the same rows."""
    name = tab or "overview"
    if request.query.get("as") == "csv":
        headers = [*RAW_HEADERS, ("content-disposition", f'attachment; filename="{name}.csv"')]
        body = as_csv(rows).encode()
        return Direct(partial(send_bytes, status=200, body=body, kind=_CSV, headers=headers))
    fields = {key: value for key, value in request.query.items() if key != "cursor"}
    shared = {
        "tab": tab,
        "problem": None,
        "tabs": TABS,
        "params": params,
        "days": DAYS,
        "csv": f"{request.path}?{urlencode({**fields, 'as': 'csv'})}",
        "with_cursor": lambda cursor: f"{request.path}?{urlencode({**fields, 'cursor': cursor})}",
        "same": json.dumps({"method": method, "params": msgspec.to_builtins(params)}, ensure_ascii=False),
    }
    title = f"Insight: {TABS[tab]}" if tab else "Insight"
    return Page(f"insight_{name}.html", title, {**shared, **values}, "insight")


# -- `/insight`: get_activity ------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A figure of the period: its words, its value, how it differs from the period before, and its picture."""

    words: str
    value: str
    change: str
    picture: Any = ""
    is_worse: bool = False


async def show_overview(request: PageRequest) -> Answer:
    sort = request.query.get("sort", "")
    params = GetActivity(
        namespace=request.query.get("ns", "").strip(),
        days=_days(request, 30),
        sort=sort if sort in SORTS else "used",  # type: ignore[arg-type]
    )
    problem = None
    try:
        report = await request.do(get_activity, params)
    except InvalidParams as error:
        problem, params = error, msgspec.structs.replace(params, namespace="")
        report = await request.do(get_activity, params)
    head = ["skill", "runs", "loads", "callers", "failed", "p95_ms", "busy_ms", "last_day"]
    rows = [
        [
            *(skill.name, str(skill.runs), str(skill.loads), str(skill.callers), str(skill.failed)),
            *("" if value is None else str(value) for value in (skill.p95_ms, skill.busy_ms, skill.last_day)),
        ]
        for skill in report.skills
    ]
    values = {"report": report, "tiles": _tiles(report, params.days), "sorts": SORTS, "problem": problem}
    return _page(request, "", "get_activity", params, Table(head, rows), **values)


def _tiles(report: ActivityReport, days: int) -> list[Tile]:
    now, before, by_day = report.total, report.before, report.days
    uses, none = [day.runs + day.loads for day in by_day], [0] * days
    failed, failed_before = failed_share(now), failed_share(before)
    was = "" if failed_before is None else f"was {number(failed_before, digits=1)} %"
    return [
        Tile("Uses", number(sum(uses)), _change(sum(uses), before.runs + before.loads), spark(uses, none, "by day")),
        Tile(
            "Callers",
            number(now.callers),
            _change(now.callers, before.callers),
            spark([day.callers for day in by_day], none, "Callers by day"),
        ),
        Tile(
            "Runs that failed",
            "no run" if failed is None else f"{number(failed, digits=1)} %",
            was,
            spark([day.failed for day in by_day], [day.failed for day in by_day], "Failed runs by day"),
            is_worse=(failed or 0) > (failed_before or 0) + 1,
        ),
        Tile("95th percentile", "no run" if report.p95_ms is None else f"{number(report.p95_ms)} ms", ""),
    ]


def failed_share(activity: Activity) -> float | None:
    """Return the failed runs in percent of the completed and failed ones, or None if there are none."""
    ended = activity.completed + activity.failed
    return 100 * activity.failed / ended if ended else None


def _change(now: int, before: int) -> str:
    return f"{100 * (now - before) / before:+.0f} %".replace("-", "−") if before else ""


# -- `/insight/reach`: list_reach --------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """The use of a host or secret by a skill: its words, and the class of their colour."""

    words: str
    kind: str


async def show_reach(request: PageRequest) -> Answer:
    params = ListReach(
        namespace=request.query.get("ns", "").strip(),
        target=request.query.get("target", "").strip(),
        days=_days(request, 90),
        limit=MOST_ROWS,
        cursor=request.query.get("cursor", ""),
    )
    problem = None
    try:
        page = await request.do(list_reach, params)
    except InvalidParams as error:
        problem, params = error, ListReach(limit=MOST_ROWS)
        page = await request.do(list_reach, params)
    # The columns are the most frequent targets, hosts first. All others are listed in a last column.
    counts = Counter((reach.kind, reach.target) for skill in page.skills for reach in skill.reach)
    columns = sorted((key for key, _ in counts.most_common(MOST_COLUMNS)), key=_without_scheme)
    matrix = [(skill, *_cells(skill, columns)) for skill in page.skills]
    names = ["kind", "target", "declared", "granted", "runs", "refused", "bytes_out", "bytes_in", "last_day"]
    rows = [
        [skill.name, *("" if (value := getattr(reach, name)) is None else str(value) for name in names)]
        for skill in page.skills
        for reach in skill.reach
    ]
    values = {"columns": columns, "matrix": matrix, "next": page.next_cursor, "problem": problem}
    values["attention"] = [(skill, reach) for skill in page.skills for reach in skill.reach if reach.refused][:10]
    return _page(request, "reach", "list_reach", params, Table(["skill", *names], rows), **values)


def _without_scheme(key: tuple[str, str]) -> tuple[str, str]:
    return key[0], key[1].removeprefix("https://")


def _cells(skill: SkillReach, columns: list[Any]) -> tuple[list[Cell | None], list[tuple[str, Cell]]]:
    """Return the cells of a row, and the targets that have no column."""
    cells = {(reach.kind, reach.target): cell_of(reach) for reach in skill.reach}
    return [cells.get(key) for key in columns], [(key[1], cell) for key, cell in cells.items() if key not in columns]


def cell_of(reach: Reach) -> Cell:
    if reach.refused and not reach.runs:
        return Cell(f"{number(reach.refused)} refused", "refused")
    if reach.granted is False:
        return Cell("not granted", "off")
    if reach.runs:
        return Cell(number(reach.runs), "used")
    return Cell("never", "unused")


# -- `/insight/searches`: list_searches --------------------------------------------------------------------------------


async def show_searches(request: PageRequest) -> Answer:
    wanted = request.query.get("show") != "all"
    params = ListSearches(wanted=wanted, days=_days(request, 30), limit=100)
    searches = (await request.do(list_searches, params)).searches
    head = list(searches[0].__struct_fields__) if searches else ["words"]
    rows = [[str(getattr(words, name)) for name in head] for words in searches]
    return _page(request, "searches", "list_searches", params, Table(head, rows), searches=searches)
