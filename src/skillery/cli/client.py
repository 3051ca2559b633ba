"""HTTP client of a Skillery server: methods by name, and blobs as streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from skillery.cli.failures import AnsweredError
from skillery.errors import StartupError
from skillery.settings import is_loopback

CONNECT_SECONDS = 10
NO_READ_TIMEOUT = httpx.Timeout(None, connect=CONNECT_SECONDS)
"""No read timeout: a run may take an hour, and the server sets the limit."""


class Client:
    """Client of one server. Raises AnsweredError for every error response and StartupError for a lost connection."""

    def __init__(self, http: httpx.AsyncClient, *, is_in_process: bool = False) -> None:
        self._http = http
        self.is_in_process = is_in_process
        """Whether the server is this process, so that background work ends with the process."""

    async def call(self, method: str, /, **params: Any) -> Any:
        """Call a method and return its `result`. Parameters that are None are omitted."""
        given = {name: value for name, value in params.items() if value is not None}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": given})
        with self._connection_errors():
            response = await self._http.post("/rpc", content=body, headers={"content-type": "application/json"})
        answer = self._answer(response)
        if "result" not in answer:
            raise AnsweredError(answer.get("error") or self._foreign_answer(response))
        return answer["result"]

    async def upload(self, chunks: AsyncIterator[bytes], kind: str, ttl: int | None = None) -> dict[str, Any]:
        """Upload a new blob as a stream. Return `blob_id` and `size_bytes`. `ttl` is in seconds; None means the
        server's default."""
        address = "/blobs" if ttl is None else f"/blobs?ttl={ttl}"
        with self._connection_errors():
            response = await self._http.post(address, content=chunks, headers={"content-type": kind})
        return self._answer(response)

    @asynccontextmanager
    async def download(self, blob_id: str) -> AsyncIterator[httpx.Response]:
        """Stream the content of a blob (`aiter_raw`). The headers hold its kind and length."""
        with self._connection_errors():
            async with self._http.stream("GET", f"/blobs/{quote(blob_id, safe=':')}") as response:
                if response.status_code != 200:
                    await response.aread()
                    self._answer(response)
                yield response

    @asynccontextmanager
    async def post_stream(self, address: str, body: bytes, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """POST a body and stream the response, whatever its status."""
        with self._connection_errors():
            async with self._http.stream("POST", address, content=body, headers=headers) as response:
                yield response

    async def import_archive(self, chunks: AsyncIterator[bytes], **params: str) -> AsyncIterator[tuple[str, Any]]:
        """Upload an archive of skills as a stream. Yield the events `begun`, `skill` (one per skill) and `summary`
        with their data, as the server sends them."""
        headers = {"content-type": "application/octet-stream", "accept": "application/x-ndjson"}
        with self._connection_errors():
            async with self._http.stream("POST", "/import", params=params, content=chunks, headers=headers) as response:
                if response.status_code != 200:
                    await response.aread()
                    self._answer(response)
                async for line in response.aiter_lines():
                    for key, value in msgspec.json.decode(line).items():
                        if key == "error":
                            raise AnsweredError(value)
                        yield key, value

    async def is_ready(self) -> bool:
        """Return whether `GET /readyz` answers 200. Return False if the server is not reachable yet."""
        try:
            return (await self._http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    @contextmanager
    def _connection_errors(self) -> Any:
        try:
            yield
        except httpx.ConnectError as error:
            raise StartupError(f"cannot connect to {self._http.base_url}: {_reason(error)}") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise StartupError(f"the connection to {self._http.base_url} was lost: {_reason(error)}") from None

    def _answer(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = msgspec.json.decode(response.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = None
        if not isinstance(answer, dict):
            raise AnsweredError(self._foreign_answer(response))
        if response.status_code >= 400:
            raise AnsweredError(answer.get("error") or self._foreign_answer(response))
        return answer

    def _foreign_answer(self, response: httpx.Response) -> dict[str, Any]:
        message = (
            f"{self._http.base_url} answered HTTP {response.status_code} with a body that is not a Skillery response"
        )
        return {"code": None, "message": message, "data": {"type": "no_skillery", "hint": "Check --url."}}


@asynccontextmanager
async def client_of(
    url: str, token: str | None = None, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[Client]:
    """Open a client of the server at `url`, or of the application behind `transport`."""
    host = httpx.URL(url).host
    headers = {"authorization": f"Bearer {token}"} if token else {}
    # Without TLS, httpx does not need to load the certificate store, which takes time.
    plain = url.startswith("http://") and is_loopback(host)
    async with httpx.AsyncClient(
        base_url=url,
        headers=headers,
        timeout=NO_READ_TIMEOUT,
        transport=transport,
        # A proxy from the environment would resolve loopback addresses on its own host.
        trust_env=not is_loopback(host),
        verify=not plain,
    ) as http:
        yield Client(http, is_in_process=transport is not None)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
