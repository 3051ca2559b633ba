"""The pages of failed requests with their words, and the page of the sign-in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from skillery.context.request import current_id
from skillery.errors import NotAllowed, NotAuthenticated, SkilleryError
from skillery.http.gate import FORBIDDEN
from skillery.http.requests import HttpRefusal, read_body, send_bytes, send_refusal
from skillery.web.frame import Form, Page, PageRequest, request_of
from skillery.web.sending import HTML, page_headers, send_page
from skillery.web.site import Site
from skillery.web.uploads import is_multipart, read_texts
from skillery.web.visits import (
    MOST_KEPT_BYTES,
    Cookies,
    Pairs,
    Visit,
    check_form_type,
    check_same_origin,
    kept_fields,
    pairs_of,
    safe_next,
)

# -- Unsent forms: the server does not process a form without a valid session, and gives its text back to the user -----
# A session can end while a user types. The text then goes into the page: first next to the login, and after the login
# into a form that the user sends again. Nothing is stored on the server.


MOST_KEPT_FIELDS = 2000
KEPT, ADDRESS = "kept", "kept_for"
"""The fields of the login form that carry the text of another form, and the address of that form."""


class Unsent(NamedTuple):
    """The text of a form that was not processed."""

    address: str
    """The address to which the form was sent."""
    pairs: Pairs | None
    """The fields of the form. None if the form was too large."""


async def read_unsent(request: PageRequest) -> Unsent:
    """Return the text of a form from a browser that is not signed in.

    Raise HttpRefusal if a page of another origin has sent the form, or if the form cannot be read.
    """
    if is_multipart(request.headers):
        return Unsent(request.address, await read_texts(request))
    check_same_origin(request.scope, request.headers)
    check_form_type(request.headers)
    try:
        body = await read_body(request.receive, request.headers, MOST_KEPT_BYTES)
        pairs = pairs_of(body, MOST_KEPT_FIELDS)
    except HttpRefusal as refusal:
        if refusal.status != 413:
            raise
        return Unsent(request.address, None)
    return Unsent(request.address, kept_fields(pairs))


def unsent_of(form: Form) -> Unsent | None:
    """Return the text of another form that a login form carries, or None. Raise the errors of `pairs_of`."""
    address = safe_next(form.get(ADDRESS))
    return Unsent(address, pairs_of(form.get(KEPT).encode(), MOST_KEPT_FIELDS)) if address and form.get(KEPT) else None


def page_with_form(request: PageRequest) -> str:
    """Return the path of the page that has sent the form, or "" if the browser does not say it."""
    referrer = request.headers.get("referer", "")
    origin_with_slash = f"{request.server}/"
    return safe_next(referrer[len(origin_with_slash) - 1 :]) if referrer.lower().startswith(origin_with_slash) else ""


def unsent_page(request: PageRequest, unsent: Unsent, status: int = 200) -> Page:
    """Return the page from which a signed-in user sends the text of a form again."""
    values: dict[str, Any] = {"unsent": unsent, "back": page_with_form(request)}
    return Page("unsent.html", "Nothing was sent yet", values, status=status)


# -- Failed requests ---------------------------------------------------------------------------------------------------


def failing(site: Site) -> Callable[[Any, Any, dict[str, str], HttpRefusal], Awaitable[None]]:
    """Return the function that answers failed requests: browsers get a page, programs get JSON."""

    async def fail(scope: Any, send: Any, headers: dict[str, str], refusal: HttpRefusal) -> None:
        if "text/html" in headers.get("accept", ""):
            await send_failure(site, scope, send, headers, refusal)
        else:
            await send_refusal(send, refusal)

    return fail


async def send_failure(site: Site, scope: Any, send: Any, headers: dict[str, str], refusal: HttpRefusal) -> None:
    """Send the page of a failed request: the message, what to do next, and the id of the request."""
    identity = None
    visit = Visit(Cookies(False), None, None)
    # A caller without a scope is known; a request of another site must not be.
    has_caller = refusal.data.get("type") == NotAllowed.type
    if refusal.status not in {FORBIDDEN, 500, 503} or has_caller:
        try:
            known = await request_of(site, scope, None, headers)
            identity, visit = known.known, known.visit
        except (HttpRefusal, SkilleryError):
            pass  # the page of the first failure needs no name of a user
    request = PageRequest(site, scope, None, headers, visit, identity)
    if refusal.status == 401:
        await ask_for_login(request, send)
        return
    retry = refusal.data.get("retry_after_ms")
    heading = _HEADINGS.get(refusal.status, "This did not work")
    values = {
        "status": refusal.status,
        "heading": heading,
        "data": refusal.data,
        "message": refusal.message,
        "hint": refusal.hint,
        "retry_seconds": -(-retry // 1000) if retry else None,
        "request_id": current_id() or "",
    }
    if refusal.status >= 500:
        values["can_sign_in"] = False  # the page does not know whether the user is signed in
    page = Page("error.html", heading, values, status=refusal.status, headers=tuple(refusal.headers))
    await send_page(request, send, page)


_HEADINGS = {
    400: "The server does not understand this request",
    403: "You may not do this",
    404: "Nothing here",
    405: "This address does not take this request",
    409: "This does not fit the current state",
    413: "Too large",
    415: "The server does not accept this kind of content",
    422: "A rule refuses this",
    429: "Too many requests",
    500: "An error happened on the server",
    503: "The server is busy",
}


async def ask_for_login(request: PageRequest, send: Any) -> None:
    """Redirect the browser to the login. htmx, which follows redirects invisibly, gets a status 401 and a header."""
    back = safe_next(request.address) if request.method in {"GET", "HEAD"} else page_with_form(request)
    address = f"/login?next={quote(back, safe='')}" if back and back != "/" else "/login"
    if "hx-request" in request.headers:
        body = b"<!doctype html><title>Sign in</title><p>Your session has ended.</p>"
        await send_bytes(send, 401, body, HTML, [*page_headers(""), ("hx-redirect", address)])
        return
    await send_bytes(send, 303, b"", HTML, [*page_headers(""), ("location", address)])


# -- The page of the sign-in, for login and for pages whose session has ended ------------------------------------------


ENDED = NotAuthenticated("your session has ended. Nothing was sent", hint="Sign in to continue.")
TOO_OLD = NotAllowed("this change needs a sign-in of the last 15 minutes. Nothing was changed", hint="Sign in again.")
Reason = SkilleryError | HttpRefusal
"""Why a sign-in has failed, or why a sign-in is needed."""


def sign_in_page(
    request: PageRequest,
    next_address: str = "",
    problem: Reason | None = None,
    status: int = 200,
    unsent: Unsent | None = None,
) -> Page:
    """Return the page of the sign-in. `next_address` is the page after it.

    `unsent` is the text of a form, which the page carries until the user has signed in.
    """
    session = request.visit.session if problem is None else None
    sessions = request.site.sessions
    values = {
        "session": session,
        "takes_token": sessions.accept_tokens,
        "links": [(name, login.login_title() or name) for name, login in sessions.logins.items()],
        "next_address": next_address,
        "problem": problem,
        "is_failed": False,
        "unsent": unsent,
        "is_refused": status == 401 and problem is not ENDED,
        "request_id": current_id() if status >= 400 else None,
    }
    return Page("sign_in.html", "Sign in" if session is None else "Signed in", values, status=status)


def sign_in_again(request: PageRequest, problem: Reason, unsent: Unsent) -> Page:
    """Return the sign-in page for a form whose session has ended, or whose change needs a recent sign-in."""
    return sign_in_page(request, page_with_form(request), problem, 401 if problem is ENDED else 403, unsent)


def failed_page(status: int, problem: Reason) -> Page:
    """Return the page of a login at an identity provider that cannot continue."""
    values = {"problem": problem, "is_failed": True, "unsent": None, "request_id": current_id()}
    return Page("sign_in.html", "Sign in", values, status=status)
