"""The log of a run: its colours, and `/runs/{id}/events`, with which a page follows an active run."""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Any

import msgspec

from skillery.errors import SkilleryError
from skillery.http.run_streams import OpenStreams, StreamLimits, event, offset_of
from skillery.runs.live_output import LogPart
from skillery.runs.methods import GetRun, ReadRunLog, get_run, read_run_log
from skillery.runs.results import RunRecord
from skillery.web.frame import Direct, PageRequest, is_still_caller
from skillery.web.sending import RAW_HEADERS, sent_content
from skillery.web.views.kinds import ContentKind

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
    texts = _SEQUENCE.split(visible_text)
    parts: list[Part] = []
    colour, is_bold = "", False
    for part, codes in zip(texts[::2], [*texts[1::2], None], strict=True):
        if part:
            parts.append((f"{colour} b".strip() if is_bold else colour, part))
        if codes is not None:
            colour, is_bold = _after(codes, colour, is_bold)
    return parts


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


async def send_events(streams: OpenStreams, request: PageRequest) -> Direct:
    """Send the status, the log and the end of a run as server-sent events. `streams` counts those of all pages.

    With `?poll`, send the next part of the log as JSON. Raise Busy if too many streams are open.
    """
    run_id = request.parameter("id")
    after = offset_of(request.scope, request.headers)
    if "poll" in request.query:
        return await _next_part(request, run_id, after)
    await request.do(get_run, GetRun(run_id=run_id))

    async def send(send: Any) -> None:
        with streams.hold(run_id, request.identity.name):
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
    return sent_content("log.json", msgspec.json.encode(answer), ContentKind("text", "application/json", "JSON"))


@lru_cache(64)
def _log_event(part: LogPart) -> bytes:
    """Return the event of a part of a log. Many readers of a run get the same parts, so the events are cached."""
    return event("log", {"parts": parts_of(part.text)}, part.next)


async def _end_event(_identity: Any, _run_id: str, after: int) -> bytes:
    return event("end", {}, after)


# -- The log on the page of a run --------------------------------------------------------------------------------------


_LOG_BYTES = 64 * 1024


async def first_log(request: PageRequest, run: RunRecord) -> tuple[list[tuple[str, str]], int, bool]:
    """Return the first part of the log, the offset after it, and whether the page omits later parts of an ended log."""
    try:
        log = await request.do(read_run_log, ReadRunLog(run_id=run.run_id, max_bytes=_LOG_BYTES))
    except SkilleryError:
        return parts_of(run.logs_preview), 0, False  # the log has expired, its preview has not
    is_cut = run.status in {"completed", "failed"} and not log.ended
    return parts_of(log.text), log.next, is_cut
