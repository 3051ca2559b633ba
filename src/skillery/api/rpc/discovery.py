"""CALLABLE, the table of everything that a client can call: METHODS, and `rpc.discover`, which describes all
methods.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from skillery.api.rpc.openrpc import document_of
from skillery.backends import Identity
from skillery.method import Method, Params
from skillery.methods.core import Core
from skillery.methods.table import METHODS


class OpenRpcDocument(msgspec.Struct, frozen=True):
    """The OpenRPC document of this server."""

    openrpc: str
    info: dict[str, Any]
    methods: list[dict[str, Any]]
    components: dict[str, Any]


class Discover(Params, frozen=True, kw_only=True):
    """Describe every method as an OpenRPC document."""


async def discover(_: Core, __: Identity, ___: Discover) -> OpenRpcDocument:
    return OpenRpcDocument(**document())


SYSTEM: dict[str, Method] = {
    "rpc.discover": Method(discover, None, audits=""),
}
"""Methods of JSON-RPC itself. JSON-RPC reserves names with the prefix `rpc.` for such methods."""
CALLABLE = METHODS | SYSTEM


@cache
def document() -> dict[str, Any]:
    """Return the OpenRPC document of all methods in CALLABLE. The document is the same for every caller."""
    return document_of(CALLABLE)
