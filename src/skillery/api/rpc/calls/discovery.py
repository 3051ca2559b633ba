"""rpc.discover: the description of the API."""

from __future__ import annotations

from typing import Any

import msgspec

from skillery.api.core import Core
from skillery.api.rpc import params
from skillery.backends import Identity


class OpenRpcDocument(msgspec.Struct, frozen=True):
    """The OpenRPC document of this server."""

    openrpc: str
    info: dict[str, Any]
    methods: list[dict[str, Any]]
    components: dict[str, Any]


async def discover(_: Core, __: Identity, ___: params.Discover) -> OpenRpcDocument:
    # Imported here: the document is made from the table that this function stands in.
    from skillery.api.rpc.openrpc import document

    return OpenRpcDocument(**document())
