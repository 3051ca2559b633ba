"""Uploads and downloads of AsyncClient: blobs, archives, files of runs. `transfers.py` is made from this
file by `make client`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Unpack, cast
from urllib.parse import quote

import httpx

from skillery.client.blobs import (
    DEFAULT_KIND,
    Position,
    Progress,
    Sink,
    Source,
    Upload,
    atomic_file,
    is_source,
    kind_of,
    open_upload,
    places_below,
)
from skillery.client.errors import ClientError
from skillery.client.generated import AsyncMethods, RunFile
from skillery.client.limits import IN_PIECES, Patience, Retries, bounded_async, read_async, sleep_async, write_async
from skillery.client.results import NewBlob, Run, RunRecord, ToolResult, WorkspaceInfo
from skillery.client.wire import (
    IMPORT_HEADERS,
    ImportEvent,
    ImportOptions,
    blob_of,
    connection_errors,
    event_of,
    new_key,
    object_of,
    query_of,
    strange_answer,
)

MOST_LINE_BYTES = 8 * 1024 * 1024


class AsyncOpenBlob(NamedTuple):
    """A blob whose download has begun."""

    kind: str
    """The media type of the blob."""
    size_bytes: int | None
    pieces: AsyncIterator[bytes]
    """The content in pieces. After a connection error, the download continues at the same position."""


class AsyncTransfers(AsyncMethods):
    """The methods of the client that upload and download content of any size with constant memory."""

    _http: httpx.AsyncClient
    _retries: Retries
    _most_bytes: int

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send one request with the token to any path of the server, and yield the response of any status.

        The body of the response can be read in pieces. The request is never repeated. Raise ConnectionFailed if the
        connection fails.
        """
        with connection_errors(self._http):
            async with self._http.stream(
                method, path, content=content, headers=headers, params=params, extensions=IN_PIECES
            ) as response:
                yield response

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
        """Upload a blob with constant memory, and return its id and size.

        `content` is bytes, the path of a file, or an open file. `kind` is a media type; by default, it follows from the
        file name. `ttl` is the lifetime in seconds. After a connection error, the content is sent again from the start
        with the same idempotency key. If an open file cannot be rewound, the error is raised instead.
        """
        address = "/blobs" if ttl is None else f"/blobs?ttl={ttl}"
        key = idempotency_key or (new_key() if self._retries.has_retries else None)
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

    @asynccontextmanager
    async def open_blob(self, blob_id: str) -> AsyncIterator[AsyncOpenBlob]:
        """Open a blob for reading, and yield its media type, size and content.

        Raise NotFound at the start of the `with` block if the blob does not exist.
        """
        position = Position(0, None)
        pieces = self._pieces(blob_id, position, None)
        first = await anext(pieces, b"")
        try:
            yield AsyncOpenBlob(position.kind, position.total, _joined(first, pieces))
        finally:
            await pieces.aclose()

    def stream_blob(
        self, blob_id: str, *, start: int = 0, stop: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of a blob from `start` to `stop` (exclusive) in pieces.

        After a connection error, the download continues at the same position.
        """
        return self._pieces(blob_id, Position(start, stop), progress)

    async def download_blob(self, blob_id: str, target: Sink, *, progress: Progress | None = None) -> int:
        """Download a blob with constant memory, and return its size in bytes.

        `target` is the path of a file, or an open file. At a path, the file appears only when the download is complete.
        """
        size = 0
        with atomic_file(target) as file:
            async for piece in self.stream_blob(blob_id, progress=progress):
                await write_async(file, piece)
                size += len(piece)
        return size

    async def _pieces(self, blob_id: str, position: Position, progress: Progress | None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a blob from a position on. After a connection error, continue at the reached position."""
        patience = Patience(self._retries, repeatable=True)
        while not position.is_done:
            try:
                with connection_errors(self._http):
                    async with self._download(_address(blob_id), position.headers()) as response:
                        if response.status_code not in {200, 206}:
                            await response.aread()
                            object_of(response)
                        position.begin(response)
                        async for piece in response.aiter_raw():
                            position.at += len(piece)
                            # Received bytes reset the number of failed attempts.
                            patience = Patience(self._retries, repeatable=True)
                            if progress is not None:
                                progress(position.at - position.start, position.total)
                            yield piece
                return
            except ClientError as error:
                await sleep_async(patience.wait_after(error))

    @asynccontextmanager
    async def _download(self, address: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """Request a content, and yield the response of the server, or of its storage after a redirect."""
        async with self._http.stream("GET", address, headers=headers, extensions=IN_PIECES) as response:
            elsewhere = response.headers.get("location") if response.status_code == 307 else None
            if elsewhere is None:
                yield response
        if elsewhere is not None:
            # Another client, so that the token is not sent to the storage, and its certificate is checked.
            other = httpx.AsyncClient(timeout=self._http.timeout, event_hooks=bounded_async(self._most_bytes))
            async with other, other.stream("GET", elsewhere, headers=headers, extensions=IN_PIECES) as response:
                yield response

    # -- files of a run ------------------------------------------------------------------------------------------

    async def upload_files(self, files: Mapping[str, Source], *, ttl: int | None = None) -> list[RunFile]:
        """Upload files for the workspace of a run. `files` are contents by their path in the workspace.

        Return the value for the param `files` of `execute_skill`, `run_code` and `call_tool`.
        """
        run_files: list[RunFile] = []
        for path, content in files.items():
            blob = await self.upload_blob(content, ttl=ttl)
            run_files.append({"path": path, "blob_id": blob["blob_id"]})
        return run_files

    async def _with_uploads(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the params. If `files` is a mapping from paths to contents, upload the contents and replace it."""
        files = params.get("files")
        return {**params, "files": await self.upload_files(files)} if isinstance(files, Mapping) else params

    async def download_files(self, run: Run | RunRecord | ToolResult, folder: os.PathLike[str]) -> list[Path]:
        """Download the files of a run to a folder with constant memory, and return the paths.

        The run chose the names of the files. Raise ValueError if a name leads outside the folder; nothing is written
        then.
        """
        files = run.get("files", [])
        places = places_below(folder, [file["path"] for file in files])
        for file, place in zip(files, places, strict=True):
            place.parent.mkdir(parents=True, exist_ok=True)
            await self.download_blob(file["blob_id"], place)
        return places

    # -- files of a workspace -------------------------------------------------------------------------------------

    async def upload_workspace_file(
        self, workspace: str, path: str, content: Source, *, executable: bool = False
    ) -> WorkspaceInfo:
        """Add or replace a file of a workspace with constant memory, and return the workspace.

        Raise Busy if a run writes the workspace.
        """
        params = {"executable": "true"} if executable else None
        with open_upload(content) as upload, connection_errors(self._http):
            body, headers = _chunks(upload, None), upload.headers(DEFAULT_KIND, None)
            response = await self._http.put(
                _workspace_address(workspace, path), content=body, headers=headers, params=params
            )
            return cast("WorkspaceInfo", object_of(response))

    async def download_workspace_file(self, workspace: str, path: str, target: Sink) -> int:
        """Download a file of a workspace with constant memory, and return its size in bytes.

        `target` is the path of a file, or an open file. At a path, the file appears only when the download is complete.
        """
        return await self._save(_workspace_address(workspace, path), target)

    async def download_workspace(self, workspace: str, target: Sink) -> int:
        """Download all files of a workspace as a tar archive, and return the size of the archive in bytes."""
        return await self._save(f"/v1/workspaces/{quote(workspace, safe='')}/archive.tar", target)

    async def _save(self, address: str, target: Sink) -> int:
        """Download the content at an address to `target`, and return its size in bytes."""
        size = 0
        async with self.stream("GET", address) as response:
            if response.status_code != 200:
                await response.aread()
                object_of(response)
            with atomic_file(target) as file:
                async for piece in response.aiter_raw():
                    await write_async(file, piece)
                    size += len(piece)
        return size

    # -- archives ------------------------------------------------------------------------------------------------

    async def import_archive(
        self, archive: Source | AsyncIterator[bytes], **options: Unpack[ImportOptions]
    ) -> AsyncIterator[ImportEvent]:
        """Import an archive of skills (`POST /import`), and yield the events of the import while the server imports.

        `archive` is bytes, the path of a file, an open file, or an iterator over pieces. The events are `("begun", …)`,
        then `("skill", …)` for each skill, then `("summary", …)`. The archive is sent once. After an error, repeat the
        import: unchanged skills are not published again.
        """
        body, params = _pieces_of(archive), query_of(options)
        async with self.stream("POST", "/import", content=body, headers=IMPORT_HEADERS, params=params) as response:
            if response.status_code != 200:
                await response.aread()
                object_of(response)
            async for line in lines_of(response):
                yield event_of(response, line)


async def lines_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a response, except empty lines.

    Only a newline ends a line. httpx would also split at other line separators, which JSON strings may contain.
    """
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MOST_LINE_BYTES:
            raise strange_answer(response, f"with a line of more than {MOST_LINE_BYTES} bytes")
        for line in filter(None, lines):
            yield line
    if rest:
        yield rest


async def _chunks(upload: Upload, progress: Progress | None) -> AsyncIterator[bytes]:
    sent = 0
    while piece := await read_async(upload.file, upload.next_bytes(sent)):
        yield piece
        sent += len(piece)
        if progress is not None:
            progress(sent, upload.size)


async def _pieces_of(content: Source | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the content in pieces, whether it is a source or an iterator over pieces."""
    if not is_source(content):
        async for piece in cast("AsyncIterator[bytes]", content):
            yield piece
        return
    with open_upload(content) as upload:
        async for piece in _chunks(upload, None):
            yield piece


async def _joined(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in pieces:
        yield piece


def _address(blob_id: str) -> str:
    return f"/blobs/{quote(blob_id, safe=':')}"


def _workspace_address(workspace: str, path: str) -> str:
    return f"/v1/workspaces/{quote(workspace, safe='')}/files/{quote(path)}"


__all__ = ["AsyncOpenBlob", "AsyncTransfers", "lines_of"]
