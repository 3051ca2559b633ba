"""Pictures for models: small pictures among the files of a run become image content of MCP."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from skillery.api.errors import encode
from skillery.api.mcp.requests import Visit
from skillery.api.rpc.dispatch import Caller, perform
from skillery.backends import Identity

SHOWN = {"image/png", "image/jpeg"}
MOST_PICTURES = 4
MOST_BYTES = 512 * 1024
"""Limit of the bytes of all pictures in one answer together. Clients read larger pictures with read_blob."""
MOST_PIXELS = 8000
"""Limit of the width and of the height of a PNG, in pixels."""


async def with_pictures(visit: Visit, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool call with up to 4 small pictures of the run as image content.

    Return `result` unchanged if the caller may not read blobs, or if the run wrote no small picture.
    """
    shown: list[dict[str, str]] = []
    room = MOST_BYTES if may_read(visit.identity) else 0
    for file in _files(result["structuredContent"]):
        if file["kind"] in SHOWN and file["size_bytes"] <= room and len(shown) < MOST_PICTURES:
            asked = msgspec.Raw(encode({"blob_id": file["blob_id"], "mode": "full"}))
            answer, _ = await perform(visit.core, visit.identity, "read_blob", asked, None)
            blob = msgspec.json.decode(b"".join(answer)) if answer is not None else {}
            if blob.get("encoding") == "base64" and not blob["truncated"] and is_picture(file["kind"], blob["content"]):
                room -= file["size_bytes"]
                shown.append({"type": "image", "data": blob["content"], "mimeType": file["kind"]})
    return result | {"content": [*result["content"], *shown]} if shown else result


def is_picture(kind: str, content: str) -> bool:
    """Return whether the content is a picture that models accept. `content` is base64, `kind` its media type.

    The check is necessary because the media type comes from the name of the file. If one image is not valid, a model
    refuses the whole conversation.
    """
    data = base64.b64decode(content)
    if kind == "image/jpeg":
        return data.startswith(b"\xff\xd8\xff") and data.rstrip(b"\0").endswith(b"\xff\xd9")
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    is_whole = data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") and data.endswith(b"IEND\xaeB`\x82")
    return is_whole and 0 < width <= MOST_PIXELS and 0 < height <= MOST_PIXELS


def may_read(identity: Caller) -> bool:
    return isinstance(identity, Identity) and bool({"read", "admin"} & identity.scopes)


def _files(structured: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the files of a run from the result of a tool call, or [] if the method does not start runs."""
    return structured.get("files", []) if "run_id" in structured else []
