"""Uploads and downloads of Client: blobs, archives, files of runs. Made by `make client`: do not edit."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
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
from skillery.client.generated import Methods, RunFile
from skillery.client.limits import IN_PIECES, Patience, Retries, bounded, read, sleep, write
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


class OpenBlob(NamedTuple):
    """A blob whose download has begun."""

    kind: str
    """The media type of the blob."""
    size_bytes: int | None
    pieces: Iterator[bytes]
    """The content in pieces. After a connection error, the download continues at the same position."""


class Transfers(Methods):
    """The methods of the client that upload and download content of any size with constant memory."""

    _http: httpx.Client
    _retries: Retries
    _most_bytes: int

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        """Send one request with the token to any path of the server, and yield the response of any status.

        The body of the response can be read in pieces. The request is never repeated. Raise ConnectionFailed if the
        connection fails.
        """
        with connection_errors(self._http):
            with self._http.stream(
                method, path, content=content, headers=headers, params=params, extensions=IN_PIECES
            ) as response:
                yield response

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
                        response = self._http.post(address, content=_chunks(upload, progress), headers=headers)
                    return blob_of(response)
                except ClientError as error:
                    if not upload.can_rewind:
                        raise
                    sleep(patience.wait_after(error))
                    upload.rewind()

    @contextmanager
    def open_blob(self, blob_id: str) -> Iterator[OpenBlob]:
        """Open a blob for reading, and yield its media type, size and content.

        Raise NotFound at the start of the `with` block if the blob does not exist.
        """
        position = Position(0, None)
        pieces = self._pieces(blob_id, position, None)
        first = next(pieces, b"")
        try:
            yield OpenBlob(position.kind, position.total, _joined(first, pieces))
        finally:
            pieces.close()

    def stream_blob(
        self, blob_id: str, *, start: int = 0, stop: int | None = None, progress: Progress | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes of a blob from `start` to `stop` (exclusive) in pieces.

        After a connection error, the download continues at the same position.
        """
        return self._pieces(blob_id, Position(start, stop), progress)

    def download_blob(self, blob_id: str, target: Sink, *, progress: Progress | None = None) -> int:
        """Download a blob with constant memory, and return its size in bytes.

        `target` is the path of a file, or an open file. At a path, the file appears only when the download is complete.
        """
        size = 0
        with atomic_file(target) as file:
            for piece in self.stream_blob(blob_id, progress=progress):
                write(file, piece)
                size += len(piece)
        return size

    def _pieces(self, blob_id: str, position: Position, progress: Progress | None) -> Generator[bytes, None, None]:
        """Yield the bytes of a blob from a position on. After a connection error, continue at the reached position."""
        patience = Patience(self._retries, repeatable=True)
        while not position.is_done:
            try:
                with connection_errors(self._http):
                    with self._download(_address(blob_id), position.headers()) as response:
                        if response.status_code not in {200, 206}:
                            response.read()
                            object_of(response)
                        position.begin(response)
                        for piece in response.iter_raw():
                            position.at += len(piece)
                            # Received bytes reset the number of failed attempts.
                            patience = Patience(self._retries, repeatable=True)
                            if progress is not None:
                                progress(position.at - position.start, position.total)
                            yield piece
                return
            except ClientError as error:
                sleep(patience.wait_after(error))

    @contextmanager
    def _download(self, address: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Request a content, and yield the response of the server, or of its storage after a redirect."""
        with self._http.stream("GET", address, headers=headers, extensions=IN_PIECES) as response:
            elsewhere = response.headers.get("location") if response.status_code == 307 else None
            if elsewhere is None:
                yield response
        if elsewhere is not None:
            # Another client, so that the token is not sent to the storage, and its certificate is checked.
            other = httpx.Client(timeout=self._http.timeout, event_hooks=bounded(self._most_bytes))
            with other, other.stream("GET", elsewhere, headers=headers, extensions=IN_PIECES) as response:
                yield response

    # -- files of a run ------------------------------------------------------------------------------------------

    def upload_files(self, files: Mapping[str, Source], *, ttl: int | None = None) -> list[RunFile]:
        """Upload files for the workspace of a run. `files` are contents by their path in the workspace.

        Return the value for the param `files` of `execute_skill`, `run_code` and `call_tool`.
        """
        run_files: list[RunFile] = []
        for path, content in files.items():
            blob = self.upload_blob(content, ttl=ttl)
            run_files.append({"path": path, "blob_id": blob["blob_id"]})
        return run_files

    def _with_uploads(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the params. If `files` is a mapping from paths to contents, upload the contents and replace it."""
        files = params.get("files")
        return {**params, "files": self.upload_files(files)} if isinstance(files, Mapping) else params

    def download_files(self, run: Run | RunRecord | ToolResult, folder: os.PathLike[str]) -> list[Path]:
        """Download the files of a run to a folder with constant memory, and return the paths.

        The run chose the names of the files. Raise ValueError if a name leads outside the folder; nothing is written
        then.
        """
        files = run.get("files", [])
        places = places_below(folder, [file["path"] for file in files])
        for file, place in zip(files, places, strict=True):
            place.parent.mkdir(parents=True, exist_ok=True)
            self.download_blob(file["blob_id"], place)
        return places

    # -- files of a workspace -------------------------------------------------------------------------------------

    def upload_workspace_file(
        self, workspace: str, path: str, content: Source, *, executable: bool = False
    ) -> WorkspaceInfo:
        """Add or replace a file of a workspace with constant memory, and return the workspace.

        Raise Busy if a run writes the workspace.
        """
        params = {"executable": "true"} if executable else None
        with open_upload(content) as upload, connection_errors(self._http):
            body, headers = _chunks(upload, None), upload.headers(DEFAULT_KIND, None)
            response = self._http.put(_workspace_address(workspace, path), content=body, headers=headers, params=params)
            return cast("WorkspaceInfo", object_of(response))

    def download_workspace_file(self, workspace: str, path: str, target: Sink) -> int:
        """Download a file of a workspace with constant memory, and return its size in bytes.

        `target` is the path of a file, or an open file. At a path, the file appears only when the download is complete.
        """
        return self._save(_workspace_address(workspace, path), target)

    def download_workspace(self, workspace: str, target: Sink) -> int:
        """Download all files of a workspace as a tar archive, and return the size of the archive in bytes."""
        return self._save(f"/v1/workspaces/{quote(workspace, safe='')}/archive.tar", target)

    def _save(self, address: str, target: Sink) -> int:
        """Download the content at an address to `target`, and return its size in bytes."""
        size = 0
        with self.stream("GET", address) as response:
            if response.status_code != 200:
                response.read()
                object_of(response)
            with atomic_file(target) as file:
                for piece in response.iter_raw():
                    write(file, piece)
                    size += len(piece)
        return size

    # -- archives ------------------------------------------------------------------------------------------------

    def import_archive(
        self, archive: Source | Iterator[bytes], **options: Unpack[ImportOptions]
    ) -> Iterator[ImportEvent]:
        """Import an archive of skills (`POST /import`), and yield the events of the import while the server imports.

        `archive` is bytes, the path of a file, an open file, or an iterator over pieces. The events are `("begun", …)`,
        then `("skill", …)` for each skill, then `("summary", …)`. The archive is sent once. After an error, repeat the
        import: unchanged skills are not published again.
        """
        body, params = _pieces_of(archive), query_of(options)
        with self.stream("POST", "/import", content=body, headers=IMPORT_HEADERS, params=params) as response:
            if response.status_code != 200:
                response.read()
                object_of(response)
            for line in lines_of(response):
                yield event_of(response, line)


def lines_of(response: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of a response, except empty lines.

    Only a newline ends a line. httpx would also split at other line separators, which JSON strings may contain.
    """
    rest = b""
    for chunk in response.iter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MOST_LINE_BYTES:
            raise strange_answer(response, f"with a line of more than {MOST_LINE_BYTES} bytes")
        for line in filter(None, lines):
            yield line
    if rest:
        yield rest


def _chunks(upload: Upload, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    while piece := read(upload.file, upload.next_bytes(sent)):
        yield piece
        sent += len(piece)
        if progress is not None:
            progress(sent, upload.size)


def _pieces_of(content: Source | Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content in pieces, whether it is a source or an iterator over pieces."""
    if not is_source(content):
        for piece in cast("Iterator[bytes]", content):
            yield piece
        return
    with open_upload(content) as upload:
        for piece in _chunks(upload, None):
            yield piece


def _joined(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    for piece in pieces:
        yield piece


def _address(blob_id: str) -> str:
    return f"/blobs/{quote(blob_id, safe=':')}"


def _workspace_address(workspace: str, path: str) -> str:
    return f"/v1/workspaces/{quote(workspace, safe='')}/files/{quote(path)}"


__all__ = ["OpenBlob", "Transfers", "lines_of"]
