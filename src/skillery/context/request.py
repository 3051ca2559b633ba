"""The current request, as a context variable. The tasks of runs and the threads of `asyncio.to_thread` inherit it.

Each HTTP request starts with `begin`. Logs and error messages read the id of the request from `current`. `current` is
None outside of requests: at start, in a sweep, and in a command that works on the home directly.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

_WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_process = secrets.token_hex(6)
_numbers = itertools.count(1)


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
