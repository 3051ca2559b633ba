"""__DESCRIPTION__"""

from __future__ import annotations

import hashlib

import msgspec
from skillery import hookimpl
from skillery.backends import Credentials, Identity, Offer, Place, Scope
from skillery.errors import NotAuthenticated

api_version = __API__
HEADER = "x-__OFFER__-key"


class __CLASS__Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: dict[str, str] = {}
    """The SHA-256 of each key in hex digits, and the name of its owner."""
    scopes: tuple[Scope, ...] = ("read", "run")
    """The scopes of all callers."""


class __CLASS__Authenticator:
    """See `skillery.backends.Authenticator`."""

    loopback_only = False

    def __init__(self, settings: __CLASS__Settings) -> None:
        self._settings = settings

    def recognizes(self, credentials: Credentials) -> bool:
        return HEADER in credentials.headers

    async def authenticate(self, credentials: Credentials) -> Identity:
        key = credentials.headers.get(HEADER, "")
        # A look-up by digest takes the same time for a nearly correct key.
        name = self._settings.keys.get(hashlib.sha256(key.encode()).hexdigest())
        if name is None:
            raise NotAuthenticated("the key is missing or not known", hint=f"Send a key in the header {HEADER}.")
        return Identity(name, "person", frozenset(self._settings.scopes))


def open_authenticator(settings: __CLASS__Settings, place: Place) -> __CLASS__Authenticator:
    return __CLASS__Authenticator(settings)


@hookimpl
def skillery_authenticator() -> Offer:
    return Offer("__OFFER__", open_authenticator, __CLASS__Settings)
