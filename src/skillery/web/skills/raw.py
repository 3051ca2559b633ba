"""`/s/{ref}/raw/{path}`: the bytes of a file, with headers that stop scripts."""

from __future__ import annotations

import asyncio
import codecs
import io
from functools import partial
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol
from urllib.parse import quote

from skillery.backends import Storage
from skillery.http.requests import send_stream
from skillery.skills.files import FoundFile, find_file
from skillery.versions.version_tables import resolve_for_page
from skillery.web.frame import Direct, PageRequest
from skillery.web.sending import RAW_HEADERS
from skillery.web.skills.opened import exactly, file_path_of, reader_of, reference_of

# -- The kind of a file of a bundle. The kind decides how a browser gets the bytes -------------------------------------


HEAD_BYTES = 64 * 1024
"""The number of bytes from the start of a file that decide its kind."""
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png", "PNG image"),
    (b"\xff\xd8\xff", "image/jpeg", "JPEG image"),
    (b"GIF87a", "image/gif", "GIF image"),
    (b"GIF89a", "image/gif", "GIF image"),
)
_OTHERS = (
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip archive"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"\x7fELF", "program"),
    (b"\0asm", "WebAssembly module"),
)


class ContentKind(NamedTuple):
    """The kind of a file, which decides how a page shows it and how it is sent."""

    group: Literal["text", "image", "binary"]
    media_type: str
    words: str
    """The kind in words, for people."""


TEXT = ContentKind("text", "text/plain; charset=utf-8", "text")
SVG = ContentKind("image", "image/svg+xml", "SVG image")
BINARY = ContentKind("binary", "application/octet-stream", "binary file")


def kind_of(path: str, head: bytes, size: int) -> ContentKind:
    """Return the kind of a file. `head` has its first HEAD_BYTES, and `size` is its whole size.

    The path counts only for SVG.
    """
    for start, media_type, words in _IMAGES:
        if head.startswith(start):
            return ContentKind("image", media_type, words)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return ContentKind("image", "image/webp", "WebP image")
    if b"%PDF-" in head[:1024]:
        return BINARY._replace(words="PDF document")
    for start, words in _OTHERS:
        if head.startswith(start):
            return BINARY._replace(words=words)
    if not _is_text(head, is_whole=len(head) >= size):
        return BINARY
    return SVG if path.lower().endswith(".svg") else TEXT


def disposition(path: str, kind: ContentKind) -> str:
    """Return the value of the header Content-Disposition (RFC 6266). Binary files are downloads."""
    name = path.rpartition("/")[2]
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._- ") else "_" for char in name)
    how = "attachment" if kind.group == "binary" else "inline"
    return f"{how}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _is_text(head: bytes, *, is_whole: bool) -> bool:
    """Return whether the bytes are UTF-8 without NUL. Unless `is_whole`, the last character may be incomplete."""
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError:
        return False
    return True


class RawFile(Protocol):
    """Interface of a file that `send_raw` sends."""

    @property
    def path(self) -> str: ...

    @property
    def sha256(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def open(self, storage: Storage) -> BinaryIO: ...


async def show_raw(request: PageRequest) -> Direct:
    file = await _find(request)

    async def send(send: Any) -> None:
        await send_raw(request, file, send)

    return Direct(send)


async def _find(request: PageRequest) -> FoundFile:
    """Return the file in the address.

    Raise SkillNotFound, VersionNotFound, LabelNotFound or FileNotInSkill if the caller sees no such file.
    """
    name, _, spec = reference_of(request)
    identity = reader_of(request)
    row = await request.read_page(partial(resolve_for_page, identity=identity, name=name, spec=spec))
    path = file_path_of(request, f"{name} {row.version}")
    return await request.read_page(
        partial(find_file, identity=identity, name=name, spec=exactly(row.version), path=path)
    )


async def send_raw(request: PageRequest, file: RawFile, send: Any) -> None:
    """Send a file, or only its headers for HEAD. Browsers show texts and images, and store other files.

    If the browser has the file already (If-None-Match), send 304.
    """
    storage = request.site.core.registry.storage
    etag = f'"{file.sha256}"'
    common_headers = [*RAW_HEADERS, ("etag", etag), ("cache-control", "private, no-cache"), ("vary", "Cookie")]
    if etag in request.headers.get("if-none-match", ""):
        await send({"type": "http.response.start", "status": 304, "headers": _raw(common_headers)})
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
            *common_headers,
        ]
        if request.method == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": _raw(headers)})
            await send({"type": "http.response.body", "body": b""})
            return
        await send_stream(send, 200, _raw(headers), _Joined(head, stream), file.size_bytes)
    finally:
        await asyncio.to_thread(stream.close)


class _Joined(io.BytesIO):
    """A stream of bytes that were read already, followed by the rest of the stream."""

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
