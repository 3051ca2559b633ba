"""Writing of requests, reading of responses, and options of imports, for both clients."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypedDict, cast
from urllib.request import getproxies

import httpx
import msgspec

from skillery.client.errors import ConnectionFailed, StrangeAnswer, error_of
from skillery.client.generated import ONCE, REPEATABLE
from skillery.client.results import NewBlob

URL_VARIABLE = "SKILLERY_URL"
TOKEN_VARIABLE = "SKILLERY_TOKEN"  # noqa: S105 - name of the variable, not a token
DEFAULT_URL = "http://127.0.0.1:8080"
JSON = {"content-type": "application/json"}
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0
"""Seconds after which an idle connection is not used again.

Many servers and proxies close idle connections after 5 s. If a connection closes while the client sends a request, the
client cannot know whether the server has executed the request.
"""
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=IDLE_SECONDS)
MAX_BATCH_CALLS = 100
"""The maximum number of calls in one batch. The server has the same limit."""
_LOOPBACK = re.compile(r"127(\.[0-9]{1,3}){3}")
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Call(msgspec.Struct, frozen=True):
    """One call of a method. Params that are None are not sent. `key` is the idempotency key."""

    method: str
    params: Mapping[str, Any]
    key: str | None = None

    @property
    def is_repeatable(self) -> bool:
        """Whether sending the call twice is harmless: it has an idempotency key, or its method is in REPEATABLE."""
        return self.key is not None or self.method in REPEATABLE

    def headers(self) -> dict[str, str]:
        return JSON if self.key is None else JSON | {"idempotency-key": self.key}

    def body(self) -> bytes:
        return msgspec.json.encode(self._object(1))

    def _object(self, number: int) -> dict[str, Any]:
        values = {name: value for name, value in self.params.items() if value is not None}
        return {"jsonrpc": "2.0", "id": number, "method": self.method, "params": values}


def make_call(method: str, params: Mapping[str, Any], idempotency_key: str | None, *, may_repeat: bool) -> Call:
    """Return a call of a method with an idempotency key.

    Without a given key, the call gets a new one if the client `may_repeat` the call and the method honours keys.
    """
    return Call(method, params, idempotency_key or (new_key() if may_repeat and method in ONCE else None))


def new_key() -> str:
    return str(uuid.uuid4())


def batch_body(calls: Sequence[Call]) -> bytes:
    return msgspec.json.encode([call._object(number) for number, call in enumerate(calls)])


# -- answers -----------------------------------------------------------------------------------------------------


def result_of(response: httpx.Response) -> Any:
    """Return the result in the response to a call. Raise an AnsweredError if it has an error of the server.

    Raise StrangeAnswer if the response has no result.
    """
    answer = object_of(response)
    if "result" not in answer:
        raise _foreign_answer(response)
    return answer["result"]


def object_of(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in a response. Raise an AnsweredError if it is an error of the server.

    Raise StrangeAnswer if the body is not a JSON object, or if the status is 400 or more without such an error.
    """
    answer = _decoded(response)
    if not isinstance(answer, dict):
        raise _foreign_answer(response)
    if isinstance(answer.get("error"), dict):
        raise error_of(answer["error"])
    if response.status_code >= 400:
        raise _foreign_answer(response)
    return answer


def without_error(response: httpx.Response) -> httpx.Response:
    """Return the response unchanged. Raise its error if its status is 400 or more."""
    if response.status_code >= 400:
        object_of(response)
    return response


def blob_of(response: httpx.Response) -> NewBlob:
    """Return the new blob in a response. Raise the errors of `object_of`."""
    made = object_of(response)
    if "blob_id" not in made:
        raise _foreign_answer(response)
    return cast(NewBlob, made)


def list_of(response: httpx.Response) -> list[Any]:
    """Return the JSON list in a response. Raise the errors of `object_of`."""
    answer = _decoded(response)
    if isinstance(answer, list):
        return answer
    object_of(response)
    raise _foreign_answer(response)


def replies_of(response: httpx.Response, count: int) -> list[Mapping[str, Any]]:
    """Return the replies in the response to a batch of `count` calls, in the order of the calls.

    Raise StrangeAnswer if there is not exactly one reply for each call.
    """
    by_id = {reply.get("id"): reply for reply in list_of(response) if isinstance(reply, dict) and _is_reply(reply)}
    if by_id.keys() != set(range(count)):
        raise _foreign_answer(response)
    return [by_id[number] for number in range(count)]


def _is_reply(reply: Mapping[str, Any]) -> bool:
    return type(reply.get("id")) is int and ("result" in reply or isinstance(reply.get("error"), dict))


