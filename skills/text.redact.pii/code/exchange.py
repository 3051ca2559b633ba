"""What passes between a run and its caller: blobs in, small answers out."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from runtime import blobs

PREVIEW_BYTES = 2400


def open_text(blob_id: str, encoding: str = "utf-8", errors: str = "strict") -> TextIO:
    """The blob as a text stream, line ends as they are. A mounted blob is read piece by piece, whatever its size."""
    mounted = Path("/blobs", blob_id)
    if "/" not in blob_id and mounted.is_file():
        raw: Any = mounted.open("rb")
    else:
        raw = io.BytesIO(blobs.read_bytes(blob_id))
    return io.TextIOWrapper(raw, encoding="utf-8-sig" if encoding == "utf-8" else encoding, errors=errors, newline="")


def fitting(items: Sequence[Any], limit: int = PREVIEW_BYTES) -> list[Any]:
    """As many of the first items as have at most `limit` bytes of JSON together."""
    size = 0
    for count, item in enumerate(items):
        size += len(json.dumps(item, ensure_ascii=False).encode("utf-8", "replace")) + 1
        if size > limit:
            return list(items[:count])
    return list(items)


def shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
