"""Blobs: read the run's input blobs and its own blobs, write new ones. Here they are files in a temporary folder."""

from __future__ import annotations

import json
import re
import secrets
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_BLOB_ID = re.compile(r"[A-Za-z0-9_.:~-]{1,200}")


@cache
def _folder() -> TemporaryDirectory[str]:
    """Return the folder of this process, which is deleted when the process ends."""
    return TemporaryDirectory(prefix="skillery-blobs-")


def read_bytes(blob_id: str) -> bytes:
    """Return the content of an input blob, or of a blob that this run wrote. Raise FileNotFoundError for any other
    id.
    """
    if not isinstance(blob_id, str) or not _BLOB_ID.fullmatch(blob_id) or not blob_id.strip("."):
        raise FileNotFoundError(f"no blob {blob_id!r:.200}: a blob id looks like blob:3kf9…")
    try:
        return _path(blob_id).read_bytes()
    except FileNotFoundError:
        message = f"this process wrote no blob {blob_id!r}; outside a sandbox, write the input blobs of a test first"
        raise FileNotFoundError(message) from None


def read_text(blob_id: str) -> str:
    """Return the content as text, decoded from UTF-8."""
    return read_bytes(blob_id).decode()


def write_bytes(content: bytes, kind: str = "application/octet-stream") -> str:
    """Store `content` as a new blob and return its id. `kind` is a media type."""
    if not isinstance(kind, str):
        raise TypeError(f"the kind of a blob is a str, not {type(kind).__name__}")
    if len(kind) > 255 or not kind.isascii():
        raise ValueError("the kind of a blob is a media type of at most 255 ASCII characters, like text/csv")
    blob_id = f"blob:{secrets.token_hex(11)}"
    _path(blob_id).write_bytes(memoryview(content))
    return blob_id


def write_text(content: str, kind: str = "text/plain") -> str:
    return write_bytes(content.encode(), kind)


def write_json(obj: Any, kind: str = "application/json") -> str:
    """Store a value as JSON. Raise ValueError for NaN and infinity, which JSON does not have."""
    return write_bytes(json.dumps(obj, ensure_ascii=False, allow_nan=False).encode(), kind)


def _path(blob_id: str) -> Path:
    # Windows does not allow a colon in a file name.
    return Path(_folder().name, blob_id.replace(":", "~"))
