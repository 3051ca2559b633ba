"""Pages and endpoints of plugins, below `/x/<plugin>/`: the values of the hook `routes`.

A server checks Host, Origin, credentials, scope, Content-Type and size of a request before the plugin sees it. It also
limits the time and the number of requests, adds security headers, and answers errors as Skillery's own endpoints do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from skillery.backends import Identity, Scope

JSON = "application/json"
HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Request(msgspec.Struct, frozen=True):
    """A request to a route of a plugin. The server has checked the caller."""

    method: str
    """The HTTP method: that of the route, or HEAD for a route with GET. The server drops the content of HEAD."""
    path: str
    """The path below `/x/<plugin>/`, without a slash at its beginning."""
    identity: Identity | None
    """The caller. None for a public route."""
    parameters: Mapping[str, str] = {}
    """The values of `{name}` in the path of the route."""
    query: Mapping[str, str] = {}
    """The query. If a name occurs several times, the last value."""
    headers: Mapping[str, str] = {}
    """The headers by lower-case name, without the credentials (`authorization` and `cookie`)."""
    body: bytes = b""


class Response(msgspec.Struct, frozen=True):
    """The answer of a route."""

    content: bytes | str = b""
    kind: str = TEXT
    """The Content-Type."""
    status: int = 200
    """The HTTP status. The server drops the content of 204, 205 and 304."""
    headers: Mapping[str, str] = {}
    """Further headers: those in RESPONSE_HEADERS, and names that begin with `x-`."""


RESPONSE_HEADERS = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-language",
        "content-security-policy",
        "etag",
        "last-modified",
        "link",
        "location",
        "retry-after",
        "vary",
    }
)
"""The headers that a Response may have. A plugin sets no cookies and no headers of the connection."""


def json_response(value: Any, status: int = 200) -> Response:
    """Return an answer with a value as JSON. Raise TypeError if the value has no form in JSON."""
    return Response(msgspec.json.encode(value), JSON, status)


class Route(msgspec.Struct, frozen=True):
    """An address of a plugin, and the function that answers it."""

    path: str
    """The path below `/x/<plugin>/`: `reports/{name}`. `{name}` stands for one segment. Empty: `/x/<plugin>/`."""
    answer: Callable[[Request], Response]
    """A blocking function, called in threads of the plugin. A SkilleryError becomes the error object that Skillery
    answers for it. Any other exception is answered with status 500.
    """
    needs: Scope | Literal["public"]
    """The scope that the caller needs. `public`: the server does not ask for credentials."""
    method: Method = "GET"
    kinds: tuple[str, ...] = (JSON,)
    """The Content-Types of a request with a method other than GET. `*/*` accepts all."""
    max_body_bytes: int = 1024 * 1024
    seconds: float = 30.0
    """The longest time for an answer. The setting `hook_seconds` may lower it."""