def event_of(response: httpx.Response, line: bytes) -> tuple[str, dict[str, Any]]:
    """Return the name and the object of an event of an import. `line` is one line of the response.

    Raise an AnsweredError if the line has an error, and StrangeAnswer if it is not an event.
    """
    try:
        event = msgspec.json.decode(line, type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _foreign_answer(response) from None
    if "error" in event:
        raise error_of(event["error"])
    if len(event) != 1:
        raise _foreign_answer(response)
    return next(iter(event.items()))


def text_of(response: httpx.Response) -> str:
    """Return the text of a response. Raise its error if its status is not 200."""
    if response.status_code != 200:
        object_of(response)
        raise _foreign_answer(response)
    return response.text


def _decoded(response: httpx.Response) -> Any:
    try:
        return msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _foreign_answer(response) from None


def _foreign_answer(response: httpx.Response) -> StrangeAnswer:
    return strange_answer(response, f"HTTP {response.status_code} with a body that is not a Skillery response")


def strange_answer(response: httpx.Response, fault: str) -> StrangeAnswer:
    """Return the exception for a faulty response. Its message is "ADDRESS answered FAULT"."""
    url = response.request.url
    server = _shown(url.copy_with(raw_path=b"/")).rstrip("/")
    return StrangeAnswer(
        f"{_shown(url.copy_with(query=None))} answered {fault}", status=response.status_code, server=server
    )


# -- connections -------------------------------------------------------------------------------------------------


@contextmanager
def connection_errors(http: httpx.Client | httpx.AsyncClient) -> Iterator[None]:
    """Raise ConnectionFailed in place of connection errors of httpx in the `with` block."""
    try:
        yield
    except _UNSENT as error:
        raise ConnectionFailed(f"cannot connect to {_shown(http.base_url)}: {_reason(error)}", sent=False) from error
    except httpx.TransportError as error:
        message = f"the connection to {_shown(http.base_url)} was lost: {_reason(error)}"
        raise ConnectionFailed(message, sent=True) from error


def _shown(url: httpx.URL) -> str:
    """Return an address without user and password, for messages."""
    return str(url.copy_with(userinfo=b""))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def address_of(url: str | None) -> str:
    """Return the address of the server: `url`, or SKILLERY_URL, or the default address of `skillery serve`.

    Raise ValueError if the address does not begin with http:// or https://.
    """
    address = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if not address.lower().startswith(("http://", "https://")):
        raise ValueError(f"{address!r} is not an http:// or https:// address")
    return address.rstrip("/").removesuffix("/rpc")


def authorization(token: str | None) -> dict[str, str]:
    """Return the headers with the token, or {} without a token. If `token` is None, the token is SKILLERY_TOKEN."""
    bearer = os.environ.get(TOKEN_VARIABLE) if token is None else token
    return {"authorization": f"Bearer {bearer}"} if bearer else {}


def timeout_of(seconds: float | None) -> httpx.Timeout:
    """Return the timeouts for httpx. `seconds` limits how long the connection may be idle. None means no limit.

    Connecting always has a limit. A run may take an hour, and the server limits its duration.
    """
    return httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds or CONNECT_SECONDS))


def is_loopback(url: str) -> bool:
    """Return whether the host of the URL is `localhost` or a loopback address, which means this computer."""
    host = httpx.URL(url).host
    return host in {"localhost", "::1"} or _LOOPBACK.fullmatch(host) is not None


def is_plain(url: str) -> bool:
    """Return whether the URL is on this computer and without TLS."""
    return httpx.URL(url).scheme == "http" and is_loopback(url)


def keepalive() -> list[tuple[int, int, int]] | None:
    """Return the socket options with which TCP detects a dead server within two minutes, even during long runs.

    Return None if a proxy is configured, because the client then connects to the proxy and not to the server.
    """
    if getproxies():
        return None
    names = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
    tuned = [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in names.items() if hasattr(socket, name)
    ]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *tuned]


# -- The token of a client: a text, or a function that returns the current token before each request -------------------


Token = str | Callable[[], str | None]


def credentials(token: Token | None) -> dict[str, Any]:
    """Return the arguments of an httpx client that send the token. None means the token in SKILLERY_TOKEN."""
    return {"auth": _TokenAuth(token)} if callable(token) else {"headers": authorization(token)}


class _TokenAuth(httpx.Auth):
    """Calls a function before each request, and sends the token that it returns."""

    def __init__(self, source: Callable[[], str | None]) -> None:
        self._source = source

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers.update(authorization(self._source() or ""))
        yield request

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        # In a thread, because the function may wait for an identity provider.
        request.headers.update(authorization(await asyncio.to_thread(self._source) or ""))
        yield request


# -- Options and events of an import -----------------------------------------------------------------------------------

IMPORT_HEADERS = {"content-type": "application/octet-stream", "accept": "application/x-ndjson"}
ImportEvent: TypeAlias = "tuple[str, dict[str, Any]]"
"""An event of an import: its name (`begun`, `skill` or `summary`), and its object.

docs/guide/importing.md describes the objects.
"""


class ImportOptions(TypedDict, total=False):
    """The options of `import_archive`. docs/guide/importing.md describes them."""

    name: str
    """Name for a skill at the root of the archive that states no name."""
    namespace: str
    source: str
    default_source: str
    permissions: Mapping[str, Any]
    take_over: Sequence[str]
    packages: Literal["infer", "declared", "newest"]
    nested: Literal["auto", "keep", "split"]
    names: str
    """Encoding of the names in a zip that are not UTF-8."""
    commit_dates: bool
    """The times of the files in a tar are those of commits."""
    commit: str
    """Hash of the git commit with the files."""
    keep_bytes: bool
    """Scripts keep CR LF at the ends of their lines."""
    dry_run: bool
    prune: bool
    review: bool
    """Each new version waits for a review."""


def query_of(options: ImportOptions) -> dict[str, str]:
    """Return the query parameters of `POST /import`. False and empty options are left out, except empty
    `permissions`.
    """
    return {name: _text(value) for name, value in options.items() if value or isinstance(value, Mapping)}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ",".join(value)
    return msgspec.json.encode(value).decode()


__all__ = ["IMPORT_HEADERS", "ImportEvent", "ImportOptions", "query_of"]
