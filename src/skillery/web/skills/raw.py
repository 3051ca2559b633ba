"""`/s/{ref}/raw/{path}`: the bytes of a file, under headers that stop scripts."""

from __future__ import annotations

import asyncio
import io
from functools import partial
from typing import Any, BinaryIO, Protocol

from skillery.backends import Storage
from skillery.http.requests import CHUNK_BYTES, send_stream
from skillery.skills.files import FoundFile, find_file
from skillery.versions.version_tables import resolve_for_page
from skillery.web.frame import Direct, PageRequest
from skillery.web.sending import RAW_HEADERS
from skillery.web.skills.contents import HEAD_BYTES, disposition, kind_of
from skillery.web.skills.opened import exactly, file_path_of, reader_of, reference_of


class RawFile(Protocol):
    """A stored file."""

    @property
    def path(self) -> str: ...

    @property
    def sha256(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def open(self, storage: Storage) -> BinaryIO: ...


async def show_raw(request: PageRequest) -> Direct:
    found = await _find(request)

    async def send(send: Any) -> None:
        await send_raw(request, found, send)

    return Direct(send)


async def _find(request: PageRequest) -> FoundFile:
    """Return the file of the address. Raise SkillNotFound, VersionNotFound, LabelNotFound or FileNotInSkill if the
    caller sees no such file.
    """
    name, _, spec = reference_of(request)
    identity = reader_of(request)
    row = await request.read_page(partial(resolve_for_page, identity=identity, name=name, spec=spec))
    path = file_path_of(request, f"{name} {row.version}")
    return await request.read_page(
        partial(find_file, identity=identity, name=name, spec=exactly(row.version), path=path)
    )


async def send_raw(request: PageRequest, file: RawFile, send: Any) -> None:
    """Send a file, or its headers for HEAD. Only texts and images are shown; other files are downloads."""
    storage = request.site.core.registry.storage
    tag = f'"{file.sha256}"'
    fixed = [*RAW_HEADERS, ("etag", tag), ("cache-control", "private, no-cache"), ("vary", "Cookie")]
    if tag in request.headers.get("if-none-match", ""):
        await send({"type": "http.response.start", "status": 304, "headers": _raw(fixed)})
        await send({"type": "http.response.body", "body": b""})
        return
    stream = await asyncio.to_thread(file.open, storage)
    try:
        head = await asyncio.to_thread(stream.read, min(HEAD_BYTES, file.size_bytes))
        kind = kind_of(file.path, head, file.size_bytes)
        headers = [
            ("content-type", kind.media_type),
            ("content-length", str(file.size_bytes)),
            ("content-disposition", disposition(file.path, kind)),
            *fixed,
        ]
        if request.method == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": _raw(headers)})
            await send({"type": "http.response.body", "body": b""})
            return
        with request.site.answers.hold() as held:
            held.take(min(CHUNK_BYTES, file.size_bytes))
            await send_stream(send, 200, _raw(headers), _Joined(head, stream), file.size_bytes)
    finally:
        await asyncio.to_thread(stream.close)


class _Joined(io.BytesIO):
    """A stream whose first bytes are already read."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head = head
        self._rest = rest

    def read(self, size: int | None = -1) -> bytes:
        if self._head:
            chunk, self._head = self._head[:size], self._head[size:]
            return chunk
        return self._rest.read(-1 if size is None else size)


def _raw(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]
