"""`/x/<plugin>/…`: pages and endpoints of plugins, with the same checks as Skillery's own endpoints."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from litestar.openapi.spec import Schema

from skillery.backends import Identity
from skillery.context.budget import answer_room
from skillery.errors import Busy, SkilleryError, Unavailable
from skillery.http.exchanges import headers_of_all_answers
from skillery.http.gate import Gate
from skillery.http.operations import BINARY, JSON, Body, Operation
from skillery.http.operations import Response as Described
from skillery.http.requests import HttpRefusal, address_of, read_body, send_bytes
from skillery.methods.errors import INVALID_REQUEST, NOT_FOUND, plain_error
from skillery.plugins.calls import Failures, PluginFailed, PluginFunction
from skillery.routes import RESPONSE_HEADERS, Request, Response, Route

PREFIX = "/x"
ACTION = "plugin_request"
"""The action in the audit trail for requests to plugins."""
MOST_REQUESTS = 64
"""The maximum number of active requests to one plugin."""
MOST_OF_CALLER = 16
"""The maximum number of active requests of one caller to one plugin."""
CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})
"""Headers that plugins do not get."""
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; img-src 'self'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, no-store",
}
"""Headers of each answer of a plugin. A plugin may only replace those that are in RESPONSE_HEADERS."""
WITHOUT_CONTENT = frozenset({204, 205, 304})
"""Statuses whose answers have no content (RFC 9110 §15). Clients would read content as the start of the next answer."""

_OWN_HEADER = re.compile(r"[Xx]-[A-Za-z0-9_-]+")

Record = Callable[[Identity, str, str], Awaitable[None]]
"""Function that adds an entry to the audit trail. Its parameters are the caller, the action and the subject."""


class PluginFault(SkilleryError):
    """Raised if a plugin raises an error or returns an invalid answer to a request."""

    type = "plugin_failed"


class PluginParts(NamedTuple):
    """The parts of the server that the endpoints for plugins use."""

    gate: Gate
    failures: Failures
    record: Record
    hook_seconds: float


class _Address(NamedTuple):
    """A route of a plugin, with the segments of its path and its function."""

    route: Route
    segments: tuple[str, ...]
    function: PluginFunction


class PluginRoutes:
    """Answers all addresses below `/x/`. `routes` has the routes of each plugin, by the name of the plugin."""

    def __init__(self, parts: PluginParts, routes: Mapping[str, list[Route]]) -> None:
        self._parts = parts
        self._addresses = {
            plugin: [self._address(plugin, route) for route in plugin_routes]
            for plugin, plugin_routes in routes.items()
        }
        self.operations = [
            _operation(plugin, route) for plugin, plugin_routes in routes.items() for route in plugin_routes
        ]
        """The descriptions of all routes, for OpenAPI."""
        self._requests: Counter[tuple[str, str]] = Counter()
        """The numbers of active requests by (plugin, caller), and by (plugin, "") for all callers."""

    def _address(self, plugin: str, route: Route) -> _Address:
        name = f"{route.method} {route.path}".rstrip()
        function = PluginFunction(plugin, name, _Answering(route), self._parts.failures)
        return _Address(route, _segments(route.path), function)

    async def answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Check the request, call the function of the plugin's route, and send its answer."""
        plugin, path = _plugin_and_path(scope)
        address, parameters = self._find(plugin, path, scope["method"])
        route, parts = address.route, self._parts
        identity = None
        if route.needs != "public":
            identity = await parts.gate.admit(scope, headers, route.needs, ACTION)
        _check_kind(route, headers)
        with self._counted(plugin, identity.name if identity else address_of(scope)):
            body = b"" if route.method == "GET" else await read_body(receive, headers, route.max_body_bytes)
            request = Request(
                method=scope["method"],
                path="/".join(path),
                identity=identity,
                parameters=parameters,
                query=dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)),
                headers={name: value for name, value in headers.items() if name not in CREDENTIALS},
                body=body,
            )
            # Before the call: the plugin may change something, and no change may be without its entry.
            if identity is not None and route.method != "GET":
                await parts.record(identity, ACTION, f"{route.method} {PREFIX}/{plugin}/{request.path}")
            answer_room.get().begin(ACTION, is_refusable=route.method == "GET")
            response = await self._call(address, request)
        await self._send(send, response)

    def _find(self, plugin: str, path: tuple[str, ...], method: str) -> tuple[_Address, dict[str, str]]:
        """Return the route for a path and method, and the parameters in the path. Raise HttpRefusal 404 or 405."""
        matches = []
        for candidate in self._addresses.get(plugin, ()):
            values = _values(candidate.segments, path)
            if values is not None:
                matches.append((candidate, values))
        for address, values in matches:
            if method == address.route.method or (method, address.route.method) == ("HEAD", "GET"):
                return address, values
        if matches:
            allowed = ", ".join(sorted({address.route.method for address, _ in matches}))
            message = f"this address takes {allowed}"
            raise HttpRefusal(405, plain_error(INVALID_REQUEST, message, "method_not_allowed"), [("allow", allowed)])
        raise _nothing_here()

    @contextmanager
    def _counted(self, plugin: str, caller: str) -> Iterator[None]:
        """Count the block as one active request. Raise Busy if there are too many."""
        of_plugin, of_caller = (plugin, ""), (plugin, f"of {caller}")
        if self._requests[of_plugin] >= MOST_REQUESTS or self._requests[of_caller] >= MOST_OF_CALLER:
            raise Busy(
                f"the plugin '{plugin}' has too many requests at present",
                hint="Nothing was done. Try again after retry_after_ms.",
                retry_after_ms=1000,
            )
        self._requests.update((of_plugin, of_caller))
        try:
            yield
        finally:
            self._requests.subtract((of_plugin, of_caller))
            if not self._requests[of_caller]:
                del self._requests[of_caller]

    async def _call(self, address: _Address, request: Request) -> Response:
        """Return the checked answer of the plugin. Raise its SkilleryError, PluginFault, or Unavailable after a
        timeout.
        """
        seconds = min(address.route.seconds, self._parts.hook_seconds)
        plugin = address.function.plugin
        try:
            response = await address.function.call(seconds, request=request)
        except PluginFailed as failed:
            if failed.reason in {"timed_out", "hangs"}:
                raise Unavailable(f"the plugin '{plugin}' did not answer in time", hint="Try again later.") from None
            raise _fault(plugin) from None
        if isinstance(response, SkilleryError):
            raise response
        if _is_valid(response):
            checked: Response = response
            return checked
        name = f"{address.route.method} {address.route.path}".rstrip()
        self._parts.failures.note(
            plugin, name, "invalid", f"a route must return a valid Response, not {response!r:.200}"
        )
        raise _fault(plugin)

    async def _send(self, send: Any, response: Response) -> None:
        content = b"" if response.status in WITHOUT_CONTENT else _bytes(response.content)
        ours = headers_of_all_answers("")
        own = {name.lower(): value for name, value in response.headers.items() if name.lower() not in ours}
        fixed = {name: value for name, value in SECURITY_HEADERS.items() if name not in RESPONSE_HEADERS}
        headers = SECURITY_HEADERS | own | fixed
        answer_room.get().keep(len(content))
        await send_bytes(send, response.status, content, response.kind, headers.items())


