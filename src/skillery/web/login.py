"""`/login` and `/logout`: browsers sign in with a token of the registry, and sign out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.backends import LoginReturn, LogsInBrowsers
from skillery.errors import NotAllowed, NotAuthenticated
from skillery.formats.tokens import id_of
from skillery.http.gate import LOGIN
from skillery.http.operations import JSON, Body, Operation, Response, in_query
from skillery.http.requests import HttpRefusal, address_of, only
from skillery.identity.web_session_rows import SignedIn
from skillery.methods.errors import NOT_FOUND, plain_error
from skillery.web.failures import Problem, Unsent, failed_page, sign_in_page, unsent_of, unsent_page
from skillery.web.frame import PageRequest, SeeOther
from skillery.web.sending import send_answer, send_page
from skillery.web.site import Site
from skillery.web.visits import (
    FORM,
    MOST_FORM_BYTES,
    MOST_KEPT_BYTES,
    Header,
    OutdatedForm,
    Visit,
    cookie_of,
    fields_of,
    safe_next,
)

HOME = "/"
"""The address after a login that has no `next`."""
SIGNED_OUT = "/login"


def _form(*fields: str) -> Schema:
    text = Schema(type=OpenAPIType.STRING, min_length=1)
    return Schema(type=OpenAPIType.OBJECT, properties=dict.fromkeys(fields, text), required=list(fields))


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
    Operation(
        "GET",
        "/login",
        "The page for a login with a browser",
        {200: Response("The page.", kinds=_HTML)},
        (400, 404),
        is_open=True,
        description="404 with auth = open.",
        parameters=(NEXT,),
    ),
    Operation(
        "POST",
        "/login",
        "Sign in with a token",
        {303: SEE_OTHER, **REFUSED},
        (404, 408, 413, 415),
        is_open=True,
        body=Body(FORM, _form("form_token", "token"), "The fields of the page; `next` is optional."),
    ),
)
LOGOUT_OPERATIONS = (
    Operation(
        "POST",
        "/logout",
        "Sign out",
        {303: Response("Signed out. Location is the page for a login.", kinds=()), 403: REFUSED[403]},
        (400, 404, 408, 413, 415),
        is_open=True,
        body=Body(FORM, _form("form_token"), "The field of the page."),
    ),
)


class LoginPages:
    """Endpoints of the login with a token, and of the sign-out."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._visits = site.visits

    async def answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Show the login page, or sign in with the token of a sent form."""
        only(scope, "GET", "HEAD", "POST")
        request = await login_request(self._site, scope, receive, headers)
        if scope["method"] == "POST":
            await self._sign_in(request, send)
        else:
            next_address = safe_next(fields_of(scope["query_string"]).get("next", ""))
            await send_page(request, send, sign_in_page(request, next_address))

    async def sign_out(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """End the session of the browser, and redirect to the login page."""
        only(scope, "POST")
        request = await login_request(self._site, scope, receive, headers)
        visit = request.visit
        try:
            await self._visits.read_form(scope, receive, headers, visit)
        except NotAllowed as error:
            self._visits.note_refusal(visit, "logout", error)
            await send_page(request, send, failed_page(403, Problem(error.message, error.hint or "")))
            return
        if visit.secret is not None:
            await self._visits.sessions.sign_out(visit.secret)
        headers_of_end = (("clear-site-data", '"cache"'), visit.cookies.dropping(visit.cookies.session))
        await send_answer(request, send, SeeOther(SIGNED_OUT, headers=headers_of_end))

    async def _sign_in(self, request: PageRequest, send: Any) -> None:
        """Sign in with the token of the form. Send a redirect, or the login page with the problem."""
        visit, next_address, unsent = request.visit, "", None
        try:
            fields = await self._fields(request)
            next_address, unsent = safe_next(fields.get("next", "")), unsent_of(fields)
            signed_in = await self._signed_in(request, fields.get("token", "").strip())
        except NotAllowed as error:
            if isinstance(error, OutdatedForm):
                unsent = unsent_of(dict(error.pairs or []))
            self._visits.note_refusal(visit, LOGIN, error)
            problem = Problem(error.message, error.hint or "")
            await send_page(request, send, sign_in_page(request, next_address, problem, 403, unsent))
        except HttpRefusal as refusal:
            if refusal.status not in {401, 429}:
                raise
            problem = Problem(refusal.message, refusal.hint)
            page = sign_in_page(request, next_address, problem, refusal.status, unsent)
            await send_page(request, send, page._replace(headers=tuple(refusal.headers)))
        else:
            await self._send_signed_in(request, send, signed_in, next_address or HOME, unsent)

    async def _fields(self, request: PageRequest) -> dict[str, str]:
        """Return the fields of the login form, which may carry the text of another form."""
        # Each byte of a kept text may be three bytes of the form.
        most_bytes = MOST_FORM_BYTES + 3 * MOST_KEPT_BYTES
        return await self._visits.read_form(request.scope, request.receive, request.headers, request.visit, most_bytes)

    async def _send_signed_in(
        self, request: PageRequest, send: Any, signed_in: SignedIn, address: str, unsent: Unsent | None
    ) -> None:
        """Set the cookie, and redirect to `address`. If a form is unsent, send the page with its text instead."""
        cookies = tuple(cookie_of_login(request.visit, signed_in))
        if unsent is None:
            await send_answer(request, send, SeeOther(address, headers=cookies))
            return
        visit = Visit(request.visit.cookies, signed_in.secret, signed_in.session)
        next_request = PageRequest(
            self._site, request.scope, request.receive, request.headers, visit, signed_in.session.identity
        )
        await send_page(next_request, send, unsent_page(next_request, unsent)._replace(headers=cookies))

    async def _signed_in(self, request: PageRequest, token: str) -> SignedIn:
        """Check the token like the token of a call, and start a session. Failures count in the same limit.

        Raise HttpRefusal 401 or 429 if the token is invalid. Raise NotAllowed if the credential is not a token of the
        registry, or if it belongs to a CI job.
        """
        gate, scope, headers = self._visits.gate, request.scope, request.headers
        await gate.authenticate(scope, {**headers, "authorization": f"Bearer {token}"})
        if id_of(token) is None or not self._visits.sessions.accept_tokens:
            raise NotAllowed("this is not a token of the registry", hint="Send a token that begins with sky_.")
        try:
            return await self._visits.sessions.sign_in_with_token(token, request.visit.secret)
        except NotAuthenticated as error:
            raise gate.failed_login(error, scope, headers) from None


async def login_request(site: Site, scope: Any, receive: Any, headers: dict[str, str]) -> PageRequest:
    """Return the request of a login endpoint. Raise the errors of `Visits.visit`."""
    visit = await site.visits.visit(scope, headers)
    identity = visit.session.identity if visit.session is not None else None
    return PageRequest(site, scope, receive, headers, visit, identity)


def cookie_of_login(visit: Visit, signed_in: SignedIn) -> Iterable[Header]:
    """Return the header that sets the cookie of a new session, as a list."""
    seconds = max(1, round((signed_in.session.ends_at - datetime.now(UTC)).total_seconds()))
    return [visit.cookies.setting(visit.cookies.session, signed_in.secret, seconds)]


# -- `/login/{name}` and `/login/{name}/callback`: browsers sign in at another address, such as an identity provider ---


LOGIN_SECONDS = 600
BEGIN_PATHS = ("/login/{name:str}",)
FINISH_PATHS = ("/login/{name:str}/callback",)
BEGIN = (
    Operation(
        "GET",
        "/login/{name}",
        "Begin a login at another address",
        {303: Response("Location is the address of the identity provider.", kinds=())},
        (400, 404),
        is_open=True,
        description="`name` is an authenticator of the setting `auth` that supports browsers, such as `oidc`.",
        parameters=(NEXT,),
    ),
)
FINISH = (
    Operation(
        "GET",
        "/login/{name}/callback",
        "Finish a login at another address",
        {303: SEE_OTHER, **{status: REFUSED[status] for status in (400, 401, 429)}},
        (404,),
        is_open=True,
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


class ProviderLogin:
    """Endpoints of logins at another address, such as an identity provider."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._visits = site.visits

    async def begin(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Redirect the browser to the identity provider. A signed cookie carries the values of the unfinished login."""
        request = await login_request(self._site, scope, receive, headers)
        visit = request.visit
        name, login = self._login(scope)
        next_address = safe_next(fields_of(scope["query_string"]).get("next", ""))
        callback = _callback(scope, headers, name)
        start = await login.begin_login(callback)
        until = datetime.now(UTC).timestamp() + LOGIN_SECONDS
        value = msgspec.json.encode(_Unfinished(name, callback, dict(start.kept), next_address, until))
        cookie = visit.cookies.setting(visit.cookies.login, self._visits.signer.signed(value), LOGIN_SECONDS)
        await send_answer(request, send, SeeOther(start.address, headers=(cookie,)))

    async def finish(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Start a session if the authenticator accepts the answer of the identity provider. Else send a page with the
        problem.
        """
        request = await login_request(self._site, scope, receive, headers)
        visit = request.visit
        name, login = self._login(scope)
        # The cookie is used up, whether the login fails or not.
        dropped_cookie = visit.cookies.dropping(visit.cookies.login)
        unfinished = self._unfinished(visit, headers)
        if unfinished is None or (unfinished.name, unfinished.callback) != (name, _callback(scope, headers, name)):
            expired = NotAuthenticated("this login has expired, or it began in another browser", hint="Start again.")
            self._visits.note_refusal(visit, LOGIN, expired)
            page = failed_page(400, Problem(expired.message, "Start again."))
            await send_page(request, send, page._replace(headers=(dropped_cookie,)))
            return
        query = fields_of(scope["query_string"])
        answer = LoginReturn(query, unfinished.kept, unfinished.callback, address_of(scope))
        try:
            logged_in = await login.finish_login(answer)
        except NotAuthenticated as error:
            refusal = self._visits.gate.failed_login(error, scope, headers)
            problem = Problem(error.message, error.hint or "")
            page = failed_page(refusal.status, problem)
            await send_page(request, send, page._replace(headers=(*refusal.headers, dropped_cookie)))
            return
        signed_in = await self._visits.sessions.sign_in(name, logged_in, visit.secret)
        cookies = (*cookie_of_login(visit, signed_in), dropped_cookie)
        await send_answer(request, send, SeeOther(unfinished.next or HOME, headers=cookies))

    def _login(self, scope: Any) -> tuple[str, LogsInBrowsers]:
        """Return the name and the login in the path. Raise HttpRefusal 404 if there is no such login."""
        name = scope["path_params"]["name"]
        login = self._visits.sessions.logins.get(name)
        if login is None:
            known = ", ".join(sorted(self._visits.sessions.logins)) or "none"
            message = f"there is no login {name[:60]!r} for browsers; the logins are: {known}"
            raise HttpRefusal(404, plain_error(NOT_FOUND, message, "not_found", "GET /login shows all logins."))
        return name, login

    def _unfinished(self, visit: Visit, headers: dict[str, str]) -> _Unfinished | None:
        """Return the login that has begun in this browser, or None if there is none or if it has expired."""
        value = self._visits.signer.verified(cookie_of(headers, visit.cookies.login) or "")
        if value is None:
            return None
        try:
            login = _unfinished.decode(value)
        except msgspec.DecodeError:
            return None  # a cookie of another kind, which this server has signed too
        return login if datetime.now(UTC).timestamp() < login.until else None


def _callback(scope: Any, headers: dict[str, str], name: str) -> str:
    """Return the address to which the identity provider sends the browser back."""
    # The gate has checked that the Host is a name of this server.
    return f"{scope['scheme']}://{headers['host'].lower()}/login/{name}/callback"
