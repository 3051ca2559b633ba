"""`/s/{ref}/files` and `/s/{ref}/files/{path}`: the tree of a bundle, and one file with line numbers."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple, Protocol

from markupsafe import Markup

from skillery.backends import Storage
from skillery.http.requests import send_stream
from skillery.skills.files import FileRow, FoundFile, find_file, list_files
from skillery.versions.version_tables import resolve_for_page
from skillery.web.frame import Direct, Page, PageRequest, path_of
from skillery.web.rendered_texts import MOST_HIGHLIGHTED
from skillery.web.rendering import has_lexer
from skillery.web.sending import RAW_HEADERS
from skillery.web.skill_opened import Opened, exactly, file_path_of, open_version, page_of, reader_of, reference_of
from skillery.web.views.kinds import HEAD_BYTES, decoded, disposition, kind_of


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


MOST_SHOWN = 1024 * 1024
"""A text up to this size in bytes is shown completely."""
FIRST_BYTES = 200_000
"""The number of bytes that are shown of a larger text."""
MOST_LINES = 20_000
LINES_AT_ONCE = 100
"""The number of lines in one block. The browser lays out only the blocks that are in view."""


class Node(NamedTuple):
    """A file, or a folder with its nodes."""

    name: str
    path: str
    size_bytes: int
    nodes: tuple[Node, ...] | None
    """The nodes of a folder, or None for a file."""
    is_open: bool
    """Whether the folder contains the shown file."""


async def show_files(request: PageRequest) -> Page:
    opened = await open_version(request)
    return _page(request, opened, await _rows(request, opened), "", {"file": None})


async def show_file(request: PageRequest) -> Page:
    """Show a file, or the tree of files if the path is a folder."""
    opened = await open_version(request)
    path = file_path_of(request, f"{opened.name} {opened.version}")
    rows = await _rows(request, opened)
    if not any(row.path == path for row in rows) and any(row.path.startswith(f"{path}/") for row in rows):
        return _page(request, opened, rows, path, {"file": None})
    identity, spec = reader_of(request), exactly(opened.version)
    file = await request.read_page(partial(find_file, identity=identity, name=opened.name, spec=spec, path=path))
    return _page(request, opened, rows, path, {"file": await _viewed(request, opened, file)})


async def _rows(request: PageRequest, opened: Opened) -> list[FileRow]:
    """Return the rows of all files of the version."""
    identity, spec = reader_of(request), exactly(opened.version)
    return (await request.read_page(partial(list_files, identity=identity, name=opened.name, spec=spec)))[1]


def _page(request: PageRequest, opened: Opened, rows: list[FileRow], path: str, values: dict[str, Any]) -> Page:
    """Return the page with the tree of files, opened at `path`."""
    shared_values = {
        "files_count": len(rows),
        "tree": _tree(rows, path),
        "path": path,
        "total": sum(row.size_bytes for row in rows),
    }
    return page_of(request, opened, "files", "skill_files.html", part=path or "Files", **shared_values, **values)


async def _viewed(request: PageRequest, opened: Opened, file: FoundFile) -> dict[str, Any]:
    """Return the template values of the viewer for a file. The text is missing if the file is not text."""
    size = file.size_bytes
    bytes_to_read = MOST_SHOWN if size <= MOST_SHOWN else FIRST_BYTES
    head = await asyncio.to_thread(_head, request, file, bytes_to_read)
    kind = kind_of(file.path, head, size)
    at = f"{opened.name}@{opened.version}"
    values: dict[str, Any] = {
        "path": file.path,
        "size": size,
        "sha256": file.sha256,
        "kind": kind,
        "raw": path_of("s", at, "raw", file.path),
        "lines": 0,
    }
    if kind.group == "image" and kind.words != "SVG image":
        return values
    text = decoded(head, is_whole=len(head) >= size)
    if text is None or kind.group == "binary":
        return {**values, "kind": kind if kind.group != "text" else kind._replace(group="binary", words="binary file")}
    # The key of the cache has the digest of the file, so that unchanged files of other versions are found too.
    rendered_text = await request.site.texts.code(file.sha256, file.path, text)
    return {
        **values,
        "text": _numbered(rendered_text.lines[:MOST_LINES]),
        "lines": min(len(rendered_text.lines), MOST_LINES) if text else 0,
        "lines_total": len(rendered_text.lines),
        "is_cut": len(head) < size,
        "is_long": len(rendered_text.lines) > MOST_LINES,
        "is_plain": rendered_text.is_plain and has_lexer(file.path),
        "is_large": len(text) > MOST_HIGHLIGHTED,
        "has_crlf": "\r\n" in text,
    }


def _numbered(lines: Sequence[Markup]) -> Markup:
    """Return the lines as HTML, each with its number and id. A template would be too slow for 20,000 lines."""
    parts = []
    for start in range(0, len(lines), LINES_AT_ONCE):
        block = lines[start : start + LINES_AT_ONCE]
        numbered = [f'<span id="L{n}" data-n="{n}">{line}\n</span>' for n, line in enumerate(block, start + 1)]
        # Only a whole block has a known height.
        parts.append(f'<span class="{"block" if len(block) == LINES_AT_ONCE else "end"}">{"".join(numbered)}</span>')
    return Markup("".join(parts))  # noqa: S704 - the lines are HTML already


def _head(request: PageRequest, file: FoundFile, most: int) -> bytes:
    """Return at most the first `most` bytes of a file. Blocking."""
    with file.open(request.site.core.registry.storage) as stream:
        parts = bytearray()
        while len(parts) < most and (chunk := stream.read(most - len(parts))):
            parts += chunk
        return bytes(parts)


def _tree(rows: list[FileRow], shown: str) -> tuple[Node, ...]:
    """Return the top nodes of the tree. `shown` is the path of the shown file."""
    folders: dict[str, Any] = {}
    for row in rows:
        *above, name = row.path.split("/")
        folder = folders
        for segment in above:
            folder = folder.setdefault(segment, {})
        folder[name] = row
    return _nodes(folders, "", shown)


def _nodes(folder: dict[str, Any], above: str, shown: str) -> tuple[Node, ...]:
    """Return the nodes of a folder: SKILL.md, then folders, then files. `above` is the path of the folder with a slash.

    `folder` has a row for each file, and a dict for each folder.
    """
    children = []
    for name, item in folder.items():
        path = f"{above}{name}"
        if isinstance(item, dict):
            nodes = _nodes(item, f"{path}/", shown)
            size = sum(node.size_bytes for node in nodes)
            children.append(Node(name, path, size, nodes, shown == path or shown.startswith(f"{path}/")))
        else:
            children.append(Node(name, path, item.size_bytes, None, False))
    return tuple(sorted(children, key=lambda node: (node.path != "SKILL.md", node.nodes is None, node.name.lower())))
