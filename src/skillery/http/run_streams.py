"""The events of a run as server-sent events, for programs (`rest`) and for pages (`web`)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import cycle
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from skillery.backends import Identity
from skillery.errors import Busy, InvalidParams
from skillery.formats.wording import quoted
from skillery.http.gate import Gate
from skillery.http.operations import Operation, Response, in_query
from skillery.http.requests import disconnected, only, send_bytes
from skillery.methods.errors import encode
from skillery.runs.followed_runs import Followed, Following
from skillery.runs.live_output import LogPart

EVENTS = "text/event-stream"
PAUSE_SECONDS = 0.1
"""A client of an active run gets at most one log event in about this time (seconds), however much the code prints."""
TURNS = 32
"""Groups of clients. The clients of a group get their events at the same time, so an event is made once for a group.
The groups take turns, so that other requests do not wait for the events of all clients. More groups encode an event
more often: `python -m bench.followers` measures both.
"""
HEARTBEAT_SECONDS = 15.0
EVENT_BYTES = 16 * 1024
SEND_BUFFER_BYTES = 64 * 1024
"""Send buffer of the socket. By default, the kernel buffers up to 4 MiB for a client that does not read."""
RETRY_MS = 2000
ACCESS_SECONDS = 0.8
"""Interval of the checks whether the caller of a stream still has access."""

LogEvent = Callable[[LogPart], bytes]
"""Returns the event of a part of the log."""
EndEvent = Callable[[Identity, str, int], Awaitable[bytes]]
"""Returns the last event of a run. The arguments are the caller, the id of the run and the offset of the end."""
HasAccess = Callable[[], Awaitable[bool]]
"""Returns whether the caller of a stream still has the rights with which the stream began."""


class StreamLimits(NamedTuple):
    """Limits of the number of open streams: of one run, of one identity, and of the whole server."""

    of_run: int
    of_identity: int
    in_all: int


class OpenStreams:
    """Counts the open event streams."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._of_run: Counter[str] = Counter()
        self._of_identity: Counter[str] = Counter()

    @contextmanager
    def hold(self, run_id: str, identity: str) -> Iterator[None]:
        """Count one stream as open during the `with` block. Raise Busy if a limit is reached."""
        for count, most, name in (
            (self._of_run[run_id], self._limits.of_run, "runs.streams_per_run"),
            (self._of_identity[identity], self._limits.of_identity, "runs.streams_per_identity"),
            (self._of_run.total(), self._limits.in_all, "runs.streams"),
        ):
            if count >= most:
                raise Busy(
                    f"{count} streams of events are open, as many as the setting {name} allows",
                    hint="Close one, or read the log with read_run_log.",
                    retry_after_ms=RETRY_MS,
                )
        self._of_run[run_id] += 1
        self._of_identity[identity] += 1
        try:
            yield
        finally:
            _subtract(self._of_run, run_id)
            _subtract(self._of_identity, identity)


