"""`/insight/failures`: what fails, for publishers and admins; and the same failure on the page of a run."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from skillery.errors import InvalidParams
from skillery.http.requests import HttpRefusal
from skillery.identity import access
from skillery.methods.errors import NOT_FOUND, plain_error
from skillery.runs.failures import FailureGroup, FailurePage, ListFailures, list_failures
from skillery.runs.remedies import split_hint, words_of_exception
from skillery.web.display import counted
from skillery.web.frame import Page, PageRequest, path_of
from skillery.web.views.charts import spark

ROWS = 20
PERIODS = {"7": "7 days", "30": "30 days", "90": "90 days"}
SORTS = {"harm": "runs × callers", "newest": "newest first"}


class Group(NamedTuple):
    """A group of the same failure, with what its page needs besides."""

    failure: FailureGroup
    message: str
    remedy: str
    trend: Markup
    change: str
    """The address of the change from the release before, or ""."""
    yanks: str
    """The page of the last failing version, if the caller can yank it, or ""."""
    reason: str
    """A reason for a yank."""
    times: str
    """The failed runs and their callers: `214 runs of 6 callers`."""


def group_of(request: PageRequest, failure: FailureGroup) -> Group:
    message, hint = split_hint(failure.message)
    remedy = f"{hint[0].upper()}{hint[1:]}." if hint else words_of_exception(failure.error_type, message)
    language = request.language
    callers = counted(failure.callers, "caller", language)
    times = f"{counted(failure.runs, 'run', language)} of {callers}"
    days = counted(len(failure.days), "day", language)
    name, before = failure.skill, failure.before
    publishes = request.known is not None and access.publishes(request.identity, name)
    return Group(
        failure,
        message,
        remedy,
        spark(failure.days, failure.days, f"Runs that failed this way in {days}: {times}"),
        path_of("s", f"{name}@{failure.since_version}", "diff", before.version) if before else "",
        path_of("s", f"{name}@{failure.last_version}") if publishes and not failure.rollback else "",
        f"{failure.error_type} in {times}, since {failure.since_version}" if publishes else "",
        times,
    )


async def show_failures(request: PageRequest) -> Page:
    """Show the failures of the caller's skills, or of all skills for an admin. Raise HttpRefusal 404 for others."""
    if not request.may("publish"):
        hint = "JSON-RPC is at POST /rpc."
        raise HttpRefusal(404, plain_error(NOT_FOUND, "this path does not exist", "not_found", hint))
    query = request.query
    filters: dict[str, Any] = {
        "skill": query.get("skill", "").strip(),
        "ns": query.get("ns", "").strip(),
        "days": query.get("days", "") if query.get("days") in PERIODS else "30",
        "sort": query.get("sort", "") if query.get("sort") in SORTS else "harm",
    }
    problem, page = None, FailurePage([], None)
    params = ListFailures(
        skill=filters["skill"],
        namespace=filters["ns"],
        days=int(filters["days"]),
        sort=filters["sort"],
        limit=ROWS,
        cursor=query.get("cursor", ""),
    )
    try:
        page = await request.do(list_failures, params)
    except InvalidParams as error:
        problem = error
    values = {
        "groups": [group_of(request, failure) for failure in page.failures],
        "filters": filters,
        "periods": PERIODS,
        "sorts": SORTS,
        "problem": problem,
        "is_admin": request.may("admin"),
        "next": f"/insight/failures?{urlencode({**filters, 'cursor': page.next_cursor})}" if page.next_cursor else "",
    }
    return Page("insight_failures.html", "What fails", values, "insight")
