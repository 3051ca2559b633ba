"""Requests of browsers: the session in a cookie, and the checks of a form. All pages use this module.

Only pages read cookies. `/rpc`, `/mcp`, `/v1`, `/blobs` and all other endpoints for programs read only the header
Authorization, so a page of another origin can never use a session there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from skillery.context.request import current
from skillery.errors import SkilleryError
from skillery.http.gate import Gate
from skillery.http.requests import HttpRefusal, read_body
from skillery.identity.web_session_rows import WebSession
from skillery.identity.web_sessions import Signer, WebSessions
from skillery.methods.errors import NOT_FOUND, plain_error
from skillery.web.cookies import Cookies, cookie_of, cookies_of
from skillery.web.forms import (
    FORM_TOKEN,
    MOST_FIELDS,
    MOST_FORM_BYTES,
    OutdatedForm,
    Pairs,
    check_form_type,
    check_same_origin,
    pairs_of,
)


class Visit(NamedTuple):
    """The cookies and the session of a browser's request."""

    cookies: Cookies
    secret: str | None
    """The secret in the session cookie, valid or not. None if there is no cookie."""
    session: WebSession | None
    """The session, or None if the browser is not signed in."""


class Visits:
    def __init__(self, gate: Gate, sessions: WebSessions, signer: Signer) -> None:
        self.gate = gate
        self.sessions = sessions
        self.signer = signer

    async def visit(self, scope: Any, headers: Mapping[str, str]) -> Visit:
        """Return the cookies and the session of a request. Record the identity for the log of requests.

        Raise HttpRefusal 404 if the server has no login for browsers, or 400 if the connection is not encrypted.
        """
        self._check_login()
        cookies = cookies_of(scope, headers)
        secret = cookie_of(headers, cookies.session)
        session = None if secret is None else await self.sessions.find(secret)
        request = current.get()
        if session is not None and request is not None:
            request.identity = session.identity.name
        return Visit(cookies, secret, session)

    def form_token(self, visit: Visit) -> str:
        """Return the value of the field `form_token` in the forms of a page."""
        return self.signer.form_token(visit.secret or "")

    async def read_form(
        self,
        scope: Any,
        receive: Any,
        headers: dict[str, str],
        visit: Visit,
        most_bytes: int = MOST_FORM_BYTES,
    ) -> dict[str, str]:
        """Return the fields of a form by name. Fields that occur twice are left out.

        Raise HttpRefusal if a page of another origin has sent the form, or if the form cannot be read. Raise
        OutdatedForm if the form belongs to another session.
        """
        pairs = await self.read_pairs(scope, receive, headers, visit, most_bytes, MOST_FIELDS)
        names = [name for name, _ in pairs]
        return {name: value for name, value in pairs if names.count(name) == 1}

    async def read_pairs(
        self, scope: Any, receive: Any, headers: dict[str, str], visit: Visit, most_bytes: int, most_fields: int
    ) -> Pairs:
        """Return the fields of a form in order, without the form token. Raise the errors of `read_form`."""
        check_same_origin(scope, headers)
        check_form_type(headers)
        pairs = pairs_of(await read_body(receive, headers, most_bytes), most_fields)
        fields = [(name, value) for name, value in pairs if name != FORM_TOKEN]
        if not self.is_form_of(visit, [value for name, value in pairs if name == FORM_TOKEN]):
            raise OutdatedForm(fields)
        return fields

    def is_form_of(self, visit: Visit, tokens: list[str]) -> bool:
        """Return whether a form belongs to the session of `visit`. `tokens` are the values of its field
        `form_token`.
        """
        return len(tokens) == 1 and self.signer.is_form_token(visit.secret or "", tokens[0])

    def note_refusal(self, visit: Visit, action: str, error: SkilleryError) -> None:
        """Record a refused request of a browser in the audit trail."""
        identity = visit.session.identity if visit.session is not None else None
        self.gate.note_refusal(identity, action, "", error)

    def _check_login(self) -> None:
        """Raise HttpRefusal 404 if browsers cannot sign in to this server."""
        if not self.sessions.accept_tokens and not self.sessions.logins:
            message = "this server has no login for browsers: no authenticator in its setting 'auth' supports one"
            hint = "With auth = 'open', every caller is admitted without a login. Set auth = 'tokens' for a login."
            raise HttpRefusal(404, plain_error(NOT_FOUND, message, "not_found", hint))
