"""`/runs/{id}` and `/runs`: one run, which the page follows while it is active, and the list of runs."""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, urlencode

from skillery.backends import Storage
from skillery.contents.blob_rows import BlobRow
from skillery.errors import BlobNotFound, InvalidParams, NotFound, SkilleryError
from skillery.method import or_none
from skillery.runs.queries import args_of
from skillery.runs.reading import CancelRun, GetRun, ListRuns, ReadRunLog, cancel_run, get_run, list_runs, read_run_log
from skillery.runs.results import RunPage, RunRecord
from skillery.web.frame import Direct, Done, Page, PageRequest, SeeOther, path_of
from skillery.web.runs.events import parts_of
from skillery.web.runs.outputs import WEAKER, WIDTH, limits_of, names_of, output_of, previews_of, stages_of
from skillery.web.skills.raw import send_raw

_LOG_BYTES = 64 * 1024


async def show_run(request: PageRequest) -> Page:
    run = await request.do(get_run, GetRun(run_id=request.parameter("id")))
    is_active = run.status in {"queued", "started"}
    log, after, is_cut = await _log(request, run)
    args = await request.read(partial(args_of, identity=request.identity, run_id=run.run_id))
    skill = or_none(run.skill)
    name = f"{skill.name}@{skill.version}" if skill else None
    mine = run.identity.name == request.identity.name
    values = {
        "run": run,
        "is_active": is_active,
        "log": log,
        "after": after,
        "log_is_cut": is_cut,
        "address": path_of("runs", run.run_id),
        "stages": stages_of(run),
        "width": WIDTH,
        "limits": limits_of(run),
        "weaker": [
            WEAKER.get(limit, f"This host enforces {limit} less strictly.") for limit in or_none(run.degraded) or ()
        ],
        "args": json.dumps(json.loads(args), ensure_ascii=False, indent=2) if args else None,
        **await output_of(request, run),
        "files": await previews_of(request, run),
        "skill_at": name,
        "again": f"{path_of('s', name, 'try')}?run={quote(run.run_id)}" if name and request.may("run") else None,
        "curl": _curl_of(request.server, run, args),
        "python": _python_of(request.server, run, args),
        "can_cancel": is_active and request.may("run") and (mine or request.may("admin")),
    }
    title = f"Run of {run.tool or (name or run.method)}"
    return Page("runs_one.html", title, values, "runs")


async def _log(request: PageRequest, run: RunRecord) -> tuple[list[tuple[str, str]], int, bool]:
    """Return the first part of the log, the offset after it, and whether there is more."""
    try:
        log = await request.do(read_run_log, ReadRunLog(run_id=run.run_id, max_bytes=_LOG_BYTES))
    except SkilleryError:
        return parts_of(run.logs_preview), 0, False  # the log has expired, its preview has not
    is_cut = run.status in {"completed", "failed"} and not log.ended
    return parts_of(log.text), log.next, is_cut


def _call_of(run: RunRecord, args: str | None) -> dict[str, Any] | None:
    """Return the params of the call that made a run, or None if its args are unknown."""
    skill = or_none(run.skill)
    if args is None or not skill:
        return None
    name = {"name": run.tool, "skill": skill.name} if run.tool else {"name": skill.name}
    return {**name, "version": skill.version, "args": json.loads(args)}


def _curl_of(server: str, run: RunRecord, args: str | None) -> str:
    """Return the call of a run for a shell, or "" if its args are unknown."""
    params = _call_of(run, args)
    if params is None:
        return ""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": run.method, "params": params}, ensure_ascii=True)
    header = "-H 'Content-Type: application/json' -H \"Authorization: Bearer $SKILLERY_TOKEN\""
    return f"curl {shlex.quote(server + '/rpc')} {header} \\\n  -d {shlex.quote(body)}"


def _python_of(server: str, run: RunRecord, args: str | None) -> str:
    """Return the call of a run for the Python client, or ""."""
    params = _call_of(run, args)
    if params is None:
        return ""
    values = ", ".join(f"{key}={value!a}" for key, value in params.items() if key != "name")
    return (
        f"from skillery.client import Client\n\nclient = Client({server!r})  # reads SKILLERY_TOKEN\n"
        f"run = client.{run.method}({params['name']!r}, {values})"
    )


async def change_run(request: PageRequest) -> SeeOther:
    """Cancel a run."""
    await request.form()
    request.require("run")
    run = await request.do(cancel_run, CancelRun(run_id=request.parameter("id")))
    text = "The run had already ended." if run.status == "completed" else "The run is cancelled."
    return SeeOther(path_of("runs", run.run_id), Done(text))


class _RunFile(NamedTuple):
    blob: BlobRow
    path: str
    core: Any

    @property
    def sha256(self) -> str:
        return self.blob.sha256

    @property
    def size_bytes(self) -> int:
        return self.blob.size_bytes

    def open(self, _: Storage) -> BinaryIO:
        stream: BinaryIO = self.core.blobs.open(self.blob)
        return stream


async def send_blob(request: PageRequest) -> Direct:
    """Send a blob that a run has written. Raise BlobNotFound if it is not one of this run."""
    run = await request.do(get_run, GetRun(run_id=request.parameter("id")))
    blob_id = request.parameter("blob")
    names = names_of(run)
    if blob_id not in {*run.output_blobs, *names, run.logs_blob}:
        raise BlobNotFound(f"this run has no blob '{blob_id[:80]}'", hint="Open the page of the run.")
    blob = await request.site.core.blobs.find_blob(request.identity, blob_id)
    name = "log.txt" if blob_id == run.logs_blob else names.get(blob_id, blob_id.replace(":", "-"))

    async def send(send: Any) -> None:
        await send_raw(request, _RunFile(blob, name, request.site.core), send)

    return Direct(send)


# -- `/runs`: the runs of the caller, newest first. Admins see the runs of all identities ------------------------------


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
