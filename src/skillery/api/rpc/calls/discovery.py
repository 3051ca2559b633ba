"""What the API says of itself."""

from __future__ import annotations

from typing import Any

from skillery.api.rpc import params
from skillery.api.services import Services
from skillery.backends import Identity


async def discover(_: Services, __: Identity, ___: params.Discover) -> dict[str, Any]:
    from skillery.api.rpc.openrpc import document  # which is made from the table that this function stands in

    return document()
