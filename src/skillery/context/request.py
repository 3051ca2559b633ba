"""Which request this is about: known wherever the code of it runs, in worker threads and in the runs it started too.

A door calls `begin`; what has to name the request reads `current`. Outside of any request (a start, a sweep, a command
that works on the home itself) it is None.
"""

from __future__ import annotations

import itertools
import re
import secrets
from contextvars import ContextVar

_WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_process = secrets.token_hex(6)
_numbers = itertools.count(1)


class Request:
    """One request: its id and the address it came from; who it turned out to be from, and what it called."""

    __slots__ = ("address", "calls", "id", "identity")

    def __init__(self, request_id: str, address: str) -> None:
        self.id = request_id
        self.address = address
        """The other end of the connection; "" where there is none."""
        self.identity: str | None = None
        """The name, once it is known."""
        self.calls: list[tuple[str, int, float]] = []
        """Method, code and seconds of each call that was answered; code 0 is a result."""


current: ContextVar[Request | None] = ContextVar("request", default=None)


def begin(asked: str | None, address: str) -> Request:
    """From here on this is the request. Its id is the one that was asked for where that is well-formed, else new."""
    request_id = asked if asked and _WELL_FORMED.fullmatch(asked) else f"{_process}-{next(_numbers):x}"
    request = Request(request_id, address)
    current.set(request)
    return request


def current_id() -> str | None:
    request = current.get()
    return request.id if request else None
