"""The route of a page: who may open it, its handlers, and its answers to failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillery.backends import Scope
from skillery.errors import NotAllowed, NotAuthenticated
from skillery.http.operations import Route
from skillery.http.requests import HttpRefusal
from skillery.web.failures import Unsent, ask_for_login, ended_page, failing, outdated_page, read_unsent
from skillery.web.frame import Answer, Handler, PageRequest, request_of
from skillery.web.sending import has_login, send_answer, send_page
from skillery.web.site import Site
from skillery.web.visits import OutdatedForm


def page_route(
    site: Site,
    name: str,
    paths: tuple[str, ...],
    handlers: Mapping[str, Handler],
    *,
    needs: Scope | None = None,
    for_visitors: bool = False,
) -> Route:
    """Return the route of a page. `handlers` has the function for `GET`, for `POST`, or for both.

    `needs` is the scope of the caller. With `for_visitors`, callers without a login see the page too, if the setting
    `public_downloads` permits it.
    """

    async def endpoint(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        request = await request_of(site, scope, receive, headers)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if request.known is None and not (for_visitors and site.public_pages):
            await _refuse_visitor(request, send)
            return
        if needs is not None:
            _require(request, needs, name)
        handler = handlers[method]
        answer = await (_answer_to_form(request, handler) if method == "POST" else handler(request))
        await send_answer(request, send, answer)

    methods = ("GET", "HEAD", "POST") if len(handlers) == 2 else ("GET", "HEAD") if "GET" in handlers else ("POST",)
    return Route(name, endpoint, (), paths, methods, fail=failing(site))


def _require(request: PageRequest, needs: Scope, name: str) -> None:
    """Raise NotAllowed if the caller does not have the scope, and record the refusal in the audit trail."""
    try:
        request.require(needs)
    except NotAllowed as error:
        request.site.gate.note_refusal(request.known, f"{request.method} {name}", "", error)
        raise


async def _refuse_visitor(request: PageRequest, send: Any) -> None:
    """Send a caller without a login to the login page, which carries the text of a sent form."""
    if request.method == "POST" and has_login(request.site):
        unsent = await read_unsent(request)
        if "hx-request" not in request.headers:
            await send_page(request, send, ended_page(request, unsent))
            return
    await ask_for_login(request, send)


async def _answer_to_form(request: PageRequest, handler: Handler) -> Answer:
    """Return the answer of a handler to a form.

    If the form does not fit the session, return a page with the text of the form.
    """
    try:
        return await handler(request)
    except OutdatedForm as error:
        return outdated_page(request, error)
    except (HttpRefusal, NotAuthenticated, NotAllowed) as error:
        is_ended = not isinstance(error, HttpRefusal) or error.status in {401, 403}
        if request.known is not None or request.sent is None or not is_ended:
            raise
        return ended_page(request, Unsent(request.address, request.sent))
