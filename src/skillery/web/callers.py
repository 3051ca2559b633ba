"""The caller of a page: the user of a session, or a caller that the authenticator knows without a login."""

from __future__ import annotations

from typing import Any

from skillery.backends import Credentials, Identity
from skillery.context.request import current
from skillery.errors import NotAuthenticated, Unavailable
from skillery.http.requests import HttpRefusal, address_of
from skillery.web.cookies import Cookies, cookie_of, cookies_of
from skillery.web.frame import PageRequest
from skillery.web.site import Site
from skillery.web.visits import Visit


async def request_of(site: Site, scope: Any, receive: Any, headers: dict[str, str]) -> PageRequest:
    """Return the request of a page, with its session and its caller.

    Record the caller for the log of requests.
    """
    try:
        cookies = cookies_of(scope, headers)
    except HttpRefusal:
        cookies = None  # an unencrypted connection: browsers can read what visitors may read, and not sign in
    secret = cookie_of(headers, cookies.session) if cookies is not None else None
    session = await site.visits.sessions.find(secret) if secret is not None else None
    visit = Visit(cookies or Cookies(False), secret, session)
    identity = session.identity if session is not None else await _without_session(site, scope, headers)
    request = current.get()
    if request is not None:
        request.agent = ""  # people read pages: reads are counted for programs
        if identity is not None:
            request.identity = identity.name
    return PageRequest(site, scope, receive, headers, visit, identity)


async def is_still_caller(request: PageRequest) -> bool:
    """Return whether the request would have the same caller now.

    Return True if the database is unavailable, because nothing has changed then.
    """
    try:
        again = await request_of(request.site, request.scope, request.receive, request.headers)
    except Unavailable:
        return True
    return again.known == request.known


async def _without_session(site: Site, scope: Any, headers: dict[str, str]) -> Identity | None:
    """Return the caller that the authenticator knows without a token, or None.

    The authenticator `open` knows such callers, or one behind an authenticating proxy.
    """
    without_token = {name: value for name, value in headers.items() if name != "authorization"}
    try:
        return await site.authenticator.authenticate(Credentials(without_token, address_of(scope)))
    except NotAuthenticated:
        return None
