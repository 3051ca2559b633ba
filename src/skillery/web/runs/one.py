"""`/runs/{id}`: what a run does or has done. The page follows an active run."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

from skillery.backends import Storage
from skillery.contents.blob_rows import BlobRow
from skillery.edge.run_streams import event, offset_of
from skillery.errors import BlobNotFound
from skillery.runs import args_of
from skillery.runs.live_output import LogPart
from skillery.web.frame import CallFailed, Direct, Done, Page, PageRequest, SeeOther, path_of
from skillery.web.headers import RAW_HEADERS
from skillery.web.runs.ansi import parts_of
from skillery.web.runs.outputs import previews_of, tree_of
from skillery.web.skills.raw import send_raw

_LOG_BYTES = 64 * 1024
_WIDTH = 600
LIMITS = {
    "timeout_ms": "Time",
    "memory_mb": "Memory",
    "processes": "Processes",
    "cpus": "Processors",
    "disk_mb": "Files in /workspace",
    "tmp_mb": "Files in /tmp",
    "blobs_mb": "Blobs",
    "log_kb": "Log",
}
_UNITS = {"memory_mb": "MB", "disk_mb": "MB", "tmp_mb": "MB", "blobs_mb": "MB", "log_kb": "kB"}


class Stage(NamedTuple):
    """A part of the time of a run, in the coordinates of the picture."""

    words: str
    ms: float
    x: float
    width: float
    css: str


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
        "stages": _stages(run),
        "width": _WIDTH,
        "limits": _limits(run),
        "args": json.dumps(json.loads(args), ensure_ascii=False, indent=2) if args else None,
        "tree": tree_of(run["output"]) if run["output"] is not None else None,
        "files": await previews_of(request, run),
        "skill_at": name,
        "again": f"{path_of('s', name, 'try')}?run={quote(run['run_id'])}" if name and request.may("run") else None,
        "curl": _curl(request.server, run, args),
        "python": _python(request.server, run, args),
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


def _stages(run: dict[str, Any]) -> list[Stage]:
    if not run["started_at"] or not run["finished_at"] or run["duration_ms"] is None:
        return []
    begun, ended = (datetime.fromisoformat(run[key]) for key in ("started_at", "finished_at"))
    whole = max((ended - begun).total_seconds() * 1000, run["duration_ms"], 1)
    waited = whole - run["duration_ms"]
    first = _WIDTH * waited / whole
    return [
        Stage("preparation, waiting and saving", waited, 0, round(first, 1), "wait"),
        Stage("the code", run["duration_ms"], round(first, 1), round(_WIDTH - first, 1), "work"),
    ]


def _limits(run: dict[str, Any]) -> list[tuple[str, str]]:
    limits = run.get("limits") or {}
    found = []
    for key, words in LIMITS.items():
        if key not in limits:
            continue
        value = f"{limits[key] / 1000:g} s" if key == "timeout_ms" else f"{limits[key]:g} {_UNITS.get(key, '')}".strip()
        if key == "timeout_ms" and run["duration_ms"] is not None:
            value = f"{run['duration_ms'] / 1000:.3g} s of {value}"
        found.append((words, value))
    return found


def _call_of(run: dict[str, Any], args: str | None) -> dict[str, Any] | None:
    skill = run.get("skill")
    if args is None or not skill:
        return None
    params: dict[str, Any] = {"name": skill["name"], "version": skill["version"], "args": json.loads(args)}
    if run["tool"]:
        params = {"name": run["tool"], "skill": skill["name"], "version": skill["version"], "args": json.loads(args)}
    return params


def _curl(server: str, run: dict[str, Any], args: str | None) -> str:
    params = _call_of(run, args)
    if params is None:
        return ""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": run["method"], "params": params}, ensure_ascii=True)
    header = "-H 'Content-Type: application/json' -H \"Authorization: Bearer $SKILLERY_TOKEN\""
    return f"curl {shlex.quote(server + '/rpc')} {header} \\\n  -d {shlex.quote(body)}"


def _python(server: str, run: dict[str, Any], args: str | None) -> str:
    params = _call_of(run, args)
    if params is None:
        return ""
    given = ", ".join(f"{key}={value!a}" for key, value in params.items() if key != "name")
    return (
        f"from skillery.client import Client\n\nclient = Client({server!r})  # reads SKILLERY_TOKEN\n"
        f"run = client.{run['method']}({params['name']!r}, {given})"
    )


async def change_run(request: PageRequest) -> SeeOther:
    """Cancel a run."""
    await request.form()
    request.require("run")
    found = await request.call("cancel_run", {"run_id": request.parameter("id")})
    text = "The run had already ended." if found["status"] == "completed" else "The run is cancelled."
    return SeeOther(path_of("runs", found["run_id"]), Done(text))


async def send_events(request: PageRequest) -> Direct:
    """Send the status, the log and the end of a run as server-sent events."""
    run_id = request.parameter("id")
    await request.call("get_run", {"run_id": run_id})
    after = offset_of(request.scope, request.headers)

    async def send(send: Any) -> None:
        await request.site.streams.send(
            request.identity,
            run_id,
            after,
            request.receive,
            send,
            log_event=_log_event,
            end_event=_end_event,
            headers=tuple((name.encode(), value.encode()) for name, value in RAW_HEADERS),
        )

    return Direct(send)


def _log_event(part: LogPart) -> bytes:
    return event("log", {"parts": parts_of(part.text)}, part.next)


async def _end_event(_identity: Any, _run_id: str, after: int) -> bytes:
    return event("end", {}, after)


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
