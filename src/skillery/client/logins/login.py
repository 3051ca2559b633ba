"""The values of a login, and the address that it belongs to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import httpx

from skillery.client.errors import ClientError
from skillery.client.wire import is_loopback

# -- Errors of logins --------------------------------------------------------------------------------------------------


class LoginError(ClientError):
    """Raised if a login fails. `hint` is a sentence with the remedy, or None."""

    type = "login_failed"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.message = message
        self.hint = hint


class LoginEnded(LoginError):
    """Raised if a stored login cannot be renewed, so that the user must log in again."""

    type = "login_ended"


class UnusableLogin(LoginError):
    """Raised if the file or the keyring with a login cannot be read or written, or if others can read it."""

    type = "login_unusable"


LEAD_SECONDS = 30.0
"""A token is renewed this many seconds before its end, so that it does not end while a request is sent."""


@dataclass(frozen=True)
class ProviderLogin:
    """The values with which a login at an identity provider is renewed and revoked."""

    issuer: str
    client_id: str
    resource: str
    token_endpoint: str
    revocation_endpoint: str = ""
    refresh_token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Login:
    """A login at one server. `provider` is None if the token is one of the server itself."""

    token: str = field(repr=False)
    expires_at: float | None = None
    """The end of the token in seconds since 1970, or None if it is unknown."""
    provider: ProviderLogin | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether the token can be used without a renewal."""
        return self.expires_at is None or time.time() < self.expires_at - LEAD_SECONDS

    @property
    def is_renewable(self) -> bool:
        return self.provider is not None and bool(self.provider.refresh_token)

    @property
    def has_ended(self) -> bool:
        return self.expires_at is not None and time.time() >= self.expires_at


def server_of(url: str) -> str:
    """Return the address of a server in its normal form.

    Scheme and host are in lower case, and a default port, a final slash and a final `/rpc` are removed. Raise
    LoginError if the address cannot be the one of a server.
    """
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise LoginError(f"this is not an address of a server: {error}") from None
    if address.userinfo:
        hint = "Leave them out. `skillery login` keeps a token for a server."
        raise LoginError(f"the address of {_shown(address)} contains a user or a password", hint=hint)
    if address.scheme not in {"http", "https"} or not address.host or address.query or address.fragment:
        raise LoginError(f"'{_shown(address)}' is not an address of a server like https://skills.example.org")
    return str(address).rstrip("/").removesuffix("/rpc")


def _shown(url: httpx.URL) -> str:
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


def is_safe(url: str) -> bool:
    """Return whether requests to the address are encrypted or stay on this computer."""
    try:
        scheme = httpx.URL(url).scheme
        return scheme == "https" or (scheme == "http" and is_loopback(url))
    except httpx.InvalidURL:
        return False
