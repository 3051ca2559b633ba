"""`/login/{name}` and `/login/{name}/callback`: browsers sign in at another address, such as an identity provider."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from skillery.backends import LoginReturn, LogsInBrowsers
from skillery.errors import NotAuthenticated
from skillery.http.gate import LOGIN
from skillery.http.operations import Operation, Response
from skillery.http.requests import HttpRefusal, address_of
from skillery.methods.errors import NOT_FOUND, plain_error
from skillery.web.cookies import cookie_of
from skillery.web.failures import Problem, failed_page
from skillery.web.forms import fields_of, safe_next
from skillery.web.frame import SeeOther
from skillery.web.login import HOME, NEXT, REFUSED, SEE_OTHER, cookie_of_login, login_request
from skillery.web.sending import send_answer, send_page
from skillery.web.site import Site
from skillery.web.visits import Visit

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
    """A login that has begun in a browser: the content of its cookie."""

    name: str
    callback: str
    kept: dict[str, str]
    next: str
    until: float
    """Time in seconds since 1970."""


_unfinished = msgspec.json.Decoder(_Unfinished)


class ProviderLogin:
    """Endpoints of logins at another address."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._visits = site.visits

    async def begin(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
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
        request = await login_request(self._site, scope, receive, headers)
        visit = request.visit
        name, login = self._login(scope)
        # The cookie is used up, whether the login fails or not.
        used = visit.cookies.dropping(visit.cookies.login)
        unfinished = self._unfinished(visit, headers)
        if unfinished is None or (unfinished.name, unfinished.callback) != (name, _callback(scope, headers, name)):
            expired = NotAuthenticated("this login has expired, or it began in another browser", hint="Start again.")
            self._visits.note_refusal(visit, LOGIN, expired)
            page = failed_page(400, Problem(expired.message, "Start again."))
            await send_page(request, send, page._replace(headers=(used,)))
            return
        query = fields_of(scope["query_string"])
        answer = LoginReturn(query, unfinished.kept, unfinished.callback, address_of(scope))
        try:
            logged_in = await login.finish_login(answer)
        except NotAuthenticated as error:
            refusal = self._visits.gate.failed_login(error, scope, headers)
            problem = Problem(error.message, error.hint or "")
            page = failed_page(refusal.status, problem)
            await send_page(request, send, page._replace(headers=(*refusal.headers, used)))
            return
        made = await self._visits.sessions.sign_in(name, logged_in, visit.secret)
        cookies = (*cookie_of_login(visit, made), used)
        await send_answer(request, send, SeeOther(unfinished.next or HOME, headers=cookies))

    def _login(self, scope: Any) -> tuple[str, LogsInBrowsers]:
        name = scope["path_params"]["name"]
        login = self._visits.sessions.logins.get(name)
        if login is None:
            known = ", ".join(sorted(self._visits.sessions.logins)) or "none"
            message = f"there is no login {name[:60]!r} for browsers; the logins are: {known}"
            raise HttpRefusal(404, plain_error(NOT_FOUND, message, "not_found", "GET /login shows all logins."))
        return name, login

    def _unfinished(self, visit: Visit, headers: dict[str, str]) -> _Unfinished | None:
        """Return the login that has begun in this browser. Return None if no login has begun, or if it is too old."""
        value = self._visits.signer.verified(cookie_of(headers, visit.cookies.login) or "")
        if value is None:
            return None
        try:
            login = _unfinished.decode(value)
        except msgspec.DecodeError:
            return None  # a cookie of another kind, which this server has signed too
        return login if datetime.now(UTC).timestamp() < login.until else None


def _callback(scope: Any, headers: dict[str, str], name: str) -> str:
    # The gate has checked that the Host is a name of this server.
    return f"{scope['scheme']}://{headers['host'].lower()}/login/{name}/callback"
