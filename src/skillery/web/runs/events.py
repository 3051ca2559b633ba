"""`/runs/{id}/events`: the page of a run follows its log as a stream of events, or asks for the next part."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import msgspec

from skillery.edge.http import send_bytes
from skillery.edge.run_streams import OpenStreams, StreamLimits, event, offset_of
from skillery.runs.live_output import LogPart
from skillery.runs.reading import GetRun, ReadRunLog, get_run, read_run_log
from skillery.web.callers import is_still_caller
from skillery.web.frame import Direct, PageRequest
from skillery.web.headers import RAW_HEADERS
from skillery.web.runs.ansi import parts_of

LIMITS = StreamLimits(of_run=200, of_identity=4, in_all=200)
"""Browsers open at most six connections to a server, so a user with many tabs gets few streams. Pages without a stream
ask for the log every second. The settings `runs.streams…` apply too.
"""
_POLL_BYTES = 64 * 1024


class Events:
    """The handler of the events of runs."""

    def __init__(self) -> None:
        self._open = OpenStreams(LIMITS)

    async def send(self, request: PageRequest) -> Direct:
        """Send the status, the log and the end of a run as server-sent events. With `?poll`, send the next part of the
        log as JSON. Raise Busy if too many streams are open.
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
    """Return the event of a part. Many readers of a run get the same parts."""
    return event("log", {"parts": parts_of(part.text)}, part.next)


async def _end_event(_identity: Any, _run_id: str, after: int) -> bytes:
    return event("end", {}, after)
