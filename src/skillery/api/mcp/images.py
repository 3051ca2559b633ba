"""Pictures for models: small pictures among the files of a run become image content of MCP."""

from __future__ import annotations

from typing import Any

import msgspec

from skillery.api.mcp.requests import Visit
from skillery.backends import Identity
from skillery.client.pictures import Pictures
from skillery.methods.errors import encode
from skillery.methods.execution import Caller, perform


async def with_pictures(visit: Visit, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool call with up to 4 small pictures of the run as image content.

    Return `result` unchanged if the caller may not read blobs, or if the run wrote no small picture.
    """
    pictures = Pictures()
    for file in pictures.candidates(result["structuredContent"]) if may_read(visit.identity) else ():
        asked = msgspec.Raw(encode({"blob_id": file["blob_id"], "mode": "full"}))
        answer, _ = await perform(visit.core, visit.identity, "read_blob", asked, None)
        pictures.add(file, msgspec.json.decode(b"".join(answer)) if answer is not None else {})
    shown = [{"type": "image", "data": data, "mimeType": kind} for kind, data in pictures.found]
    return result | {"content": [*result["content"], *shown]} if shown else result


def may_read(identity: Caller) -> bool:
    return isinstance(identity, Identity) and bool({"read", "admin"} & identity.scopes)
