"""The token of a stored login, which is renewed before it ends."""

from __future__ import annotations

from skillery.client.errors import ConnectionFailed
from skillery.client.logins.discovery import Refusal, login_for, refusal, request
from skillery.client.logins.kept import changing, find_login, keep_login
from skillery.client.logins.login import Login, LoginEnded, server_of


class KeptToken:
    """A function that returns the token of the login for one server, or None without a login.

    If the token ends soon, a call renews the login at the identity provider, and blocks for one request. It raises
    LoginEnded if the provider refuses, and ConnectionFailed if the provider cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self._server = server_of(url)
        self._login: Login | None = None

    def __call__(self) -> str | None:
        if self._login is None or not self._login.is_fresh:
            self._login = current_login(self._server)
        return None if self._login is None else self._login.token


def kept_token(url: str) -> KeptToken:
    """Return a function that returns the token of the login for the server at `url`."""
    return KeptToken(url)


def current_login(server: str) -> Login | None:
    """Return the login for a server, or None. If its token ends soon, renew the login first."""
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
    """Renew a login and store it. If the provider cannot be reached, return the login while its token is valid."""
    if not login.is_renewable and not login.has_ended:
        return login
    # A new refresh token may invalidate the old one. So check first that a login can be written.
    keep_login(server, login)
    try:
        renewed = renew(server, login)
    except ConnectionFailed:
        if login.has_ended:
            raise
        return login
    keep_login(server, renewed)
    return renewed


# -- Renewing and revoking a login at its identity provider (RFC 6749 §6, RFC 7009) ------------------------------------


def renew(server: str, login: Login) -> Login:
    """Return the login with a new token. The caller holds the lock `changing`.

    Raise LoginEnded if the user must log in again, and ConnectionFailed if the provider cannot be reached.
    """
    again = f"Log in again: skillery login --url {server}"
    provider = login.provider
    if provider is None or not provider.refresh_token:
        raise LoginEnded(f"the login for {server} has ended, and its provider gave no refresh token", hint=again)
    form = {
        "grant_type": "refresh_token",
        "refresh_token": provider.refresh_token,
        "client_id": provider.client_id,
        "resource": provider.resource,
    }
    try:
        return login_for(provider, form)
    except Refusal as error:
        raise LoginEnded(f"the login for {server} has ended: {error.message}", hint=again) from None


def revoke(login: Login) -> bool:
    """Revoke a login at its provider. Return False if the provider cannot revoke logins.

    Raise LoginError or ConnectionFailed if the request fails.
    """
    provider = login.provider
    if provider is None or not provider.revocation_endpoint:
        return False
    # With a refresh token, a provider also revokes the tokens that came from it (RFC 7009 §2.1).
    token, kind = (provider.refresh_token, "refresh_token") if provider.refresh_token else (login.token, "access_token")
    form = {"token": token, "token_type_hint": kind, "client_id": provider.client_id}
    answer = request("POST", provider.revocation_endpoint, form)
    if answer.status != 200:
        raise refusal(answer, provider.revocation_endpoint)
    return True
