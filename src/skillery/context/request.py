"""The current request, as a context variable. The tasks of runs and the threads of `asyncio.to_thread` inherit it.

Each HTTP request starts with `begin`. Logs and error messages read the id of the request from `current`. `current` is
None outside of requests: at start, in a sweep, and in a command that works on the home directly.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import FrameType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

_WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_numbers = itertools.count(1)
_process = secrets.token_hex(6)


def _renew_process() -> None:
    """Give this process its own request ids. Workers are forked, and continue with the numbers of the supervisor."""
    global _process  # noqa: PLW0603
    _process = secrets.token_hex(6)


os.register_at_fork(after_in_child=_renew_process)


class Request:
    """One HTTP request: its id, the address, the program and the identity of the caller, and the called methods."""

    __slots__ = ("address", "agent", "calls", "id", "identity", "method")

    def __init__(self, request_id: str, address: str, agent: str) -> None:
        self.id = request_id
        self.address = address
        """Address of the other end of the connection, or ""."""
        self.agent = agent
        """The program of the caller as it names itself (`User-Agent`), or ""."""
        self.identity: str | None = None
        """Name of the identity, once it is known."""
        self.method = ""
        """The method that is called now, or the verb and the endpoint. No text of the caller."""
        self.calls: list[tuple[str, int, float]] = []
        """Method, code and seconds of each answered call. Code 0 means success."""


current: ContextVar[Request | None] = ContextVar("request", default=None)


def begin(wanted: str | None, address: str, agent: str = "") -> Request:
    """Create a request, make it the current one, and return it.

    `wanted` is the request id that the caller sent, or None. If it is None or malformed, the request gets a new id.
    `address` is the IP address of the caller, or "". `agent` is the header User-Agent, or "".
    """
    request_id = wanted if wanted and _WELL_FORMED.fullmatch(wanted) else f"{_process}-{next(_numbers):x}"
    request = Request(request_id, address, agent)
    current.set(request)
    return request


_by_task: WeakKeyDictionary[asyncio.Task[Any], Request] = WeakKeyDictionary()


def note_task(task: asyncio.Task[Any] | None) -> None:
    """Record that a task works for the current request, for `request_of`."""
    request = current.get()
    if task is not None and request is not None:
        _by_task[task] = request


def request_of(task: asyncio.Task[Any] | None) -> Request | None:
    """Return the request of a task, from any thread."""
    return _by_task.get(task) if task is not None else None


def current_id() -> str | None:
    request = current.get()
    return request.id if request else None


# A watchdog for the event loop: a thread that notices silences, counts them, and logs where the event loop is busy.


log = logging.getLogger(__name__)
LONGEST = 1.0
"""Seconds without a turn of the event loop that count as a silence."""
BETWEEN_LINES = 60.0
"""Seconds between two lines of the log."""
_TICK = 0.25
_MOST_FRAMES = 12


class Silences:
    """Counts the times in which the event loop was silent for over `longest` seconds."""

    def __init__(self, longest: float = LONGEST) -> None:
        self.count = 0
        self.seconds = 0.0
        """The length of all silences that have ended."""
        self._longest = longest
        self._beat = 0.0
        self._logged = float("-inf")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager that watches the running event loop. Enter it in the thread of the loop."""
        loop, ended = asyncio.get_running_loop(), threading.Event()
        self._beat = time.monotonic()
        self._tick(loop, ended)
        thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident(), ended), name="silences", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()

    def _tick(self, loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
        now = time.monotonic()
        if now - self._beat > self._longest + _TICK:
            self.seconds += now - self._beat - _TICK
        self._beat = now
        if not ended.is_set():
            loop.call_later(_TICK, self._tick, loop, ended)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, ended: threading.Event) -> None:
        counted = 0.0
        while not ended.wait(_TICK):
            beat = self._beat
            if beat == counted or time.monotonic() - beat <= self._longest + _TICK:
                continue
            counted = beat
            self.count += 1
            if time.monotonic() - self._logged >= BETWEEN_LINES:
                self._logged = time.monotonic()
                self._report(loop, sys._current_frames().get(thread))

    def _report(self, loop: asyncio.AbstractEventLoop, frame: FrameType | None) -> None:
        """Log the functions of the stack, innermost first, without their values."""
        request = request_of(asyncio.current_task(loop))
        stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_MOST_FRAMES, lookup_lines=False)
        log.warning(
            "the event loop is silent for over %g s; request %s, method %s, at %s",
            self._longest,
            request.id if request else "-",
            (request.method if request else "") or "-",
            " < ".join(f"{entry.name} ({entry.filename.rpartition('/')[2]}:{entry.lineno})" for entry in stack),
        )