def _operation(plugin: str, route: Route) -> Operation:
    """Return the description of a route for OpenAPI. Its summary is the first line of the function's docstring."""
    text = (inspect.getdoc(route.answer) or "") if inspect.isroutine(route.answer) else ""
    kind = route.kinds[0] if route.kinds else JSON
    body = Body(kind, Schema() if kind == JSON else BINARY, f"At most {route.max_body_bytes} bytes.")
    return Operation(
        route.method,
        f"{PREFIX}/{plugin}/{route.path}",
        text.partition("\n")[0] or f"A route of the plugin {plugin}",
        {200: Described("The answer of the plugin.", kinds=("*/*",))},
        (404,) if route.method == "GET" else (404, 408, 413, 415),
        None if route.needs == "public" else route.needs,
        is_open=route.needs == "public",
        body=body if route.method in {"POST", "PUT", "PATCH"} else None,
        tag=f"plugin {plugin}",
    )


class _Answering:
    """The function of a route that returns a SkilleryError instead of raising it.

    Such an error is an answer of the plugin, and no failure of the plugin.
    """

    def __init__(self, route: Route) -> None:
        self._route = route

    def __call__(self, request: Request) -> Any:
        try:
            return self._route.answer(request)
        except SkilleryError as error:
            return error


def _plugin_and_path(scope: Any) -> tuple[str, tuple[str, ...]]:
    """Return the name of the plugin in the address, and the decoded segments below it.

    Raise HttpRefusal 404 for another address. The address is split before it is decoded, so that an encoded slash does
    not end a segment.
    """
    raw = scope["raw_path"].partition(b"?")[0].decode("latin-1")
    above, slash, below = raw.partition(f"{PREFIX}/")
    if above or not slash:
        raise _nothing_here()
    try:
        plugin, *path = (unquote(segment, errors="strict") for segment in below.split("/"))
    except UnicodeDecodeError:
        raise _nothing_here() from None
    return plugin, tuple(path[:-1] if path and not path[-1] else path)


