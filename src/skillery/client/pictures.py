"""Pictures for models: which files of a run are shown as images."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

SHOWN = frozenset({"image/png", "image/jpeg"})
MOST_PICTURES = 4
MOST_BYTES = 512 * 1024
"""Limit of the bytes of all pictures of one answer together. Models read larger pictures with read_blob."""
MOST_PIXELS = 8000
"""Limit of the width and of the height of a PNG."""


def is_picture(kind: str, content: str) -> bool:
    """Return whether the content, in base64, is a picture that models accept.

    The kind of a file depends only on its name. A model refuses the whole conversation if one image is not valid.
    """
    data = base64.b64decode(content)
    if kind == "image/jpeg":
        return data.startswith(b"\xff\xd8\xff") and data.rstrip(b"\0").endswith(b"\xff\xd9")
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    is_whole = data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") and data.endswith(b"IEND\xaeB`\x82")
    return is_whole and 0 < width <= MOST_PIXELS and 0 < height <= MOST_PIXELS


class Pictures:
    """The pictures of one answer."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        """Media types, and contents in base64."""
        self._room = MOST_BYTES

    def candidates(self, result: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the files of a run that may be pictures and that have room in the answer."""
        if not isinstance(result, Mapping) or "run_id" not in result:
            return
        files = result.get("files")
        # `files` of a workspace is a number.
        for file in files if isinstance(files, list) else ():
            if file["kind"] in SHOWN and file["size_bytes"] <= self._room and len(self.found) < MOST_PICTURES:
                yield file

    def add(self, file: Mapping[str, Any], blob: Mapping[str, Any]) -> None:
        """Add a file with its blob. Do nothing if the blob is not a whole picture."""
        whole = blob.get("encoding") == "base64" and not blob["truncated"]
        if whole and is_picture(file["kind"], blob["content"]):
            self._room -= file["size_bytes"]
            self.found.append((file["kind"], blob["content"]))
