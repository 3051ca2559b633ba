"""Python client of a Skillery server: `Client`, and `AsyncClient` with the same methods as coroutines.

The client needs only httpx and msgspec. It imports no module of the server.
"""

from skillery.client.async_transfers import AsyncOpenBlob
from skillery.client.asynchronous import AsyncBatch, AsyncClient
from skillery.client.batches import Pending
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
from skillery.client.imports import ImportOptions
from skillery.client.logins import LoginEnded, LoginError, UnusableLogin, kept_token
from skillery.client.retrying import Retries
from skillery.client.synchronous import Batch, Client
from skillery.client.transfers import OpenBlob

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
