"""An endpoint and its addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from skillery.edge.http import HttpRefusal
from skillery.edge.operations import Operation

Endpoint = Callable[[Any, Any, Any, dict[str, str]], Awaitable[None]]
"""Function that answers one request. The arguments are the ASGI scope, `receive`, `send`, and the headers by
lower-case name.
"""

SendFailure = Callable[[Any, Any, dict[str, str], HttpRefusal], Awaitable[None]]
"""Function that answers a failed request. The arguments are the ASGI scope, `send`, the headers and the refusal."""


class Route(NamedTuple):
    """An endpoint and its addresses."""

    name: str
    """Name of the endpoint in metrics and in the server's log."""
    endpoint: Endpoint
    operations: Sequence[Operation]
    """The descriptions of the endpoint for OpenAPI."""
    paths: tuple[str, ...] = ()
    """Addresses with parameters, in the notation of Litestar. If empty, `name` is the only address."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    """The HTTP methods of the addresses in `paths`. Without `paths`, the endpoint itself checks the HTTP method."""
    is_rpc: bool = False
    """Whether refused requests are answered with a JSON-RPC message."""
    is_guarded: bool = True
    """Whether Host and Origin of requests are checked."""
    is_mount: bool = False
    """Whether the endpoint also answers all addresses below `name`."""
    fail: SendFailure | None = None
    """How a request is answered that fails. None: with an error object as JSON."""
