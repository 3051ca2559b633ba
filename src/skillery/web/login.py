"""`/login` and `/logout`: browsers sign in with a token of the registry, and sign out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from litestar.openapi.spec import Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.edge.gate import LOGIN
from skillery.edge.http import HttpRefusal, only
from skillery.edge.operations import JSON, Body, Operation, Response, in_query
from skillery.errors import NotAllowed, NotAuthenticated
from skillery.formats.tokens import id_of
from skillery.identity.web_session_rows import SignedIn
from skillery.web.cookies import Header
from skillery.web.forms import FORM, fields_of, safe_next
from skillery.web.pages import (
    Link,
    Problem,
    failed_page,
    send_page,
    send_to,
    sign_in_page,
    signed_in_page,
)
from skillery.web.visits import Visit, Visits

HOME = "/login"
"""The address after a login without `next`."""


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
    """Endpoints of the page for a login, and of sign-out."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits

    async def answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        only(scope, "GET", "HEAD", "POST")
        visit = await self._visits.visit(scope, headers)
        if scope["method"] == "POST":
            await self._sign_in(scope, receive, send, headers, visit)
        else:
            next_address = safe_next(fields_of(scope["query_string"]).get("next", ""))
            await send_page(send, 200, self._page(visit, next_address))

    async def sign_out(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        only(scope, "POST")
        visit = await self._visits.visit(scope, headers)
        try:
            await self._visits.read_form(scope, receive, headers, visit)
        except NotAllowed as error:
            self._visits.note_refusal(visit, "logout", error)
            await send_page(send, 403, failed_page(Problem(error.message, error.hint or "")))
            return
        if visit.secret is not None:
            await self._visits.sessions.sign_out(visit.secret)
        ended = [("clear-site-data", '"cache"'), visit.cookies.dropping(visit.cookies.session)]
        await send_to(send, HOME, ended)

    async def _sign_in(self, scope: Any, receive: Any, send: Any, headers: dict[str, str], visit: Visit) -> None:
        next_address = ""
        try:
            fields = await self._visits.read_form(scope, receive, headers, visit)
            next_address = safe_next(fields.get("next", ""))
            made = await self._signed_in(scope, headers, fields.get("token", "").strip(), visit)
        except NotAllowed as error:
            self._visits.note_refusal(visit, LOGIN, error)
            await send_page(send, 403, self._page(visit, next_address, Problem(error.message, error.hint or "")))
        except HttpRefusal as refusal:
            if refusal.status not in {401, 429}:
                raise
            problem = Problem(refusal.error["message"], refusal.error["data"].get("hint", ""))
            await send_page(send, refusal.status, self._page(visit, next_address, problem), refusal.headers)
        else:
            await send_to(send, next_address or HOME, cookie_of_login(visit, made))

    async def _signed_in(self, scope: Any, headers: dict[str, str], token: str, visit: Visit) -> SignedIn:
        """Check the token like the token of a call, so that failures count in the same limit. Start a session.

        Raise HttpRefusal 401 or 429 if the token is not valid. Raise NotAllowed for other credentials than tokens of
        the registry, and for tokens of CI jobs.
        """
        gate = self._visits.gate
        await gate.authenticate(scope, {**headers, "authorization": f"Bearer {token}"})
        if id_of(token) is None or not self._visits.sessions.accept_tokens:
            raise NotAllowed("this is no token of the registry", hint="Send a token that begins with sky_.")
        try:
            return await self._visits.sessions.sign_in_with_token(token, visit.secret)
        except NotAuthenticated as error:
            raise gate.failed_login(error, scope, headers) from None

    def _page(self, visit: Visit, next_address: str, problem: Problem | None = None) -> str:
        form_token = self._visits.form_token(visit)
        if visit.session is not None and problem is None:
            who = visit.session.identity
            return signed_in_page(name=who.name, kind=who.kind, form_token=form_token, next_address=next_address)
        logins = self._visits.sessions.logins
        return sign_in_page(
            takes_token=self._visits.sessions.accept_tokens,
            links=[Link(name, one.login_title() or name) for name, one in logins.items()],
            form_token=form_token,
            next_address=next_address,
            problem=problem,
        )


def cookie_of_login(visit: Visit, made: SignedIn) -> Iterable[Header]:
    """Return the header that sets the cookie of a new session."""
    seconds = max(1, round((made.session.ends_at - datetime.now(UTC)).total_seconds()))
    return [visit.cookies.setting(visit.cookies.session, made.secret, seconds)]
