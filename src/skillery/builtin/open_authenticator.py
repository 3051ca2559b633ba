"""`open`: no login. Every client is the same local person with all scopes, so the server may only listen on
loopback.
"""

from __future__ import annotations

from skillery import hookimpl
from skillery.backends import ALL_SCOPES, Authenticator, Credentials, Identity, NoSettings, Offer, Place

LOCAL = Identity("local", "person", ALL_SCOPES, ("*",))


class OpenAuthenticator(Authenticator):
    """See `skillery.backends.Authenticator`. Every caller is the local person."""

    loopback_only = True
    is_local = True

    async def authenticate(self, credentials: Credentials) -> Identity:
        return LOCAL


def _open(_settings: NoSettings, _place: Place) -> OpenAuthenticator:
    return OpenAuthenticator()


@hookimpl
def skillery_authenticator() -> Offer:
    return Offer("open", _open)
