"""Python client of a Skillery server: `Client`, and `AsyncClient` with the same methods as coroutines.

The client needs only httpx and msgspec. It imports no module of the server.
Errors are imported at once. All other names are imported when they are first used, so that a command that calls no
server does not import httpx.
"""

import importlib
from typing import TYPE_CHECKING, Any

from skillery.client.errors import (
    AnsweredError,
    Busy,
    ClientError,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    ParseError,
    Refused,
    StrangeAnswer,
    TooLarge,
)

if TYPE_CHECKING:
    from skillery.client.async_transfers import AsyncOpenBlob
    from skillery.client.asynchronous import AsyncBatch, AsyncClient
    from skillery.client.batches import Pending
    from skillery.client.limits import Retries
    from skillery.client.logins import LoginEnded, LoginError, UnusableLogin, kept_token
    from skillery.client.synchronous import Batch, Client
    from skillery.client.transfers import OpenBlob
    from skillery.client.wire import ImportOptions
else:
    _MODULES = {
        "AsyncBatch": "asynchronous",
        "AsyncClient": "asynchronous",
        "AsyncOpenBlob": "async_transfers",
        "Batch": "synchronous",
        "Client": "synchronous",
        "ImportOptions": "wire",
        "LoginEnded": "logins",
        "LoginError": "logins",
        "OpenBlob": "transfers",
        "Pending": "batches",
        "Retries": "limits",
        "UnusableLogin": "logins",
        "kept_token": "logins",
    }

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


__all__ = [
    "AnsweredError",
    "AsyncBatch",
    "AsyncClient",
    "AsyncOpenBlob",
    "Batch",
    "Busy",
    "Client",
    "ClientError",
    "Conflict",
    "ConnectionFailed",
    "DeadlineExceeded",
    "ImportOptions",
    "InternalError",
    "InvalidParams",
    "InvalidRequest",
    "LoginEnded",
    "LoginError",
    "MethodNotFound",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "OpenBlob",
    "ParseError",
    "Pending",
    "Refused",
    "Retries",
    "StrangeAnswer",
    "TooLarge",
    "UnusableLogin",
    "kept_token",
]
