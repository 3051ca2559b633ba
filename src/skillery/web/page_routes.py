"""The route of a page: who may open it, its handlers, and its answers to failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillery.backends import Scope
from skillery.edge.routing import Route
from skillery.errors import NotAllowed
from skillery.web.callers import request_of
from skillery.web.failures import ask_for_login, failing
from skillery.web.frame import CallFailed, Handler
from skillery.web.sending import send_answer
from skillery.web.site import Site


def page_route(
    site: Site,
    name: str,
    paths: tuple[str, ...],
    handlers: Mapping[str, Handler],
    *,
    needs: Scope | None = None,
    for_visitors: bool = False,
) -> Route:
    """Return the route of a page. `handlers` has a function for `GET`, for `POST`, or for both.

    `needs` is the scope of the caller. If `for_visitors`, callers without a login see the page, provided that the
    setting `public_downloads` admits them.
    """

    async def endpoint(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        request = await request_of(site, scope, receive, headers)
        if request.known is None and not (for_visitors and site.public_pages):
            await ask_for_login(request, send)
            return
        if needs is not None:
            try:
                request.require(needs)
            except NotAllowed as error:
                site.gate.note_refusal(request.known, f"{scope['method']} {name}", "", error)
                raise
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            answer = await handlers[method](request)
        except CallFailed as failed:
            raise failed.refusal() from None
        await send_answer(request, send, answer)

    methods = ("GET", "HEAD", "POST") if len(handlers) == 2 else ("GET", "HEAD") if "GET" in handlers else ("POST",)
    return Route(name, endpoint, (), paths, methods, fail=failing(site))
