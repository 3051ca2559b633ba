"""Introspection (RFC 7662): the provider tells whether an opaque token is valid, and its claims."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from skillery.backends import ExplainedCheck
from skillery.errors import Unavailable
from skillery_oidc.access_tokens import (
    ACCESS_PURPOSES,
    ACCESS_TYPES,
    MOST_CHARACTERS,
    Refused,
    check_audience,
    check_times,
)
from skillery_oidc.keys import ProviderKeys
from skillery_oidc.provider import Metadata, Provider, ProviderFailed
from skillery_oidc.settings import OidcSettings

log = logging.getLogger(__name__)
MOST_WAITING = 100
PURPOSE_CLAIMS = ("token_type", "token_use", "typ")
"""Members in which providers state the purpose of a token. A provider states `active` for refresh tokens too."""
PURPOSES = ACCESS_PURPOSES | ACCESS_TYPES | {"access_token"}


class Introspection:
    """Verifies opaque tokens with requests to the provider, a limited number at a time."""

    def __init__(self, provider: Provider, keys: ProviderKeys, settings: OidcSettings) -> None:
        self._provider = provider
        self._keys = keys
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.introspections_at_once)
        self._waiting = 0

    async def try_credentials(self, metadata: Metadata) -> None:
        """Ask about a token that does not exist. Raise ProviderFailed if the provider refuses this server."""
        await self._provider.introspect(metadata, "check")

    async def verify(self, token: str, checks: list[ExplainedCheck]) -> dict[str, Any]:
        """Return the claims of a valid token, as the provider states them. Add each passed check to `checks`.

        Raise Refused if a check fails, Unavailable if the provider is unavailable or too many callers wait for it.
        """
        if len(token) > MOST_CHARACTERS or not token.isascii():
            raise Refused("introspection", "the token is not valid")
        claims = await self._ask(token)
        if claims.get("active") is not True:
            raise Refused("introspection", "the identity provider does not accept the token (any more)")
        checks.append(ExplainedCheck("introspection", "ok", f"{self._settings.issuer} accepts the token"))
        if claims.get("iss", self._settings.issuer) != self._settings.issuer:
            raise Refused("issuer", f"the token is from another issuer: this server accepts {self._settings.issuer}")
        check_audience(claims, self._settings, checks)
        check_times(claims, self._settings, checks)
        _check_purpose(claims)
        return claims

    async def _ask(self, token: str) -> dict[str, Any]:
        """Return the answer of the provider about a token. Raise Unavailable if it fails, or if too
        many requests wait.
        """
        if self._waiting >= MOST_WAITING:
            raise Unavailable("too many logins wait for the identity provider", hint="Try again in a few seconds.")
        metadata = await self._keys.metadata()
        self._waiting += 1
        try:
            async with self._slots:
                return await self._provider.introspect(metadata, token)
        except ProviderFailed as error:
            log.warning("a token cannot be checked: %s", error)
            raise Unavailable(
                "the identity provider is unavailable", hint="Try again later; an admin finds the cause in the log."
            ) from None
        finally:
            self._waiting -= 1


def _check_purpose(claims: dict[str, Any]) -> None:
    """Raise Refused for tokens that are not access tokens, and for tokens bound to a key."""
    if "cnf" in claims:
        raise Refused("purpose", "the token is bound to a key of its client, which this server cannot check")
    purposes = {str(claims[name]).lower() for name in PURPOSE_CLAIMS if claims.get(name) is not None}
    if purposes - PURPOSES:
        raise Refused("purpose", "the token is a refresh token or has another purpose: send the access token")