def _subtract(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class RunStreams:
    """Sends the events of runs to clients."""

    def __init__(self, following: Following, streams: OpenStreams) -> None:
        self.following = following
        self._streams = streams
        self._turns = cycle(range(TURNS))

    async def send(
        self,
        identity: Identity,
        run_id: str,
        after: int,
        receive: Any,
        send: Any,
        has_access: HasAccess,
        log_event: LogEvent | None = None,
        end_event: EndEvent | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Send the events of a run until the run has ended, the client disconnects, the caller loses access, or the
        server stops. `after` is an offset in the log.

        Raise Busy if too many streams are open. Raise the errors of `Following.open`.
        """
        followed = await self.following.open(identity, run_id)
        try:
            with self._streams.hold(run_id, identity.name):
                _bound_buffer(receive)
                fixed = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
                await begin_text(send, EVENTS, *fixed, *headers)
                gone = asyncio.ensure_future(_gone(receive, has_access))
                try:
                    events = self._events(
                        identity, run_id, followed, after, gone, log_event or _log_event, end_event or self._end_event
                    )
                    async for event in events:
                        await send({"type": "http.response.body", "body": event, "more_body": True})
                finally:
                    gone.cancel()
                has_disconnected = gone.done() and gone.result()
                if not has_disconnected:
                    await send({"type": "http.response.body", "body": b""})
        finally:
            followed.close()

    async def _end_event(self, identity: Identity, run_id: str, after: int) -> bytes:
        return event("end", await self.following.get_run(identity, run_id), after)

    async def _events(
        self,
        identity: Identity,
        run_id: str,
        followed: Followed,
        after: int,
        gone: asyncio.Future[bool],
        log_event: LogEvent,
        end_event: EndEvent,
    ) -> AsyncIterator[bytes]:
        source, status, progress, turn = followed.source, None, None, next(self._turns)
        while not gone.done():
            changed = source.changed()
            has_ended = source.has_ended
            if source.status != status:
                status = source.status
                yield event("status", {"status": status})
            if source.progress is not None and source.progress != progress:
                progress = source.progress
                yield event("progress", msgspec.to_builtins(progress))
            part = await source.read(after, EVENT_BYTES)
            if part.start > after:
                yield event("gap", {"bytes": part.start - after})
            if part.text:
                yield log_event(part)
            is_behind, after = part.next > after, part.next
            if has_ended and not is_behind:
                yield await end_event(identity, run_id, after)
                return
            if is_behind:
                changed.cancel()
                await asyncio.wait({gone}, timeout=0 if has_ended else _until_next(turn))
            elif not await followed.wait(changed, gone, HEARTBEAT_SECONDS):
                return
            elif not changed.done():
                changed.cancel()
                yield b":\n\n"


async def _gone(receive: Any, has_access: HasAccess) -> bool:
    """Wait until the client has disconnected, or the caller has lost its access. Return whether the client has
    disconnected.
    """
    leaving = asyncio.ensure_future(disconnected(receive))
    try:
        while not leaving.done():
            await asyncio.wait({leaving}, timeout=ACCESS_SECONDS)
            if not leaving.done() and not await has_access():
                return False
        return True
    finally:
        leaving.cancel()


def _until_next(turn: int) -> float:
    """Return the seconds until the clients of a group get events again."""
    return PAUSE_SECONDS - (time.monotonic() - turn * PAUSE_SECONDS / TURNS) % PAUSE_SECONDS


@lru_cache(64)
def _log_event(part: LogPart) -> bytes:
    return event("log", {"text": part.text}, part.next)


def event(name: str, data: Any, offset: int | None = None) -> bytes:
    """Return a server-sent event. `offset` is its id."""
    number = b"" if offset is None else b"id: %d\n" % offset
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), number, encode(data))


def _bound_buffer(receive: Any) -> None:
    """Limit the bytes that the kernel buffers for a client that does not read. `receive` belongs to an Exchange."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


async def begin_text(send: Any, kind: str, *headers: tuple[bytes, bytes]) -> None:
    """Begin a response of unknown length. `kind` is the Content-Type."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode()), *headers]})


def offset_of(scope: Any, headers: dict[str, str]) -> int:
    """Return the offset in the log from which the client continues. Raise InvalidParams if it is not a number."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    text = headers.get("last-event-id") or query.get("after", ["0"])[-1]
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise InvalidParams(
            f"the offset is {quoted(text)}", hint="Pass the id of the last event, a number of bytes.", param="after"
        )
    return int(text)


# -- `GET /v1/runs/{run_id}/events`: the log, the progress and the end of a run, as server-sent events -----------------


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

    def __init__(self, gate: Gate, following: Following, streams: OpenStreams) -> None:
        self._gate = gate
        self._following = following
        self._streams = RunStreams(following, streams)

    async def answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Answer `GET /v1/runs/{run_id}/events` with events, or with plain text if the client accepts text/plain."""
        only(scope, "GET", "HEAD")
        identity = await self._gate.admit(scope, headers, "read", "get_run")
        run_id = scope["path"].split("/")[3]
        after = offset_of(scope, headers)
        if scope["method"] == "HEAD":
            (await self._following.open(identity, run_id)).close()
            await send_bytes(send, 200, b"", EVENTS)
        elif TEXT in headers.get("accept", ""):
            await self._send_log(identity, run_id, send)
        else:
            has_access = partial(self._gate.still_admits, identity, scope, headers)
            await self._streams.send(identity, run_id, after, receive, send, has_access)

    async def _send_log(self, identity: Identity, run_id: str, send: Any) -> None:
        """Send the present log of the run as plain text."""
        followed = await self._following.open(identity, run_id)
        try:
            await begin_text(send, f"{TEXT}; charset=utf-8")
            after = 0
            while (part := await followed.source.read(after, EVENT_BYTES)).next > after:
                after = part.next
                await send({"type": "http.response.body", "body": part.text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            followed.close()
