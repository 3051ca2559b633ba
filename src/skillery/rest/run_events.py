"""`GET /v1/runs/{run_id}/events`: the log, the progress and the end of a run, as server-sent events."""

from __future__ import annotations

from functools import partial
from typing import Any

from skillery.backends import Identity
from skillery.http.gate import Gate
from skillery.http.operations import Operation, Response, in_query
from skillery.http.requests import only, send_bytes
from skillery.http.run_streams import EVENT_BYTES, EVENTS, OpenStreams, RunStreams, begin_text, offset_of
from skillery.runs import Runner

TEXT = "text/plain"
PATH = "/v1/runs/{run_id}/events"
PATHS = ("/v1/runs/{run_id:str}/events",)

OPERATIONS = (
    Operation(
        "GET",
        PATH,
        "Follow a run",
        {
            200: Response(
                "Events: status, log, gap, progress, end. For Accept: text/plain, the log so far.", kinds=(EVENTS, TEXT)
            )
        },
        (400, 404, 503),
        "read",
        description="The id of an event is an offset in the log. Send it as Last-Event-ID to continue behind it.",
        parameters=(in_query("after", "Offset in the log to begin at, in bytes."),),
        tag="Runs",
    ),
)


class RunEvents:
    """The endpoint that sends the events of a run."""

    def __init__(self, gate: Gate, runner: Runner, streams: OpenStreams) -> None:
        self._gate = gate
        self._runner = runner
        self._streams = RunStreams(runner, streams)

    async def answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Answer `GET /v1/runs/{run_id}/events` with events, or with plain text if the client accepts text/plain."""
        only(scope, "GET", "HEAD")
        identity = await self._gate.admit(scope, headers, "read", "get_run")
        run_id = scope["path"].split("/")[3]
        after = offset_of(scope, headers)
        if scope["method"] == "HEAD":
            (await self._runner.follow_run(identity, run_id)).close()
            await send_bytes(send, 200, b"", EVENTS)
        elif TEXT in headers.get("accept", ""):
            await self._send_log(identity, run_id, send)
        else:
            has_access = partial(self._gate.still_admits, identity, scope, headers)
            await self._streams.send(identity, run_id, after, receive, send, has_access)

    async def _send_log(self, identity: Identity, run_id: str, send: Any) -> None:
        """Send the present log of the run as plain text."""
        followed = await self._runner.follow_run(identity, run_id)
        try:
            await begin_text(send, f"{TEXT}; charset=utf-8")
            after = 0
            while (part := await followed.source.read(after, EVENT_BYTES)).next > after:
                after = part.next
                await send({"type": "http.response.body", "body": part.text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            followed.close()
