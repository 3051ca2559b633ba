"""Login with a browser: authorization code flow with PKCE (RFC 6749, RFC 7636, RFC 9207, RFC 8707)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from skillery.backends import ExplainedCheck, LoggedIn, LoginReturn, LoginStart
from skillery.errors import StartupError, Unavailable
from skillery_oidc.access_tokens import MOST_CHARACTERS, Refused, expiry_of
from skillery_oidc.accounts import Account
from skillery_oidc.id_tokens import verify_id_token
from skillery_oidc.keys import ProviderKeys
from skillery_oidc.provider import Metadata, Provider, ProviderFailed
from skillery_oidc.rules import identity_of
from skillery_oidc.settings import SECTION, OidcSettings

log = logging.getLogger(__name__)
AT_ONCE = 8
MOST_WAITING = 100
MOST_CODE = 4096
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""The latest end of a session: datetime supports no years after 9999."""
_OUR_FAULT = frozenset({"invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_request"})
"""Errors of the token endpoint that another login cannot correct, but a change of the settings can."""


class BrowserLogin:
    """The login of users at the provider, with the authorization code flow."""

    def __init__(
        self,
        provider: Provider,
        keys: ProviderKeys,
        settings: OidcSettings,
        access_claims: Callable[[str, list[ExplainedCheck]], Awaitable[dict[str, Any]]],
        account_of: Callable[[dict[str, Any]], Awaitable[Account]],
    ) -> None:
        """`access_claims` returns the claims of a valid access token, and raises Refused for others."""
        self._provider = provider
        self._keys = keys
        self._settings = settings
        self._access_claims = access_claims
        self._account_of = account_of
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    @property
    def title(self) -> str:
        return urlsplit(self._settings.issuer).netloc

    def check(self, metadata: Metadata) -> None:
        """Raise StartupError if the provider does not support the flow."""
        for name in ("authorization_endpoint", "token_endpoint"):
            if not getattr(metadata, name):
                raise StartupError(f"{SECTION}: browser_login is on, but the issuer has no {name}")
        if "S256" not in metadata.code_challenge_methods_supported:
            raise StartupError(f"{SECTION}: browser_login is on, but the issuer does not support PKCE with S256")

    async def begin(self, callback: str) -> LoginStart:
        """Return the address of the provider for a new login, and its secrets `state`, `nonce` and `verifier`."""
        metadata = await self._keys.metadata()
        kept = {"state": _random(), "nonce": _random(), "verifier": _random()}
        challenge = base64.urlsafe_b64encode(hashlib.sha256(kept["verifier"].encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": callback,
            "scope": self._scope,
            "state": kept["state"],
            "nonce": kept["nonce"],
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
            **self._resource,
        }
        separator = "&" if "?" in metadata.authorization_endpoint else "?"
        return LoginStart(f"{metadata.authorization_endpoint}{separator}{urlencode(query)}", kept)

    async def finish(self, answer: LoginReturn) -> LoggedIn:
        """Return the user of a login. Raise Refused if a check fails, Unavailable if the provider is unavailable."""
        metadata = await self._keys.metadata()
        code = self._code(answer, metadata)
        tokens = await self._tokens(metadata, answer, code)
        id_claims = await verify_id_token(
            _text(tokens, "id_token"),
            self._keys,
            self._settings,
            answer.kept.get("nonce", ""),
            tokens.get("access_token"),
        )
        claims = await self._claims(tokens, id_claims)
        account = await self._account_of(claims)
        _, identity = identity_of(account.applied_to(claims), self._settings)
        return LoggedIn(identity, id_claims["sub"], _end_of(claims))

    def _code(self, answer: LoginReturn, metadata: Metadata) -> str:
        """Return the code in the answer of the provider. Raise Refused for errors and for answers to another login."""
        state, query = answer.kept.get("state", ""), answer.query
        if not state or not hmac.compare_digest(query.get("state", "").encode(), state.encode()):
            raise Refused("state", "the answer of the identity provider belongs to another login")
        issuer = query.get("iss")
        if issuer is None and metadata.authorization_response_iss_parameter_supported:
            raise Refused("issuer", "the answer of the login does not name its identity provider")
        if issuer is not None and issuer != self._settings.issuer:
            raise Refused("issuer", f"the answer is from another issuer: this server accepts {self._settings.issuer}")
        if "error" in query:
            raise Refused("provider", f"the identity provider has refused the login: {_shown(query)}")
        code = query.get("code", "")
        if not 1 <= len(code) <= MOST_CODE:
            raise Refused("code", "the answer of the identity provider has no code")
        return code

    async def _tokens(self, metadata: Metadata, answer: LoginReturn, code: str) -> dict[str, Any]:
        """Return the tokens of the provider in exchange for the code. Raise Refused or Unavailable."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": answer.callback,
            "code_verifier": answer.kept.get("verifier", ""),
            **self._resource,
        }
        response = await self._redeemed(metadata, form)
        error = response.get("error")
        if error in _OUR_FAULT:
            log.error("the identity provider refuses the client %r: %s", self._settings.client_id, _shown(response))
            raise Unavailable("the identity provider refuses this server", hint="An admin finds the cause in the log.")
        if error is not None:
            raise Refused("code", f"the identity provider does not accept the login: {_shown(response)}")
        return response

    async def _redeemed(self, metadata: Metadata, form: dict[str, str]) -> dict[str, Any]:
        """Return the answer of the token endpoint. Raise Unavailable if it fails, or if too many logins wait."""
        if self._waiting >= MOST_WAITING:
            raise Unavailable("too many logins wait for the identity provider", hint="Try again in a few seconds.")
        self._waiting += 1
        try:
            async with self._slots:
                return await self._provider.redeem(metadata, form)
        except ProviderFailed as error:
            log.warning("a login has failed: %s", error)
            raise Unavailable(
                "the identity provider is unavailable", hint="Try again later; an admin finds the cause in the log."
            ) from None
        finally:
            self._waiting -= 1

    async def _claims(self, tokens: dict[str, Any], id_claims: dict[str, Any]) -> dict[str, Any]:
        """Return the claims for the rules: the claims of the token that the setting `login_claims` names."""
        if self._settings.login_claims == "id_token":
            # The provider leaves the scope out if it has granted the requested one (RFC 6749 §5.1).
            return {**id_claims, "scope": tokens.get("scope", self._scope)}
        claims = await self._access_claims(_text(tokens, "access_token"), [])
        if claims.get("sub", id_claims["sub"]) != id_claims["sub"]:
            raise Refused("subject", "the ID token and the access token belong to different users")
        return claims

    @property
    def _scope(self) -> str:
        return " ".join(dict.fromkeys(("openid", *self._settings.scopes, *self._settings.login_scopes)))

    @property
    def _resource(self) -> dict[str, str]:
        return {"resource": self._settings.resource} if self._settings.login_resource else {}


def _random() -> str:
    return secrets.token_urlsafe(32)


def _text(tokens: dict[str, Any], name: str) -> str:
    text = tokens.get(name)
    if not isinstance(text, str) or not 1 <= len(text) <= MOST_CHARACTERS:
        raise Refused("provider", f"the identity provider has sent no {name}")
    return text


def _shown(answer: Any) -> str:
    """Return the error of an answer as a part of one line."""
    texts = [str(answer[name]) for name in ("error", "error_description") if answer.get(name)]
    return "".join(char if char.isprintable() else " " for char in ": ".join(texts))[:200]


def _end_of(claims: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(min(expiry_of(claims), LATEST.timestamp()), UTC)
