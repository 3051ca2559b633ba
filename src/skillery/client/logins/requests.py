"""Requests to a server and to its identity provider, with limits of time and size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import httpx

from skillery.client.errors import ConnectionFailed
from skillery.client.logins.errors import LoginError
from skillery.client.logins.login import is_safe
from skillery.client.wire import is_plain

SECONDS = 10.0
"""Limit of each step of a request."""
TOTAL_SECONDS = 30.0
MAX_BYTES = 1024 * 1024
PLAIN = "identity"
"""The only content coding that is accepted: two kilobytes that are compressed twice could become gigabytes."""
_HEADERS = {"accept": "application/json", "accept-encoding": PLAIN}


class Answer(NamedTuple):
    """A response: the HTTP status and the body."""

    status: int
    body: bytes


def request(method: str, address: str, form: Mapping[str, str] | None = None) -> Answer:
    """Send a request, and return the response. Redirects are not followed.

    Raise ConnectionFailed if the connection fails, LoginError if the address is not safe, or if the response is too
    large or compressed.
    """
    if not is_safe(address):
        raise LoginError(
            f"'{address}' is not encrypted", hint="Addresses must begin with https://, except on this computer."
        )
    # A proxy would resolve a loopback address on its own host.
    plain = is_plain(address)
    try:
        with (
            httpx.Client(timeout=SECONDS, verify=not plain, trust_env=not plain) as http,
            http.stream(method, address, data=form, headers=_HEADERS) as response,
        ):
            return Answer(response.status_code, b"".join(_bounded(response, address)))
    except httpx.TransportError as error:
        raise ConnectionFailed(f"cannot reach {address}: {str(error) or type(error).__name__}", sent=True) from None
    except httpx.HTTPError as error:
        raise LoginError(f"{address} answered a response that cannot be read ({type(error).__name__})") from None


def _bounded(response: httpx.Response, address: str) -> Iterator[bytes]:
    if response.headers.get("content-encoding", PLAIN) != PLAIN:
        raise LoginError(f"{address} answered a compressed body, which the client did not ask for")
    size, end = 0, time.monotonic() + TOTAL_SECONDS
    for piece in response.iter_raw():
        size += len(piece)
        if size > MAX_BYTES:
            raise LoginError(f"{address} answered more than {MAX_BYTES} bytes")
        if time.monotonic() > end:
            raise ConnectionFailed(f"{address} did not answer within {TOTAL_SECONDS:g} s", sent=True)
        yield piece