# -- Spans: traced steps of a request. If the request is not traced, a span costs nothing ------------------------------


class Span(Protocol):
    def set_attribute(self, key: str, value: str | int) -> None: ...


StartSpan = Callable[[str, Mapping[str, str | int]], AbstractContextManager[Span]]
starting: ContextVar[StartSpan | None] = ContextVar("starting", default=None)
"""Function that starts a span of the current request, or None. An endpoint sets the function if tracing is on."""
_NONE: AbstractContextManager[Span | None] = nullcontext()


def span(name: str, **attributes: str | int) -> AbstractContextManager[Span | None]:
    """Context manager: record the `with` block as a span of the current request. Yield the span, or None without
    tracing.

    `name` must be from a small fixed set. `attributes` must not contain anything that a caller sent, except method
    names and ids.
    """
    start = starting.get()
    return _NONE if start is None else start(name, attributes)


# -- Attributes of OpenTelemetry for calls of tools, and for the skills that these calls use ---------------------------
# The conventions for generative AI are in development, and those for skills are proposals. All names are in this table,
# and may change in any release of Skillery.


OPERATION = "gen_ai.operation.name"
EXECUTE_TOOL = "execute_tool"
TOOL_NAME = "gen_ai.tool.name"
SKILL_NAME = "gen_ai.skill.name"
SKILL_VERSION = "gen_ai.skill.version"
SKILL_SOURCE = "gen_ai.skill.source.uri"

OF_ONE_SKILL = frozenset({"execute_skill", "call_tool", "describe_skill", "read_skill_file"})
"""The methods that use one skill. The first skill that they resolve is this skill."""


class _ToolSpan:
    """The span of a call that uses one skill. It accepts the attributes of a skill once."""

    __slots__ = ("span",)

    def __init__(self, span: Span) -> None:
        self.span: Span | None = span


_current: ContextVar[_ToolSpan | None] = ContextVar("tool_span", default=None)


def tool_call(span: Span | None, method: str, *, is_tool: bool) -> AbstractContextManager[None]:
    """Context manager for the call of a method: add the attributes of a tool to its span, which is None without
    tracing.
    """
    return nullcontext() if span is None or not (is_tool or method in OF_ONE_SKILL) else _of_tool(span, method)


@contextmanager
def _of_tool(span: Span, method: str) -> Iterator[None]:
    span.set_attribute(OPERATION, EXECUTE_TOOL)
    span.set_attribute(TOOL_NAME, method)
    if method not in OF_ONE_SKILL:
        yield
        return
    held = _ToolSpan(span)
    token = _current.set(held)
    try:
        yield
    finally:
        _current.reset(token)
        held.span = None  # a run in the background still has this object in its context


def note_skill(name: str, version: str, uri_of: Callable[[str], str]) -> None:
    """Add the attributes of a resolved skill to the span of the current call, if the call needs them. Without tracing,
    this costs nothing.
    """
    held = _current.get()
    if held is None or held.span is None:
        return
    span, held.span = held.span, None
    span.set_attribute(SKILL_NAME, name)
    span.set_attribute(SKILL_VERSION, version)
    span.set_attribute(SKILL_SOURCE, uri_of(name))
