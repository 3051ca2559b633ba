"""Renewing and revoking a login at its identity provider (RFC 6749 §6, RFC 7009)."""

from __future__ import annotations

from skillery.client.logins.errors import LoginEnded
from skillery.client.logins.login import Login
from skillery.client.logins.requests import request
from skillery.client.logins.token_requests import Refusal, login_for, refusal


def renew(server: str, login: Login) -> Login:
    """Return the login with a new token. The caller holds the lock of the login.

    Raise LoginEnded if the user must log in again, ConnectionFailed if the provider cannot be reached.
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
    """Revoke a login at its provider. Return whether the provider has an endpoint for that.

    Raise LoginError or ConnectionFailed if the provider does not revoke the login.
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
