"""AsyncClient. `synchronous.py` is made from this file by `make client`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import httpx

from skillery.client.batches import Collected, Pending
from skillery.client.blobs import (
    CHUNK_BYTES,
    Position,
    Progress,
    Sink,
    Source,
    Upload,
    atomic_file,
    kind_of,
    open_upload,
)
from skillery.client.errors import AnsweredError, ClientError, NotAuthenticated
from skillery.client.files import places_below
from skillery.client.generated.async_methods import AsyncMethods
from skillery.client.generated.values import RunFile
from skillery.client.results import NewBlob, Run, RunRecord, ToolResult
from skillery.client.retrying import Patience, Retries
from skillery.client.tool_calls import TOOLS, ModelMistake, offered_names, read_tool_call
from skillery.client.waiting import read_async, sleep_async, write_async
from skillery.client.wire import (
    JSON,
    Call,
    address_of,
    authorization,
    batch_body,
    blob_of,
    connection_errors,
    is_plain,
    keepalive,
    list_of,
    make_call,
    new_key,
    object_of,
    replies_of,
    result_of,
    text_of,
    timeout_of,
)


class AsyncClient(AsyncMethods):
    """Client of a Skillery server, with all methods of the server.

    `url` and `token` default to SKILLERY_URL and SKILLERY_TOKEN. `timeout` limits how long the connection may be idle,
    in seconds. It does not limit the whole call. Without `timeout`, a run may take as long as the server allows, and
    TCP keep-alive detects a dead server. `transport` is an httpx transport, for special certificates or a proxy.
    Raises ClientError: AnsweredError and its subclasses, ConnectionFailed, StrangeAnswer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float | None = None,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = address_of(url)
        self._retries = retries or Retries()
        self._offered = dict.fromkeys(TOOLS)
        near, options = is_plain(self.url), keepalive()
        if transport is None and (near or options is not None):
            transport = httpx.AsyncHTTPTransport(verify=not near, socket_options=options)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=authorization(token),
            timeout=timeout_of(timeout),
            transport=transport,
            trust_env=not near,
            verify=not near,
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # -- methods -------------------------------------------------------------------------------------------------

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> Any:
        """Call any method by its name and return its result. Use it for methods that this client does not have."""
        call = make_call(method, params or {}, idempotency_key)
        patience = Patience(self._retries, repeatable=call.is_repeatable)
        while True:
            try:
                with connection_errors(self._http):
                    response = await self._http.post("/rpc", content=call.body(), headers=call.headers())
                return result_of(response)
            except ClientError as error:
                await sleep_async(patience.wait_after(error))

    def batch(self) -> AsyncBatch:
        """Return a batch for `async with client.batch() as batch:`. The calls are sent at the end of the block."""
        return AsyncBatch(self)

    async def is_ready(self) -> bool:
        """Return whether the server is ready (`GET /readyz` answers 200)."""
        try:
            return (await self._http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    # -- tools of a model ----------------------------------------------------------------------------------------

    async def prompt(self) -> str:
        """Return the system prompt that the protocol recommends for a model with the tools."""
        return text_of(await self._get("/prompt"))

    async def tools(
        self, form: Literal["openai", "anthropic", "mcp", "jsonschema"], *, include: Sequence[str] = ()
    ) -> list[Any]:
        """Return the eight tools of the protocol in the format of an SDK. `include` adds methods as tools, for
        example `search_skills` to find skills among many."""
        more = f"&include={quote(','.join(include))}" if include else ""
        found = list_of(await self._get(f"/tools?format={quote(form)}{more}"))
        self._offered |= dict.fromkeys(offered_names(found))
        return found

    async def handle(self, tool_call: Any) -> dict[str, Any]:
        """Execute a tool call of a model and return the message to append. The message is a `tool` message for
        OpenAI, a `tool_result` block for Anthropic, and the result of `tools/call` for MCP. Errors that a model can
        correct are part of the message: arguments that are not JSON, unknown tools, and errors of the server.
        Connection errors and NotAuthenticated are raised. Only the eight tools and those included by `tools` can be
        called."""
        asked = read_tool_call(tool_call)
        try:
            asked.check_name(self._offered)
            return asked.answered(await self.call(asked.name, asked.params()))
        except ModelMistake as mistake:
            return asked.refused(mistake.error)
        except NotAuthenticated:
            raise
        except AnsweredError as error:
            return asked.refused(error.object)

    # -- blobs ---------------------------------------------------------------------------------------------------

    async def upload_blob(
        self,
        content: Source,
        kind: str | None = None,
        *,
        ttl: int | None = None,
        progress: Progress | None = None,
        idempotency_key: str | None = None,
    ) -> NewBlob:
        """Upload bytes, the file at a path, or an open file as a blob, at constant memory. `kind` is a media type
        and defaults to that of the file name. `ttl` is the lifetime in seconds. After a connection error, the
        content is sent again from the start with the same key, unless the file cannot be rewound."""
        address = "/blobs" if ttl is None else f"/blobs?ttl={ttl}"
        key = idempotency_key or new_key()
        with open_upload(content) as upload:
            patience = Patience(self._retries, repeatable=upload.can_rewind)
            headers = upload.headers(kind or kind_of(content), key)
            while True:
                try:
                    with connection_errors(self._http):
                        response = await self._http.post(address, content=_chunks(upload, progress), headers=headers)
                    return blob_of(response)
                except ClientError as error:
                    if not upload.can_rewind:
                        raise
                    await sleep_async(patience.wait_after(error))
                    upload.rewind()

    async def stream_blob(
        self, blob_id: str, *, start: int = 0, stop: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of a blob from `start` to `stop`. After a connection error, the download continues at the
        same position."""
        position = Position(start, stop)
        patience = Patience(self._retries, repeatable=True)
        while not position.is_done:
            try:
                with connection_errors(self._http):
                    async with self._http.stream("GET", _address(blob_id), headers=position.headers()) as response:
                        if response.status_code not in {200, 206}:
                            await response.aread()
                            object_of(response)
                        position.begin(response)
                        async for piece in response.aiter_raw():
                            position.at += len(piece)
                            # Progress resets the count of failures.
                            patience = Patience(self._retries, repeatable=True)
                            if progress is not None:
                                progress(position.at - position.start, position.total)
                            yield piece
                return
            except ClientError as error:
                await sleep_async(patience.wait_after(error))

    async def download_blob(self, blob_id: str, target: Sink, *, progress: Progress | None = None) -> int:
        """Write a blob to the file at a path, or to an open file, at constant memory. Return its size in bytes. A
        path is replaced only when the download is complete."""
        size = 0
        with atomic_file(target) as file:
            async for piece in self.stream_blob(blob_id, progress=progress):
                await write_async(file, piece)
                size += len(piece)
        return size

    async def upload_files(self, files: Mapping[str, Source], *, ttl: int | None = None) -> list[RunFile]:
        """Upload a file for each path in the workspace of a run. Return the parameter `files` of `execute_skill`,
        `run_code` and `call_tool`."""
        made: list[RunFile] = []
        for path, content in files.items():
            blob = await self.upload_blob(content, ttl=ttl)
            made.append({"path": path, "blob_id": blob["blob_id"]})
        return made

    async def download_files(self, run: Run | RunRecord | ToolResult, folder: os.PathLike[str]) -> list[Path]:
        """Write the `files` of a run to a folder, at constant memory, and return their paths. Raises ValueError
        before any write if a path leads outside the folder, because the run chose the paths."""
        found = run.get("files", [])
        places = places_below(folder, [file["path"] for file in found])
        for file, place in zip(found, places, strict=True):
            place.parent.mkdir(parents=True, exist_ok=True)
            await self.download_blob(file["blob_id"], place)
        return places

    # -- requests ------------------------------------------------------------------------------------------------

    async def _get(self, address: str) -> httpx.Response:
        patience = Patience(self._retries, repeatable=True)
        while True:
            try:
                with connection_errors(self._http):
                    response = await self._http.get(address)
                if response.status_code >= 400:
                    object_of(response)
                return response
            except ClientError as error:
                await sleep_async(patience.wait_after(error))

    async def _send(self, portion: Sequence[Pending[Any]]) -> None:
        calls: list[Call] = [pending.call for pending in portion]
        patience = Patience(self._retries, repeatable=all(call.is_repeatable for call in calls))
        while True:
            try:
                with connection_errors(self._http):
                    response = await self._http.post("/rpc", content=batch_body(calls), headers=JSON)
                for pending, reply in zip(portion, replies_of(response, len(portion)), strict=True):
                    pending.settle(reply)
                return
            except ClientError as error:
                await sleep_async(patience.wait_after(error))


class AsyncBatch(Collected):
    """Batch of calls in one request. A batch above the limit of the server is sent as several requests in sequence."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__()
        self._client = client

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        for portion in self._portions():
            await self._client._send(portion)


async def _chunks(upload: Upload, progress: Progress | None) -> AsyncIterator[bytes]:
    sent = 0
    while piece := await read_async(upload.file, CHUNK_BYTES):
        yield piece
        sent += len(piece)
        if progress is not None:
            progress(sent, upload.size)


def _address(blob_id: str) -> str:
    return f"/blobs/{quote(blob_id, safe=':')}"


__all__ = ["AsyncBatch", "AsyncClient"]
