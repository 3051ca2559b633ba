"""The token of a kept login, renewed when it ends."""

from __future__ import annotations

from skillery.client.errors import ConnectionFailed
from skillery.client.logins.kept import changing, find_login, keep_login
from skillery.client.logins.login import Login, server_of


class KeptToken:
    """The token of the login for one server. A call of the object returns the token, or None without a login.

    If the token ends soon, the call renews the login at the identity provider, and blocks for one request. Raise
    LoginEnded if the provider refuses, ConnectionFailed if the provider cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self._server = server_of(url)
        self._login: Login | None = None

    def __call__(self) -> str | None:
        if self._login is None or not self._login.is_fresh:
            self._login = current_login(self._server)
        return None if self._login is None else self._login.token


def kept_token(url: str) -> KeptToken:
    """Return an object whose call returns the token of the login for the server at `url`."""
    return KeptToken(url)


def current_login(server: str) -> Login | None:
    """Return the login for a server. If its token ends soon, renew the login first."""
    login = find_login(server)
    if login is None or login.is_fresh:
        return login
    with changing(server):
        # Another process may have renewed the login while this one waited.
        login = find_login(server)
        if login is None or login.is_fresh:
            return login
        return _renewed(server, login)


def _renewed(server: str, login: Login) -> Login:
    from skillery.client.logins.renewing import renew

    if not login.is_renewable and not login.has_ended:
        return login
    # A new refresh token may invalidate the old one. So check first that a login can be written.
    keep_login(server, login)
    try:
        new = renew(server, login)
    except ConnectionFailed:
        if login.has_ended:
            raise
        return login
    keep_login(server, new)
    return new
