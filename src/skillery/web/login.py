"""`/login` and `/logout`: browsers sign in with a token of the registry, and sign out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.backends import LoginReturn, LogsInBrowsers
from skillery.errors import NotAllowed, NotAuthenticated
from skillery.formats.tokens import id_of
from skillery.http.gate import LOGIN
from skillery.http.operations import JSON, Body, Operation, Response, Route, in_query
from skillery.http.requests import HttpRefusal, address_of, only
from skillery.identity.web_session_rows import SignedIn
from skillery.methods.errors import NOT_FOUND, plain_error
from skillery.web.failures import failed_page, failing, sign_in_page, unsent_of, unsent_page
from skillery.web.frame import Answer, Form, Handler, Page, PageRequest, SeeOther, request_of
from skillery.web.sending import has_login, send_answer
from skillery.web.site import Site
from skillery.web.visits import (
    FORM,
    MOST_FORM_BYTES,
    MOST_KEPT_BYTES,
    Header,
    OutdatedForm,
    Visit,
    cookie_of,
    cookies_of,
    safe_next,
)

HOME = "/"
"""The address after a login that has no `next`."""
SIGNED_OUT = "/login"


def _form(*fields: str) -> Schema:
    text = Schema(type=OpenAPIType.STRING, min_length=1)
    return Schema(type=OpenAPIType.OBJECT, properties=dict.fromkeys(fields, text), required=list(fields))


_open = partial(Operation, is_open=True)
_HTML = ("text/html",)
_EITHER = ("text/html", JSON)
NEXT = in_query("next", "The path of this server that the browser opens afterwards.")
REFUSED = {
    400: Response("The form or the connection is not acceptable.", kinds=_EITHER),
    401: Response("The login has failed. The page says why.", kinds=_HTML),
    403: Response("Another origin has sent the form, or the form is outdated.", kinds=_EITHER),
    429: Response("Too many logins from this address have failed.", kinds=_HTML),
}
SEE_OTHER = Response("Signed in, with a new cookie. Location is `next`.", kinds=())
LOGIN_OPERATIONS = (
    _open(
        "GET",
        "/login",
        "The page for a login with a browser",
        {200: Response("The page.", kinds=_HTML)},
        (400, 404),
        description="404 with auth = open.",
        parameters=(NEXT,),
    ),
    _open(
        "POST",
        "/login",
        "Sign in with a token",
        {303: SEE_OTHER, **REFUSED},
        (404, 408, 413, 415),
        body=Body(FORM, _form("form_token", "token"), "The fields of the page; `next` is optional."),
    ),
)
LOGOUT_OPERATIONS = (
    _open(
        "POST",
        "/logout",
        "Sign out",
        {303: Response("Signed out. Location is the page for a login.", kinds=()), 403: REFUSED[403]},
        (400, 404, 408, 413, 415),
        body=Body(FORM, _form("form_token"), "The field of the page."),
    ),
)


async def show_login(request: PageRequest) -> Page:
    return sign_in_page(request, safe_next(request.query.get("next", "")))


async def sign_out(request: PageRequest) -> Answer:
    """End the session of the browser, and redirect to the login page."""
    visit = request.visit
    try:
        await request.form()
    except NotAllowed as error:
        request.site.gate.note_refusal(request.known, "logout", "", error)
        return failed_page(403, error)
    if visit.secret is not None:
        await request.site.sessions.sign_out(visit.secret)
    headers = (("clear-site-data", '"cache"'), visit.cookies.dropping(visit.cookies.session))
    return SeeOther(SIGNED_OUT, headers=headers)


async def sign_in(request: PageRequest) -> Answer:
    """Sign in with the token of the form, or show the login page again with the reason.

    The form may carry the text of another form. The answer is then a page with this text, in the new session.
    """
    next_address, unsent = "", None
    try:
        # Each byte of a kept text may be three bytes of the form.
        form = await request.form(MOST_FORM_BYTES + 3 * MOST_KEPT_BYTES)
        next_address, unsent = safe_next(form.get("next")), unsent_of(form)
        signed_in = await _signed_in(request, form.get("token").strip())
    except NotAllowed as error:
        if isinstance(error, OutdatedForm):
            unsent = unsent_of(Form(tuple(error.pairs or ())))
        request.site.gate.note_refusal(request.known, LOGIN, "", error)
        return sign_in_page(request, next_address, error, 403, unsent)
    except HttpRefusal as refusal:
        if refusal.status not in {401, 429}:
            raise
        page = sign_in_page(request, next_address, refusal, refusal.status, unsent)
        return page._replace(headers=tuple(refusal.headers))
    cookies = (cookie_of_login(request.visit, signed_in),)
    if unsent is None:
        return SeeOther(next_address or HOME, headers=cookies)
    request.visit = Visit(request.visit.cookies, signed_in.secret, signed_in.session)
    request.known = signed_in.session.identity
    return unsent_page(request, unsent)._replace(headers=cookies)


async def _signed_in(request: PageRequest, token: str) -> SignedIn:
    """Check the token like the token of a call, and start a session. Failures count in the same limit.

    Raise HttpRefusal 401 or 429 if the token is invalid. Raise NotAllowed if the credential is not a token of the
    registry, or if it belongs to a CI job.
    """
    gate, sessions, scope, headers = request.site.gate, request.site.sessions, request.scope, request.headers
    await gate.authenticate(scope, {**headers, "authorization": f"Bearer {token}"})
    if id_of(token) is None or not sessions.accept_tokens:
        raise NotAllowed("this is not a token of the registry", hint="Send a token that begins with sky_.")
    try:
        return await sessions.sign_in_with_token(token, request.visit.secret)
    except NotAuthenticated as error:
        raise gate.failed_login(error, scope, headers) from None


def cookie_of_login(visit: Visit, signed_in: SignedIn) -> Header:
    """Return the header that sets the cookie of a new session."""
    seconds = max(1, round((signed_in.session.ends_at - datetime.now(UTC)).total_seconds()))
    return visit.cookies.setting(visit.cookies.session, signed_in.secret, seconds)


# -- `/login/{name}` and `/login/{name}/callback`: browsers sign in at another address, such as an identity provider ---


LOGIN_SECONDS = 600
BEGIN = (
    _open(
        "GET",
        "/login/{name}",
        "Begin a login at another address",
        {303: Response("Location is the address of the identity provider.", kinds=())},
        (400, 404),
        description="`name` is an authenticator of the setting `auth` that supports browsers, such as `oidc`.",
        parameters=(NEXT,),
    ),
)
FINISH = (
    _open(
        "GET",
        "/login/{name}/callback",
        "Finish a login at another address",
        {303: SEE_OTHER, **{status: REFUSED[status] for status in (400, 401, 429)}},
        (404,),
        description="The identity provider sends the browser to this address.",
    ),
)


class _Unfinished(msgspec.Struct, frozen=True):
    """The content of the cookie of a login that has begun. `kept` is what the authenticator needs to finish it."""

    name: str
    callback: str
    kept: dict[str, str]
    next: str
    until: float
    """The time in seconds since 1970 at which the login expires."""


_unfinished = msgspec.json.Decoder(_Unfinished)


async def begin_login(request: PageRequest) -> SeeOther:
    """Redirect the browser to the identity provider. A signed cookie carries the values of the unfinished login."""
    cookies, (name, login) = request.visit.cookies, _login(request)
    callback = _callback(request, name)
    start = await login.begin_login(callback)
    until = datetime.now(UTC).timestamp() + LOGIN_SECONDS
    begun = _Unfinished(name, callback, dict(start.kept), safe_next(request.query.get("next", "")), until)
    value = request.site.core.signer.signed(msgspec.json.encode(begun))
    return SeeOther(start.address, headers=(cookies.setting(cookies.login, value, LOGIN_SECONDS),))


async def finish_login(request: PageRequest) -> Answer:
    """Start a session if the authenticator accepts the answer of the identity provider. Else show the reason."""
    visit, site, (name, login) = request.visit, request.site, _login(request)
    # The cookie is used up, whether the login fails or not.
    dropped_cookie = visit.cookies.dropping(visit.cookies.login)
    unfinished = _unfinished_of(request)
    if unfinished is None or (unfinished.name, unfinished.callback) != (name, _callback(request, name)):
        expired = NotAuthenticated("this login has expired, or it began in another browser", hint="Start again.")
        site.gate.note_refusal(request.known, LOGIN, "", expired)
        return failed_page(400, expired)._replace(headers=(dropped_cookie,))
    answer = LoginReturn(request.query, unfinished.kept, unfinished.callback, address_of(request.scope))
    try:
        logged_in = await login.finish_login(answer)
    except NotAuthenticated as error:
        refusal = site.gate.failed_login(error, request.scope, request.headers)
        return failed_page(refusal.status, error)._replace(headers=(*refusal.headers, dropped_cookie))
    signed_in = await site.sessions.sign_in(name, logged_in, visit.secret)
    return SeeOther(unfinished.next or HOME, headers=(cookie_of_login(visit, signed_in), dropped_cookie))


def _login(request: PageRequest) -> tuple[str, LogsInBrowsers]:
    """Return the name and the login in the path. Raise HttpRefusal 404 if there is no such login."""
    name, logins = request.parameter("name"), request.site.sessions.logins
    if name not in logins:
        message = f"there is no login {name[:60]!r} for browsers; the logins are: {', '.join(sorted(logins)) or 'none'}"
        raise HttpRefusal(404, plain_error(NOT_FOUND, message, "not_found", "GET /login shows all logins."))
    return name, logins[name]


def _unfinished_of(request: PageRequest) -> _Unfinished | None:
    """Return the login that has begun in this browser, or None if there is none or if it has expired."""
    value = request.site.core.signer.verified(cookie_of(request.headers, request.visit.cookies.login) or "")
    if value is None:
        return None
    try:
        login = _unfinished.decode(value)
    except msgspec.DecodeError:
        return None  # a cookie of another kind, which this server has signed too
    return login if datetime.now(UTC).timestamp() < login.until else None


def _callback(request: PageRequest, name: str) -> str:
    """Return the address to which the identity provider sends the browser back."""
    # The gate has checked that the Host is a name of this server.
    return f"{request.server}/login/{name}/callback"


# -- The routes --------------------------------------------------------------------------------------------------------


def login_routes(site: Site) -> list[Route]:
    """Return the routes of the sign-in, which exist with the setting `web = false` too."""
    return [
        _route(site, "/login", {"GET": show_login, "POST": sign_in}, LOGIN_OPERATIONS),
        _route(site, "/logout", {"POST": sign_out}, LOGOUT_OPERATIONS),
        _route(site, "/login/{name}", {"GET": begin_login}, BEGIN),
        _route(site, "/login/{name}/callback", {"GET": finish_login}, FINISH),
    ]


def _route(site: Site, path: str, handlers: dict[str, Handler], operations: Sequence[Operation]) -> Route:
    """Return the route of a login.

    Its endpoint raises HttpRefusal 404 if the server has no login for browsers, or 400 if the connection is not
    encrypted.
    """

    async def endpoint(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        if "{" not in path:
            only(scope, *handlers, *(["HEAD"] if "GET" in handlers else []))
        if not has_login(site):
            message = "this server has no login for browsers: no authenticator in its setting 'auth' supports one"
            hint = "With auth = 'open', every caller is admitted without a login. Set auth = 'tokens' for a login."
            raise HttpRefusal(404, plain_error(NOT_FOUND, message, "not_found", hint))
        cookies_of(scope, headers)
        request = await request_of(site, scope, receive, headers)
        handler = handlers["GET" if scope["method"] == "HEAD" else scope["method"]]
        await send_answer(request, send, await handler(request))

    paths = (path.replace("{name}", "{name:str}"),) if "{" in path else ()
    return Route(path, endpoint, operations, paths, ("GET",), fail=failing(site))