def _segments(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")) if path else ()


def _values(segments: tuple[str, ...], path: tuple[str, ...]) -> dict[str, str] | None:
    """Return the values of the parameters in a path, or None if the path does not match the segments of a route."""
    if len(segments) != len(path):
        return None
    values = {}
    for segment, text in zip(segments, path, strict=True):
        if segment.startswith("{") and text:
            values[segment[1:-1]] = text
        elif segment != text:
            return None
    return values


def _check_kind(route: Route, headers: Mapping[str, str]) -> None:
    """Raise HttpRefusal 415 if the route does not accept the Content-Type of the request.

    So forms of other web pages cannot be sent to plugins.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if route.method == "GET" or "*/*" in route.kinds or kind in route.kinds:
        return
    if route.method == "DELETE" and not kind:
        return  # a browser sends DELETE to another origin only after a preflight
    hint = f"Send {' or '.join(route.kinds)}."
    message = f"the Content-Type is {kind[:80]!r}"
    raise HttpRefusal(415, plain_error(INVALID_REQUEST, message, "unsupported_media_type", hint))


def _is_valid(response: Any) -> bool:
    """Return whether the answer of a plugin has the types and values that HTTP allows."""
    return (
        isinstance(response, Response)
        and isinstance(response.content, bytes | str)
        and isinstance(response.status, int)
        and 200 <= response.status <= 599
        and _is_header_text(response.kind)
        and isinstance(response.headers, Mapping)
        and all(_is_allowed(name) and _is_header_text(value) for name, value in response.headers.items())
    )


def _is_allowed(name: Any) -> bool:
    return isinstance(name, str) and (name.lower() in RESPONSE_HEADERS or _OWN_HEADER.fullmatch(name) is not None)


def _is_header_text(text: Any) -> bool:
    return isinstance(text, str) and all(" " <= char <= "ÿ" and char != "\x7f" for char in text)


def _bytes(content: bytes | str) -> bytes:
    return content.encode(errors="replace") if isinstance(content, str) else content


def _nothing_here() -> HttpRefusal:
    return HttpRefusal(404, plain_error(NOT_FOUND, "there is nothing at this address", "not_found"))


def _fault(plugin: str) -> PluginFault:
    return PluginFault(f"the plugin '{plugin}' failed", hint="The reason is in the server's log; tell its admin.")
