"""Client. Made from `asynchronous.py` by `make client`: do not edit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import httpx

from skillery.client.batches import Collected, Pending
from skillery.client.blobs import CHUNK_BYTES, Position, Progress, Sink, Source, Upload, kind_of, opened, written_whole
from skillery.client.errors import AnsweredError, ClientError, NotAuthenticated
from skillery.client.files import places_below
from skillery.client.generated.methods import Methods
from skillery.client.generated.values import RunFile
from skillery.client.results import NewBlob, Run, RunRecord, ToolResult
from skillery.client.retrying import Patience, Retries
from skillery.client.tool_calls import TOOLS, ModelMistake, offered_names, read_tool_call
from skillery.client.waiting import read, sleep, write
from skillery.client.wire import (
    JSON,
    Call,
    address_of,
    authorization,
    batch_body,
    blob_of,
    is_plain,
    keepalive,
    list_of,
    make_call,
    new_key,
    object_of,
    replies_of,
    result_of,
    speaking,
    text_of,
    timeout_of,
)


class Client(Methods):
    """A Skillery server, as an object with all its methods.

    `url` and `token` are those of SKILLERY_URL and SKILLERY_TOKEN where they are not given. `timeout` is the longest
    silence in seconds; without one a run may take as long as the server allows. Errors are AnsweredError and its
    children, ConnectionFailed, StrangeAnswer: all of them ClientError. `transport` is one of httpx, for what the
    connection needs besides: certificates of one's own, a proxy.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float | None = None,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = address_of(url)
        self._retries = retries or Retries()
        self._offered = dict.fromkeys(TOOLS)
        near, options = is_plain(self.url), keepalive()
        if transport is None and (near or options is not None):
            transport = httpx.HTTPTransport(verify=not near, socket_options=options)
        self._http = httpx.Client(
            base_url=self.url,
            headers=authorization(token),
            timeout=timeout_of(timeout),
            transport=transport,
            trust_env=not near,
            verify=not near,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    # -- methods -------------------------------------------------------------------------------------------------

    def call(self, method: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None) -> Any:
        """The result of any method by its name, for what this client has no method for."""
        call = make_call(method, params or {}, idempotency_key)
        patience = Patience(self._retries, repeatable=call.is_repeatable)
        while True:
            try:
                with speaking(self._http):
                    response = self._http.post("/rpc", content=call.body(), headers=call.headers())
                return result_of(response)
            except ClientError as error:
                sleep(patience.wait_after(error))

    def batch(self) -> Batch:
        """`with client.batch() as batch:` collects calls, and sends them where the block ends."""
        return Batch(self)

    def is_ready(self) -> bool:
        """Whether the server can do its work: `GET /readyz`."""
        try:
            return (self._http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    # -- tools of a model ----------------------------------------------------------------------------------------

    def prompt(self) -> str:
        """The system prompt that the protocol recommends for a model with its tools."""
        return text_of(self._get("/prompt"))

    def tools(
        self, form: Literal["openai", "anthropic", "mcp", "jsonschema"], *, include: Sequence[str] = ()
    ) -> list[Any]:
        """The eight tools of the protocol as an SDK takes them, and those methods that `include` names: `search_skills`
        lets a model find skills among many."""
        more = f"&include={quote(','.join(include))}" if include else ""
        found = list_of(self._get(f"/tools?format={quote(form)}{more}"))
        self._offered |= dict.fromkeys(offered_names(found))
        return found

    def handle(self, tool_call: Any) -> dict[str, Any]:
        """Make the call that a model asks for, and answer the message to append: for OpenAI a `tool` message, for
        Anthropic a `tool_result` block, for MCP the result of `tools/call`.

        What a model can mend is part of that message: arguments that are no JSON, a tool that there is not, whatever
        the server refuses. A connection that fails and a token that is not good are raised. Only the eight tools, and
        those that `tools` was told to include, can be called.
        """
        asked = read_tool_call(tool_call)
        try:
            asked.check_name(self._offered)
            return asked.answered(self.call(asked.name, asked.params()))
        except ModelMistake as mistake:
            return asked.refused(mistake.error)
        except NotAuthenticated:
            raise
        except AnsweredError as error:
            return asked.refused(error.object)

    # -- blobs ---------------------------------------------------------------------------------------------------

    def upload_blob(
        self,
        content: Source,
        kind: str | None = None,
        *,
        ttl: int | None = None,
        progress: Progress | None = None,
        idempotency_key: str | None = None,
    ) -> NewBlob:
        """Stream bytes, the file at a path, or an open file into a new blob, at constant memory.

        `kind` is a media type, by default that of the file's name. `ttl` is how many seconds it is kept. Where the
        connection breaks off it is sent again, from the start and with the same key, unless the file cannot go back.
        """
        address = "/blobs" if ttl is None else f"/blobs?ttl={ttl}"
        key = idempotency_key or new_key()
        with opened(content) as upload:
            patience = Patience(self._retries, repeatable=upload.can_rewind)
            headers = upload.headers(kind or kind_of(content), key)
            while True:
                try:
                    with speaking(self._http):
                        response = self._http.post(address, content=_chunks(upload, progress), headers=headers)
                    return blob_of(response)
                except ClientError as error:
                    if not upload.can_rewind:
                        raise
                    sleep(patience.wait_after(error))
                    upload.rewind()

    def stream_blob(
        self, blob_id: str, *, start: int = 0, stop: int | None = None, progress: Progress | None = None
    ) -> Iterator[bytes]:
        """The bytes of a blob from `start` up to `stop`, piece by piece. Where the connection breaks off it goes on
        from the same place."""
        position = Position(start, stop)
        patience = Patience(self._retries, repeatable=True)
        while not position.is_done:
            try:
                with speaking(self._http):
                    with self._http.stream("GET", _address(blob_id), headers=position.headers()) as response:
                        if response.status_code not in {200, 206}:
                            response.read()
                            object_of(response)
                        position.begin(response)
                        for piece in response.iter_raw():
                            position.at += len(piece)
                            # It goes on: what went wrong before does not count any more.
                            patience = Patience(self._retries, repeatable=True)
                            if progress is not None:
                                progress(position.at - position.start, position.total)
                            yield piece
                return
            except ClientError as error:
                sleep(patience.wait_after(error))

    def download_blob(self, blob_id: str, target: Sink, *, progress: Progress | None = None) -> int:
        """Write a blob to the file at a path, or to an open one, at constant memory: its size in bytes. A path holds
        all of it, or what it held before."""
        size = 0
        with written_whole(target) as file:
            for piece in self.stream_blob(blob_id, progress=progress):
                write(file, piece)
                size += len(piece)
        return size

    def upload_files(self, files: Mapping[str, Source], *, ttl: int | None = None) -> list[RunFile]:
        """Upload a file for each path in the workspace of a run: the `files` of `execute_skill`, `run_code` and
        `call_tool`."""
        made: list[RunFile] = []
        for path, content in files.items():
            blob = self.upload_blob(content, ttl=ttl)
            made.append({"path": path, "blob_id": blob["blob_id"]})
        return made

    def download_files(self, run: Run | RunRecord | ToolResult, folder: os.PathLike[str]) -> list[Path]:
        """Write the `files` of a run below the folder, at constant memory, and return where they are.

        Raises ValueError, before anything is written, for a path that leads out of the folder: the run chose it."""
        found = run.get("files", [])
        places = places_below(folder, [file["path"] for file in found])
        for file, place in zip(found, places, strict=True):
            place.parent.mkdir(parents=True, exist_ok=True)
            self.download_blob(file["blob_id"], place)
        return places

    # -- how -----------------------------------------------------------------------------------------------------

    def _get(self, address: str) -> httpx.Response:
        patience = Patience(self._retries, repeatable=True)
        while True:
            try:
                with speaking(self._http):
                    response = self._http.get(address)
                if response.status_code >= 400:
                    object_of(response)
                return response
            except ClientError as error:
                sleep(patience.wait_after(error))

    def _send(self, portion: Sequence[Pending[Any]]) -> None:
        calls: list[Call] = [pending.call for pending in portion]
        patience = Patience(self._retries, repeatable=all(call.is_repeatable for call in calls))
        while True:
            try:
                with speaking(self._http):
                    response = self._http.post("/rpc", content=batch_body(calls), headers=JSON)
                for pending, reply in zip(portion, replies_of(response, len(portion)), strict=True):
                    pending.settle(reply)
                return
            except ClientError as error:
                sleep(patience.wait_after(error))


class Batch(Collected):
    """Calls that go out together. More than the server takes at once are several requests, one after the other."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        for portion in self._portions():
            self._client._send(portion)


def _chunks(upload: Upload, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    while piece := read(upload.file, CHUNK_BYTES):
        yield piece
        sent += len(piece)
        if progress is not None:
            progress(sent, upload.size)


def _address(blob_id: str) -> str:
    return f"/blobs/{quote(blob_id, safe=':')}"


__all__ = ["Batch", "Client"]
