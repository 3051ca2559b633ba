"""`/runs`: the runs of the caller, newest first. Admins see the runs of all identities."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from skillery.web.frame import CallFailed, Page, PageRequest

ROWS = 30
STATUSES = {"": "all", "started": "running", "queued": "queued", "completed": "completed", "failed": "failed"}
AGES = {"": "any time", "1h": "last hour", "24h": "last 24 hours", "168h": "last 7 days", "720h": "last 30 days"}


async def show_runs(request: PageRequest) -> Page:
    query = request.query
    given = {
        "skill": query.get("skill", "").strip(),
        "status": query.get("status", "") if query.get("status") in STATUSES else "",
        "since": query.get("since", "") if query.get("since") in AGES else "",
        "identity": query.get("identity", "").strip(),
    }
    params: dict[str, Any] = {name: value or None for name, value in given.items()}
    problem = None
    try:
        found = await request.call("list_runs", {**params, "limit": ROWS, "cursor": query.get("cursor") or None})
    except CallFailed as failed:
        if failed.status not in {400, 404}:
            raise
        problem, found = failed, {"runs": [], "next_cursor": None}
    kept = {name: value for name, value in given.items() if value}
    following = f"/runs?{urlencode({**kept, 'cursor': found['next_cursor']})}" if found["next_cursor"] else None
    values = {
        "runs": found["runs"],
        "next": following,
        "is_first": not query.get("cursor"),
        "given": given,
        "kept": kept,
        "first": f"/runs?{urlencode(kept)}" if kept else "/runs",
        "statuses": STATUSES,
        "ages": AGES,
        "problem": problem,
        "is_admin": request.may("admin"),
    }
    return Page("runs_list.html", "Runs", values, "runs")
