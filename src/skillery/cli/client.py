"""The client of a Skillery server: methods by name, and blobs as streams."""

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
UNTIL_FURTHER = httpx.Timeout(None, connect=CONNECT_SECONDS)
"""A run may take an hour: how long is the server's to say."""


class Client:
    """Speaks to one server. Every error answer is raised as AnsweredError, a lost connection as StartupError."""

    def __init__(self, http: httpx.AsyncClient, *, is_alone: bool = False) -> None:
        self._http = http
        self.is_alone = is_alone
        """Whether what answers is this process: what it has begun ends with it."""

    async def call(self, method: str, /, **params: Any) -> Any:
        """The `result` of a method. A parameter that is None is left out."""
        given = {name: value for name, value in params.items() if value is not None}
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": given})
        with self._speaking():
            response = await self._http.post("/rpc", content=body, headers={"content-type": "application/json"})
        answer = self._answer(response)
        if "result" not in answer:
            raise AnsweredError(answer.get("error") or self._strange(response))
        return answer["result"]

    async def upload(self, chunks: AsyncIterator[bytes], kind: str, ttl: int | None = None) -> dict[str, Any]:
        """Stream a new blob in, to be kept for `ttl` seconds where they are given: `blob_id` and `size_bytes`."""
        address = "/blobs" if ttl is None else f"/blobs?ttl={ttl}"
        with self._speaking():
            response = await self._http.post(address, content=chunks, headers={"content-type": kind})
        return self._answer(response)

    @asynccontextmanager
    async def download(self, blob_id: str) -> AsyncIterator[httpx.Response]:
        """A blob's content as a stream (`aiter_raw`), with its kind and length in the headers."""
        with self._speaking():
            async with self._http.stream("GET", f"/blobs/{quote(blob_id, safe=':')}") as response:
                if response.status_code != 200:
                    await response.aread()
                    self._answer(response)
                yield response

    @asynccontextmanager
    async def knock(self, address: str, body: bytes, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """POST a body and read the answer as a stream, whatever its status."""
        with self._speaking():
            async with self._http.stream("POST", address, content=body, headers=headers) as response:
                yield response

    async def import_archive(self, chunks: AsyncIterator[bytes], **params: str) -> AsyncIterator[tuple[str, Any]]:
        """Stream an archive of skills in: `begun`, `skill` for each and `summary`, with what they say, as they come."""
        headers = {"content-type": "application/octet-stream", "accept": "application/x-ndjson"}
        with self._speaking():
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
        """Whether `GET /readyz` answers 200; False also where nobody answers yet."""
        try:
            return (await self._http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    @contextmanager
    def _speaking(self) -> Any:
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
            raise AnsweredError(self._strange(response))
        if response.status_code >= 400:
            raise AnsweredError(answer.get("error") or self._strange(response))
        return answer

    def _strange(self, response: httpx.Response) -> dict[str, Any]:
        message = (
            f"{self._http.base_url} answered HTTP {response.status_code} with a body that is not a Skillery response"
        )
        return {"code": None, "message": message, "data": {"type": "no_skillery", "hint": "Check --url."}}


@asynccontextmanager
async def client_of(
    url: str, token: str | None = None, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[Client]:
    """A client of the server at `url`, or of the application that `transport` reaches."""
    host = httpx.URL(url).host
    headers = {"authorization": f"Bearer {token}"} if token else {}
    # On this machine without TLS: then httpx need not read all certificates first.
    plain = url.startswith("http://") and is_loopback(host)
    async with httpx.AsyncClient(
        base_url=url,
        headers=headers,
        timeout=UNTIL_FURTHER,
        transport=transport,
        # A proxy that the environment names would look for this machine on its own.
        trust_env=not is_loopback(host),
        verify=not plain,
    ) as http:
        yield Client(http, is_alone=transport is not None)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
