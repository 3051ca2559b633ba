"""Which request the work at hand belongs to: for records and logs that nobody hands it down to.

It follows tasks and, through `Database.write`, the threads on which the database is written.
"""

from __future__ import annotations

import secrets
from contextvars import ContextVar
from typing import NamedTuple


class RequestInfo(NamedTuple):
    request_id: str
    address: str
    """Of the client, as far as the server can tell; "" where there is none: a command at work by itself."""


current_request: ContextVar[RequestInfo | None] = ContextVar("current_request", default=None)
"""None outside a request: what a server does of its own accord."""


def new_request_id() -> str:
    return f"req_{secrets.token_hex(8)}"
