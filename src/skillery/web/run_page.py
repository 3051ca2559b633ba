"""`/runs/{id}` and `/runs`: one run, which the page follows while it is active, and the list of runs."""

from __future__ import annotations

import json
import re
import shlex
from functools import lru_cache, partial
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from skillery.backends import Storage
from skillery.contents.blob_rows import BlobRow
from skillery.errors import BlobNotFound, InvalidParams, NotFound, SkilleryError
from skillery.http.requests import send_bytes
from skillery.http.run_streams import OpenStreams, StreamLimits, event, offset_of
from skillery.method import or_none
from skillery.runs.live_output import LogPart
from skillery.runs.methods import CancelRun, GetRun, ListRuns, ReadRunLog, cancel_run, get_run, list_runs, read_run_log
from skillery.runs.queries import args_of
from skillery.runs.results import RunPage, RunRecord
from skillery.web.frame import Direct, Done, Page, PageRequest, SeeOther, is_still_caller, path_of
from skillery.web.run_outputs import WEAKER, WIDTH, limits_of, names_of, output_of, previews_of, stages_of
from skillery.web.sending import RAW_HEADERS
from skillery.web.skill_files import send_raw

# -- Colours of logs: the escape sequences of terminals as (class, text) -----------------------------------------------


# Logs have control characters in escaped form: ESC is the text \x1b.
_SEQUENCE = re.compile(
    r"\\x1b\[(?P<codes>[0-9;:]*)m"
    r"|\\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\\x1b[\]PX^_].*?(?:\\x07|\\x1b\\|$)"
    r"|\\x1b[ -/]*[0-~]"
    r"|\\x9b[0-?]*[ -/]*[@-~]",
    re.MULTILINE,
)
_OVERWRITTEN = re.compile(r"^.*\\x0d(?=.)", re.MULTILINE)
Part = tuple[str, str]


def parts_of(text: str) -> list[Part]:
    """Return a part of a log as pairs of CSS class and text.

    The classes are `f0` to `f15` for 16 colours, and `b` for bold. All other escape sequences are removed: movements of
    the cursor, titles, links. Of a line that was overwritten with carriage returns, the last text remains.
    """
    visible_text = _OVERWRITTEN.sub("", text).replace("\\x0d\n", "\n")
    parts: list[Part] = []
    colour, is_bold, end = "", False, 0
    for match in _SEQUENCE.finditer(visible_text):
        _add(parts, colour, is_bold, visible_text[end : match.start()])
        end = match.end()
        if match["codes"] is not None:
            colour, is_bold = _after(match["codes"], colour, is_bold)
    _add(parts, colour, is_bold, visible_text[end:])
    return parts


def _add(parts: list[Part], colour: str, is_bold: bool, text: str) -> None:
    if text:
        parts.append((f"{colour} b".strip() if is_bold else colour, text))


def _after(codes: str, colour: str, is_bold: bool) -> tuple[str, bool]:
    """Return the colour and boldness after an escape sequence with these codes."""
    if ":" in codes or ";5;" in codes or ";2;" in codes:
        return colour, is_bold  # one of 256 or more colours: not shown
    for code in codes.split(";"):
        number = int(code[:4]) if code else 0
        if number == 0:
            colour, is_bold = "", False
        elif number in {1, 22}:
            is_bold = number == 1
        elif 30 <= number <= 37:
            colour = f"f{number - 30}"
        elif 90 <= number <= 97:
            colour = f"f{number - 82}"
        elif number == 39:
            colour = ""
    return colour, is_bold


# -- `/runs/{id}/events`: the page of a run follows its log as a stream of events, or asks for the next part -----------

LIMITS = StreamLimits(of_run=200, of_identity=4, in_all=200)
"""Browsers open at most six connections to a server, so a user with many tabs gets few streams. Pages without a stream
ask for the log every second. The settings `runs.streams…` apply too.
"""
_POLL_BYTES = 64 * 1024


class Events:
    """The handler of `/runs/{id}/events`."""

    def __init__(self) -> None:
        self._open = OpenStreams(LIMITS)

    async def send(self, request: PageRequest) -> Direct:
        """Send the status, the log and the end of a run as server-sent events.

        With `?poll`, send the next part of the log as JSON. Raise Busy if too many streams are open.
        """
        run_id = request.parameter("id")
        after = offset_of(request.scope, request.headers)
        if "poll" in request.query:
            return await _next_part(request, run_id, after)
        await request.do(get_run, GetRun(run_id=run_id))

        async def send(send: Any) -> None:
            with self._open.hold(run_id, request.identity.name):
                await request.site.streams.send(
                    request.identity,
                    run_id,
                    after,
                    request.receive,
                    send,
                    partial(is_still_caller, request),
                    log_event=_log_event,
                    end_event=_end_event,
                    headers=tuple((name.encode(), value.encode()) for name, value in RAW_HEADERS),
                )

        return Direct(send)


