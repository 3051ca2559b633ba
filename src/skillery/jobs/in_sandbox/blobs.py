"""Blobs: read the input blobs of the run, write new blobs, and read them."""

# ruff: noqa: PTH123 - importing pathlib costs every run milliseconds
from __future__ import annotations

import json
import re

from . import _asking

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

_BLOB_ID = re.compile(r"[A-Za-z0-9_.:~-]{1,200}")


def read_bytes(blob_id: str) -> bytes:
    """Return the content of an input blob, or of a blob that this run wrote. Raise FileNotFoundError for any other
    id.
    """
    if not isinstance(blob_id, str) or not _BLOB_ID.fullmatch(blob_id) or not blob_id.strip("."):
        raise FileNotFoundError(f"no blob {blob_id!r:.200}: a blob id looks like blob:3kf9…")
    try:
        with open(f"{_asking.blobs_folder()}/{blob_id}", "rb") as file:
            return file.read()
    except FileNotFoundError:
        return _asking.ask("blob_read", {"blob_id": blob_id})


def read_text(blob_id: str) -> str:
    """Return the content as text, decoded from UTF-8."""
    return read_bytes(blob_id).decode()


def write_bytes(content: bytes, kind: str = "application/octet-stream") -> str:
    """Store `content` as a new blob and return its id. `kind` is a media type."""
    if not isinstance(kind, str):
        raise TypeError(f"the kind of a blob is a str, not {type(kind).__name__}")
    if len(kind) > 255 or not kind.isascii():
        raise ValueError("the kind of a blob is a media type of at most 255 ASCII characters, like text/csv")
    body = memoryview(content).cast("B") if len(content) else b""
    return _asking.ask("blob_write", {"kind": kind}, body).decode()


def write_text(content: str, kind: str = "text/plain") -> str:
    return write_bytes(content.encode(), kind)


def write_json(obj: Any, kind: str = "application/json") -> str:
    """Store a value as JSON. Raise ValueError for NaN and infinity, which JSON does not have."""
    try:
        text = json.dumps(obj, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        if not str(error).startswith("Out of range float"):
            raise
        raise ValueError(f"{error}: put None in the place of NaN and infinity") from None
    return write_bytes(text.encode(), kind)
