"""`/runs/{id}`: what a run does or has done. The page follows an active run."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

from skillery.backends import Storage
from skillery.contents.blob_rows import BlobRow
from skillery.errors import BlobNotFound
from skillery.runs import args_of
from skillery.web.frame import CallFailed, Direct, Done, Page, PageRequest, SeeOther, path_of
from skillery.web.runs.ansi import parts_of
from skillery.web.runs.calls import curl_of, python_of
from skillery.web.runs.figures import WEAKER, WIDTH, limits_of, stages_of
from skillery.web.runs.outputs import output_of, previews_of
from skillery.web.skills.raw import send_raw

_LOG_BYTES = 64 * 1024


async def show_run(request: PageRequest) -> Page:
    run = await request.call("get_run", {"run_id": request.parameter("id")})
    is_active = run["status"] in {"queued", "started"}
    log, after, is_cut = await _log(request, run)
    args = await request.site.core.registry.read(partial(args_of, identity=request.identity, run_id=run["run_id"]))
    skill = run.get("skill")
    name = f"{skill['name']}@{skill['version']}" if skill else None
    mine = run["identity"]["name"] == request.identity.name
    values = {
        "run": run,
        "is_active": is_active,
        "log": log,
        "after": after,
        "log_is_cut": is_cut,
        "address": path_of("runs", run["run_id"]),
        "stages": stages_of(run),
        "width": WIDTH,
        "limits": limits_of(run),
        "weaker": [WEAKER.get(one, f"This host enforces {one} less strictly.") for one in run.get("degraded") or ()],
        "args": json.dumps(json.loads(args), ensure_ascii=False, indent=2) if args else None,
        **await output_of(request, run),
        "files": await previews_of(request, run),
        "skill_at": name,
        "again": f"{path_of('s', name, 'try')}?run={quote(run['run_id'])}" if name and request.may("run") else None,
        "curl": curl_of(request.server, run, args),
        "python": python_of(request.server, run, args),
        "can_cancel": is_active and request.may("run") and (mine or request.may("admin")),
    }
    title = f"Run of {run['tool'] or (name or run['method'])}"
    return Page("runs_one.html", title, values, "runs")


async def _log(request: PageRequest, run: dict[str, Any]) -> tuple[list[tuple[str, str]], int, bool]:
    """Return the first part of the log, the offset after it, and whether there is more."""
    try:
        found = await request.call("read_run_log", {"run_id": run["run_id"], "after": 0, "max_bytes": _LOG_BYTES})
    except CallFailed:
        return parts_of(run["logs_preview"]), 0, False  # the log has expired, its preview has not
    is_cut = run["status"] in {"completed", "failed"} and not found["ended"]
    return parts_of(found["text"]), found["next"], is_cut


async def change_run(request: PageRequest) -> SeeOther:
    """Cancel a run."""
    await request.form()
    request.require("run")
    found = await request.call("cancel_run", {"run_id": request.parameter("id")})
    text = "The run had already ended." if found["status"] == "completed" else "The run is cancelled."
    return SeeOther(path_of("runs", found["run_id"]), Done(text))


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
    run = await request.call("get_run", {"run_id": request.parameter("id")})
    blob_id = request.parameter("blob")
    names = {one["blob_id"]: one["path"] for one in run.get("files") or ()}
    if blob_id not in {*run["output_blobs"], *names, run["logs_blob"]}:
        raise BlobNotFound(f"this run has no blob '{blob_id[:80]}'", hint="Open the page of the run.")
    blob = await request.site.core.blobs.find_blob(request.identity, blob_id)
    name = "log.txt" if blob_id == run["logs_blob"] else names.get(blob_id, blob_id.replace(":", "-"))

    async def send(send: Any) -> None:
        await send_raw(request, _RunFile(blob, name, request.site.core), send)

    return Direct(send)
