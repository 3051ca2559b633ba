"""The kind of a file of a bundle. The kind decides how a browser gets the bytes."""

from __future__ import annotations

import codecs
from typing import Literal, NamedTuple
from urllib.parse import quote

HEAD_BYTES = 64 * 1024
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
    group: Literal["text", "image", "binary"]
    media_type: str
    words: str
    """The kind for people."""


TEXT = ContentKind("text", "text/plain; charset=utf-8", "text")
SVG = ContentKind("image", "image/svg+xml", "SVG image")
BINARY = ContentKind("binary", "application/octet-stream", "binary file")


def kind_of(path: str, head: bytes, size: int) -> ContentKind:
    """Return the kind of a file. `head` has its first HEAD_BYTES. The name of the file counts only for SVG."""
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
    """Return the value of Content-Disposition (RFC 6266) with the name of the file."""
    name = path.rpartition("/")[2]
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._- ") else "_" for char in name)
    how = "attachment" if kind.group == "binary" else "inline"
    return f"{how}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _is_text(head: bytes, *, is_whole: bool) -> bool:
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError:
        return False
    return True
