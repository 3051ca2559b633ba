"""`/runs`: the runs of the caller, newest first. Admins see the runs of all identities."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from skillery.errors import InvalidParams, NotFound, SkilleryError
from skillery.runs.reading import ListRuns, list_runs
from skillery.runs.results import RunPage
from skillery.web.frame import Page, PageRequest

ROWS = 30
STATUSES = {"": "all", "started": "running", "queued": "queued", "completed": "completed", "failed": "failed"}
AGES = {"": "any time", "1h": "last hour", "24h": "last 24 hours", "168h": "last 7 days", "720h": "last 30 days"}


async def show_runs(request: PageRequest) -> Page:
    query = request.query
    filters: dict[str, Any] = {
        "skill": query.get("skill", "").strip(),
        "status": query.get("status", "") if query.get("status") in STATUSES else "",
        "since": query.get("since", "") if query.get("since") in AGES else "",
        "identity": query.get("identity", "").strip(),
    }
    kept = {name: value for name, value in filters.items() if value}
    problem: SkilleryError | None = None
    page = RunPage((), None)
    try:
        page = await request.do(list_runs, ListRuns(**kept, limit=ROWS, cursor=query.get("cursor", "")))
    except (InvalidParams, NotFound) as error:
        problem = error
    following = f"/runs?{urlencode({**kept, 'cursor': page.next_cursor})}" if page.next_cursor else None
    values = {
        "runs": page.runs,
        "next": following,
        "is_first": not query.get("cursor"),
        "filters": filters,
        "kept": kept,
        "first": f"/runs?{urlencode(kept)}" if kept else "/runs",
        "statuses": STATUSES,
        "ages": AGES,
        "problem": problem,
        "is_admin": request.may("admin"),
    }
    return Page("runs_list.html", "Runs", values, "runs")
