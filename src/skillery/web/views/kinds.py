"""Kinds of contents: the kind decides how a page shows a content, how a browser gets the bytes, and its ending."""

from __future__ import annotations

import codecs
import re
from typing import Literal, NamedTuple, get_args
from urllib.parse import quote

HEAD_BYTES = 64 * 1024
"""The number of bytes from the start of a file that decide its kind."""


class ContentKind(NamedTuple):
    """The kind of a file, which decides how a page shows it and how it is sent."""

    group: Literal["text", "image", "binary"]
    media_type: str
    words: str
    """The kind in words, for people."""


TEXT = ContentKind("text", "text/plain; charset=utf-8", "text")
SVG = ContentKind("image", "image/svg+xml", "SVG image")
BINARY = ContentKind("binary", "application/octet-stream", "binary file")


_STARTS = (
    (b"\x89PNG\r\n\x1a\n", ContentKind("image", "image/png", "PNG image")),
    (b"\xff\xd8\xff", ContentKind("image", "image/jpeg", "JPEG image")),
    (b"GIF87a", ContentKind("image", "image/gif", "GIF image")),
    (b"GIF89a", ContentKind("image", "image/gif", "GIF image")),
    (b"PK\x03\x04", BINARY._replace(words="ZIP archive")),
    (b"\x1f\x8b", BINARY._replace(words="gzip archive")),
    (b"SQLite format 3\0", BINARY._replace(words="SQLite database")),
    (b"\x7fELF", BINARY._replace(words="program")),
    (b"\0asm", BINARY._replace(words="WebAssembly module")),
)


def ending_of(path: str) -> str:
    """Return the ending of a path without the dot, in lower case. A name without a dot is its own ending."""
    return path.rpartition("/")[2].rpartition(".")[2].lower()


def kind_of(path: str, head: bytes, size: int) -> ContentKind:
    """Return the kind of a file from its first HEAD_BYTES and its whole size. The path counts only for SVG."""
    for start, kind in _STARTS:
        if head.startswith(start):
            return kind
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return ContentKind("image", "image/webp", "WebP image")
    if b"%PDF-" in head[:1024]:
        return BINARY._replace(words="PDF document")
    if b"\0" in head or decoded(head, is_whole=len(head) >= size) is None:
        return BINARY
    return SVG if path.lower().endswith(".svg") else TEXT


def framed_kind(path: str, head: bytes, size: int) -> ContentKind:
    """Return the kind of a file in a frame: HTML and PDF, which browsers show there, or BINARY."""
    if head.startswith(b"%PDF-"):
        return ContentKind("text", "application/pdf", "PDF document")
    is_html = format_of(path, "") == "html" and kind_of(path, head, size) is TEXT
    return ContentKind("text", "text/html; charset=utf-8", "web page") if is_html else BINARY


def disposition(path: str, kind: ContentKind) -> str:
    """Return the value of the header Content-Disposition (RFC 6266). Binary files are downloads."""
    name = path.rpartition("/")[2]
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._- ") else "_" for char in name)
    how = "attachment" if kind.group == "binary" else "inline"
    return f"{how}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def decoded(head: bytes, *, is_whole: bool) -> str | None:
    """Return the bytes as text, or None if they are not UTF-8. Unless `is_whole`, drop a cut last character."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError:
        return None


_BOX = re.compile(r"""\bviewBox=["']\s*[-\d.]+[\s,]+[-\d.]+[\s,]+([\d.]{1,9})[\s,]+([\d.]{1,9})\s*["']""", re.ASCII)
_LARGEST = 20_000


def picture_size(head: bytes) -> tuple[int, int]:
    """Return the width and height in the first bytes of a picture, or zeros if they are not known.

    A page that knows the size does not move when the picture arrives.
    """
    width = height = 0
    if head.startswith(b"\x89PNG"):
        width, height = (int.from_bytes(head[start : start + 4], "big") for start in (16, 20))
    elif head.startswith(b"GIF8"):
        width, height = (int.from_bytes(head[start : start + 2], "little") for start in (6, 8))
    elif head[12:16] == b"VP8X":
        width, height = (int.from_bytes(head[start : start + 3], "little") + 1 for start in (24, 27))
    elif head[12:16] == b"VP8 ":
        width, height = (int.from_bytes(head[start : start + 2], "little") & 0x3FFF for start in (26, 28))
    elif head.startswith(b"\xff\xd8"):
        width, height = _jpeg_size(head)
    elif match := _BOX.search(head[:4096].decode("utf-8", "replace")):
        width, height = (round(float(text)) if text.count(".") < 2 and text != "." else 0 for text in match.groups())
    return (width, height) if 0 < width <= _LARGEST and 0 < height <= _LARGEST else (0, 0)


def _jpeg_size(head: bytes) -> tuple[int, int]:
    """Return the width and height in the first frame header (ITU-T T.81 §B.2.2), or zeros."""
    at = 2
    while at + 9 < len(head) and head[at] == 0xFF:
        if head[at + 1] in {0xC0, 0xC1, 0xC2}:
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4], "big"))
    return 0, 0


# -- The format of a text, and the ending of its name ------------------------------------------------------------------


Format = Literal["csv", "tsv", "jsonl", "json", "markdown", "svg", "html", ""]
_ALIASES: dict[str, Format] = {"ndjson": "jsonl", "geojson": "json", "ipynb": "json", "md": "markdown", "htm": "html"}
_FORMATS: dict[str, Format] = {name: name for name in get_args(Format)} | _ALIASES
"""The formats by the ending of a name."""
_ENDINGS = {
    "text/csv": "csv",
    "text/tab-separated-values": "tsv",
    "text/markdown": "md",
    "text/html": "html",
    "image/svg+xml": "svg",
    "application/json": "json",
    "application/jsonl": "jsonl",
    "application/x-ndjson": "jsonl",
    "application/x-ipynb+json": "ipynb",
    "application/pdf": "pdf",
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "text/plain": "txt",
}


def format_of(name: str, media_type: str) -> Format:
    """Return the format of a text, from its media type or from the ending of its name. "" is plain text."""
    return _FORMATS.get(_stated_ending(media_type)) or _FORMATS.get(ending_of(name), "")


def stated_words(media_type: str) -> str:
    """Return what a file is whose content is not read: its usual ending, or else the media type."""
    ending = _stated_ending(media_type)
    return f"{ending.upper()} file" if ending else media_type[:60]


def with_ending(name: str, media_type: str) -> str:
    """Return the name with the ending of the media type, unless the name has an ending already."""
    ending = _stated_ending(media_type)
    return f"{name}.{ending}" if ending and not name.lower().endswith(f".{ending}") else name


def _stated_ending(media_type: str) -> str:
    return _ENDINGS.get(media_type.partition(";")[0].strip().lower(), "")
