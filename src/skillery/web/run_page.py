"""`/runs/{id}` and `/runs`: one run, which the page follows while it is active, and the list of runs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

import msgspec

from skillery.errors import InvalidParams, NotFound, SkilleryError
from skillery.formats.paths import path_problem
from skillery.formats.tracebacks import failing_frame
from skillery.identity import access
from skillery.method import or_none
from skillery.runs.methods import CancelRun, GetRun, ListRuns, cancel_run, get_run, list_runs, read_trend
from skillery.runs.queries import args_of, read_calls
from skillery.runs.remedies import remedy_of, runs_before, telling_input
from skillery.runs.results import RunPage, RunRecord
from skillery.skills.namespaces import find_contact
from skillery.web.frame import Done, Page, PageRequest, SeeOther, path_of
from skillery.web.run_form import again_of
from skillery.web.run_log import first_log
from skillery.web.run_parts import MOST_BYTES, kept_code, result_of, shown_parts
from skillery.web.sending import start_of
from skillery.web.skill_agent import lines_of_call
from skillery.web.skill_files import SELECTED
from skillery.web.skill_opened import find_in_version
from skillery.web.views.charts import KINDS
from skillery.web.views.shown import Code


async def show_run(request: PageRequest) -> Page:
    """Show a run: its result or its failure, then its log, and next to them its inputs, limits and network."""
    run = await request.do(get_run, GetRun(run_id=request.parameter("id")))
    is_active = run.status in {"queued", "started"}
    log, after, is_cut = await first_log(request, run)
    args = await request.read(partial(args_of, identity=request.identity, run_id=run.run_id))
    code = await _code_of(request, run)
    shown = await shown_parts(request, await result_of(request, run), args, code)
    skill, telling = or_none(run.skill), None
    if run.status == "failed" and skill:
        telling = await request.read_page(partial(telling_input, identity=request.identity, run_id=run.run_id))
    name = f"{skill.name}@{skill.version}" if skill else None
    limits = limits_of(run)
    remedy = remedy_of(run, telling, is_at_limit=any(limit.share >= 100 for limit in limits))
    of_owner = skill if remedy and remedy.step == "owner" else None
    values = {
        "contact": await request.read(partial(find_contact, name=of_owner.name)) if of_owner else "",
        "run": run,
        "is_active": is_active,
        "log": log,
        "after": after,
        "log_is_cut": is_cut,
        "address": path_of("runs", run.run_id),
        "stages": stages_of(run),
        "limits": limits,
        "shown": shown,
        "code_at": code,
        "remedy": remedy,
        "same": or_none(run.same_failure),
        "skill_at": name,
        "again": again_of(run) if request.may("run") else "",
        "earlier": await request.read_page(partial(runs_before, identity=request.identity, run_id=run.run_id)),
        "calls": await request.read(partial(read_calls, identity=request.identity, run_id=run.run_id)),
        "selected": {key: request.query.get(key, "") for key in ("part", *SELECTED)},
        "kinds": KINDS,
        "call": lines_of_call(request, skill.name, skill.version, args, run.tool or "") if skill and args else {},
    }
    title = f"Run of {run.tool or name or run.check_of or run.method}"
    return Page("runs_one.html", title, values, "runs")


async def _code_of(request: PageRequest, run: RunRecord) -> Code | None:
    """Return the code of `run_code`, or the file with the line at which a run of a skill failed.

    Return None if the code is not kept, or if the caller may not read the file.
    """
    error, skill = or_none(run.error), or_none(run.skill)
    traceback = or_none(error.traceback) if error else None
    kept = kept_code(run)
    if kept is not None:
        return msgspec.structs.replace(kept, frame=failing_frame(traceback or "", kept.path))
    frame = failing_frame(traceback, f"/skills/{skill.name}/") if traceback and skill else None
    if skill is None or frame is None or path_problem(frame.path) is not None:
        return None
    try:
        file = await find_in_version(request, skill.name, skill.version, frame.path)
        if file.version.digest != skill.digest:  # a development version has changed
            return None
        opens = partial(file.open, request.site.core.registry.storage)
        content = await asyncio.to_thread(start_of, opens, frame.path, file.size_bytes, MOST_BYTES)
    except (SkilleryError, OSError):
        return None
    return Code(frame.path, content, frame, is_file=True)


async def change_run(request: PageRequest) -> SeeOther:
    """Cancel a run."""
    await request.form()
    access.require(request.identity, "run")
    run = await request.do(cancel_run, CancelRun(run_id=request.parameter("id")))
    text = "The run had already ended." if run.status == "completed" else "The run is cancelled."
    return SeeOther(path_of("runs", run.run_id), Done(text))


# -- Figures of a run: the phases of its time, and what it used of its limits ------------------------------------------


MEBIBYTE = 1 << 20
LIMITS = ("timeout_ms", "memory_mb", "processes", "disk_mb", "cpus", "tmp_mb", "blobs_mb", "log_kb")
"""The limits on the page, in order."""


class Limit(NamedTuple):
    """A limit and its use, in the unit of the limit. `used` is None if the use is not measured."""

    key: str
    allowed: float
    used: float | None

    @property
    def share(self) -> float:
        """The used part of the limit in percent, at most 100."""
        return round(min(100.0, 100 * self.used / self.allowed), 1) if self.used and self.allowed else 0.0


def stages_of(run: RunRecord) -> dict[str, float]:
    """Return the phases of an ended run in order, in milliseconds: queued, prepared, running, collected."""
    if not run.started_at or not run.finished_at or run.duration_ms is None:
        return {}
    used, running_ms = or_none(run.used), run.duration_ms
    outside_ms = max(0.0, (run.finished_at - run.started_at).total_seconds() * 1000 - running_ms)
    prepared = used.prepared_ms if used else None
    parts = {"queued": used.queued_ms} if used and used.queued_ms else {}
    if prepared is None:
        parts |= {"running": running_ms, "prepared and collected": outside_ms}
    else:
        parts |= {
            "prepared": min(prepared, outside_ms),
            "running": running_ms,
            "collected": max(0.0, outside_ms - prepared),
        }
    return parts


def limits_of(run: RunRecord) -> list[Limit]:
    """Return the limits of a run with their use, as far as it is measured."""
    limits, used = msgspec.json.decode(run.limits) or {}, or_none(run.used)
    sizes = {"memory_mb": used.memory_bytes, "disk_mb": used.disk_bytes} if used else {}
    amounts: dict[str, float | None] = {key: None if size is None else size / MEBIBYTE for key, size in sizes.items()}
    amounts |= {"timeout_ms": run.duration_ms, "processes": used.processes if used else None}
    return [Limit(key, limits[key], amounts.get(key)) for key in LIMITS if key in limits]


# -- `/runs`: the runs of the caller, newest first. Admins see the runs of all identities ------------------------------


ROWS = 30
STATUSES = {"": "all", "started": "running", "queued": "queued", "completed": "completed", "failed": "failed"}
AGES = {"": "any time", "1h": "last hour", "24h": "last 24 hours", "168h": "last 7 days", "720h": "last 30 days"}


async def show_runs(request: PageRequest) -> Page | SeeOther:
    """Show the runs that match the filters of the query, or compare two ticked runs."""
    query, ticked = request.query, [value for name, value in request.pairs if name == "compare" and value]
    if len(ticked) == 2:
        return SeeOther(path_of("runs", ticked[0], "compare", ticked[1]))
    filters: dict[str, Any] = {
        "skill": query.get("skill", "").strip(),
        "status": query.get("status", "") if query.get("status") in STATUSES else "",
        "since": query.get("since", "") if query.get("since") in AGES else "",
        "identity": query.get("identity", "").strip(),
    }
    set_filters = {name: value for name, value in filters.items() if value}
    problem: SkilleryError | None = InvalidParams("two runs can be compared. Tick two") if ticked else None
    page, params = RunPage((), None), ListRuns(**set_filters, limit=ROWS, cursor=query.get("cursor", ""))
    trend = None
    try:
        page = await request.do(list_runs, params)
        trend = await request.read_page(partial(read_trend, identity=request.identity, params=params))
    except (InvalidParams, NotFound) as error:
        problem = error
    values = {
        "page": page,
        "trend": trend,
        "is_first": not query.get("cursor"),
        "filters": filters,
        "kept": set_filters,
        "statuses": STATUSES,
        "ages": AGES,
        "problem": problem,
    }
    return Page("runs_list.html", "Runs", values, "runs")
