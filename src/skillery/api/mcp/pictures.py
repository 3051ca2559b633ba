"""Pictures that a run has left, for a model to look at: images of MCP beside its answer."""

from __future__ import annotations

from typing import Any

import msgspec

from skillery.api.errors import encode
from skillery.api.mcp.visits import Visit
from skillery.api.rpc.calling import Caller, perform
from skillery.backends import Identity

SHOWN = {"image/png", "image/jpeg"}
MOST_PICTURES = 4
MOST_BYTES = 512 * 1024
"""Of all together: a larger one is read as any blob is."""


async def with_pictures(visit: Visit, result: dict[str, Any]) -> dict[str, Any]:
    """The result of a tool, and the first small pictures among the files of its run, where the caller may read them."""
    shown: list[dict[str, str]] = []
    room = MOST_BYTES if may_read(visit.identity) else 0
    for file in _files(result["structuredContent"]):
        if file["kind"] in SHOWN and file["size_bytes"] <= room and len(shown) < MOST_PICTURES:
            asked = msgspec.Raw(encode({"blob_id": file["blob_id"], "mode": "full"}))
            answer, _ = await perform(visit.services, visit.identity, "read_blob", asked, None, encode)
            blob = msgspec.json.decode(answer) if answer is not None else {}
            if blob.get("encoding") == "base64" and not blob["truncated"]:
                room -= file["size_bytes"]
                shown.append({"type": "image", "data": blob["content"], "mimeType": file["kind"]})
    return result | {"content": [*result["content"], *shown]} if shown else result


def may_read(identity: Caller) -> bool:
    return isinstance(identity, Identity) and bool({"read", "admin"} & identity.scopes)


def _files(structured: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the answer of a run: methods that start none have no such files."""
    return structured.get("files", []) if "run_id" in structured else []
