"""Requests for tokens at an identity provider (RFC 6749)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from skillery.client.errors import ConnectionFailed
from skillery.client.logins.discovery import Provider
from skillery.client.logins.errors import LoginError
from skillery.client.logins.login import Login, ProviderLogin
from skillery.client.logins.requests import Answer, request

UNSTATED_SECONDS = 300.0
"""Assumed life of a token, if the provider does not state it."""
LONGEST_SECONDS = 10 * 365 * 86_400.0
"""A token with a longer life is taken for a token with this life: no date is after the year 9999."""
MAX_TEXT = 300
MAX_TOKEN = 65_536


class Refusal(LoginError):
    """Raised if the provider answers an error. `error` is its code, such as `access_denied`."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


class _Tokens(msgspec.Struct, frozen=True):
    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None


class _Error(msgspec.Struct, frozen=True):
    error: str
    error_description: str = ""


def ask_for_tokens(provider: Provider, form: Mapping[str, str]) -> Login:
    """Send a grant to the token endpoint, and return the login. Raise Refusal if the provider answers an error."""
    metadata = provider.metadata
    kept = ProviderLogin(
        metadata.issuer, provider.client_id, provider.resource, metadata.token_endpoint, metadata.revocation_endpoint
    )
    return login_for(kept, {"client_id": kept.client_id, "resource": kept.resource, **form})


def login_for(kept: ProviderLogin, form: Mapping[str, str]) -> Login:
    """Send a form to the token endpoint of a login, and return the login with the tokens of the response."""
    answer = request("POST", kept.token_endpoint, form)
    if answer.status != 200:
        raise refusal(answer, kept.token_endpoint)
    try:
        found = msgspec.json.decode(answer.body, type=_Tokens)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The message of the decoder could contain a part of a token.
        raise LoginError(f"{kept.token_endpoint} answered no valid tokens") from None
    if found.token_type.lower() != "bearer":
        raise LoginError(f"{kept.issuer} issued a token of the type '{found.token_type[:40]}', not a bearer token")
    if not is_header_text(found.access_token) or len(found.refresh_token or "") > MAX_TOKEN:
        raise LoginError(f"{kept.issuer} issued a token that is too long, or that no header can hold")
    # A response without a refresh token leaves the old one valid (RFC 6749 §6).
    new = replace(kept, refresh_token=found.refresh_token or kept.refresh_token)
    return Login(found.access_token, time.time() + _seconds(found.expires_in), new)


def _seconds(stated: float | str | None) -> float:
    try:
        return min(max(0.0, float(stated)), LONGEST_SECONDS) if stated is not None else UNSTATED_SECONDS
    except ValueError:
        return UNSTATED_SECONDS


def is_header_text(token: str) -> bool:
    """Return whether a header can hold the token: visible ASCII characters without spaces."""
    return 0 < len(token) <= MAX_TOKEN and all("!" <= one <= "~" for one in token)


def refusal(answer: Answer, address: str) -> LoginError:
    """Return the error for a failed request. Raise ConnectionFailed if the provider is unavailable."""
    try:
        found = msgspec.json.decode(answer.body, type=_Error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if answer.status >= 500 or answer.status == 429:
            raise ConnectionFailed(f"{address} answered HTTP {answer.status}", sent=True) from None
        return LoginError(f"{address} answered HTTP {answer.status}")
    if found.error in {"server_error", "temporarily_unavailable"} or answer.status >= 500:
        raise ConnectionFailed(f"{address} answered '{found.error[:MAX_TEXT]}'", sent=True)
    return refused(found.error, found.error_description, address)


def refused(error: str, description: str, address: str) -> Refusal:
    more = f": {description[:MAX_TEXT]}" if description else ""
    return Refusal(error, f"the identity provider answered '{error[:MAX_TEXT]}'{more} ({address})")