async def _next_part(request: PageRequest, run_id: str, after: int) -> Direct:
    """Return the answer to `?poll`: the part of the log from the offset `after`, as JSON."""
    log = await request.do(read_run_log, ReadRunLog(run_id=run_id, after=after, max_bytes=_POLL_BYTES))
    answer = {
        "status": log.status,
        "next": log.next,
        "ended": log.ended,
        "parts": parts_of(log.text),
        "bytes": log.dropped_bytes,
    }
    headers = [*RAW_HEADERS, ("cache-control", "no-store")]

    async def send(send: Any) -> None:
        await send_bytes(send, 200, msgspec.json.encode(answer), "application/json", headers)

    return Direct(send)


@lru_cache(64)
def _log_event(part: LogPart) -> bytes:
    """Return the event of a part of a log. Many readers of a run get the same parts, so the events are cached."""
    return event("log", {"parts": parts_of(part.text)}, part.next)


async def _end_event(_identity: Any, _run_id: str, after: int) -> bytes:
    return event("end", {}, after)


_LOG_BYTES = 64 * 1024


async def show_run(request: PageRequest) -> Page:
    """Show a run with its log, output, files, limits, and the call that repeats it."""
    run = await request.do(get_run, GetRun(run_id=request.parameter("id")))
    is_active = run.status in {"queued", "started"}
    log, after, is_cut = await _log(request, run)
    args = await request.read(partial(args_of, identity=request.identity, run_id=run.run_id))
    skill = or_none(run.skill)
    name = f"{skill.name}@{skill.version}" if skill else None
    is_own = run.identity.name == request.identity.name
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
        "can_cancel": is_active and request.may("run") and (is_own or request.may("admin")),
    }
    title = f"Run of {run.tool or (name or run.method)}"
    return Page("runs_one.html", title, values, "runs")


async def _log(request: PageRequest, run: RunRecord) -> tuple[list[tuple[str, str]], int, bool]:
    """Return the first part of the log, the offset after it, and whether the page omits later parts of an ended log."""
    try:
        log = await request.do(read_run_log, ReadRunLog(run_id=run.run_id, max_bytes=_LOG_BYTES))
    except SkilleryError:
        return parts_of(run.logs_preview), 0, False  # the log has expired, its preview has not
    is_cut = run.status in {"completed", "failed"} and not log.ended
    return parts_of(log.text), log.next, is_cut


def _call_of(run: RunRecord, args: str | None) -> dict[str, Any] | None:
    """Return the params of the call that started a run, or None if its args are unknown."""
    skill = or_none(run.skill)
    if args is None or not skill:
        return None
    name = {"name": run.tool, "skill": skill.name} if run.tool else {"name": skill.name}
    return {**name, "version": skill.version, "args": json.loads(args)}


def _curl_of(server: str, run: RunRecord, args: str | None) -> str:
    """Return a curl command that repeats the run, or "" if its args are unknown."""
    params = _call_of(run, args)
    if params is None:
        return ""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": run.method, "params": params}, ensure_ascii=True)
    header = "-H 'Content-Type: application/json' -H \"Authorization: Bearer $SKILLERY_TOKEN\""
    return f"curl {shlex.quote(server + '/rpc')} {header} \\\n  -d {shlex.quote(body)}"


def _python_of(server: str, run: RunRecord, args: str | None) -> str:
    """Return Python code that repeats the run, or "" if its args are unknown."""
    params = _call_of(run, args)
    if params is None:
        return ""
    (_, name), *others = params.items()
    values = ", ".join(f"{key}={value!a}" for key, value in others)
    return (
        f"from skillery.client import Client\n\nclient = Client({server!r})  # reads SKILLERY_TOKEN\n"
        f"run = client.{run.method}({name!r}, {values})"
    )


async def change_run(request: PageRequest) -> SeeOther:
    """Cancel a run."""
    await request.form()
    request.require("run")
    run = await request.do(cancel_run, CancelRun(run_id=request.parameter("id")))
    text = "The run had already ended." if run.status == "completed" else "The run is cancelled."
    return SeeOther(path_of("runs", run.run_id), Done(text))


class _RunFile(NamedTuple):
    """A blob of a run, in the form that `send_raw` takes."""

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
    """Send a blob that a run has written, or its log. Raise BlobNotFound for other blobs."""
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
    """Show the runs that match the filters of the query."""
    query = request.query
    filters: dict[str, Any] = {
        "skill": query.get("skill", "").strip(),
        "status": query.get("status", "") if query.get("status") in STATUSES else "",
        "since": query.get("since", "") if query.get("since") in AGES else "",
        "identity": query.get("identity", "").strip(),
    }
    set_filters = {name: value for name, value in filters.items() if value}
    problem: SkilleryError | None = None
    page = RunPage((), None)
    try:
        page = await request.do(list_runs, ListRuns(**set_filters, limit=ROWS, cursor=query.get("cursor", "")))
    except (InvalidParams, NotFound) as error:
        problem = error
    next_address = f"/runs?{urlencode({**set_filters, 'cursor': page.next_cursor})}" if page.next_cursor else None
    values = {
        "runs": page.runs,
        "next": next_address,
        "is_first": not query.get("cursor"),
        "filters": filters,
        "kept": set_filters,
        "first": f"/runs?{urlencode(set_filters)}" if set_filters else "/runs",
        "statuses": STATUSES,
        "ages": AGES,
        "problem": problem,
        "is_admin": request.may("admin"),
    }
    return Page("runs_list.html", "Runs", values, "runs")
