"""The authenticator `oidc`: it maps the access token in a request to an identity."""

from __future__ import annotations

import hashlib
from typing import Any

from skillery.backends import (
    Authenticator,
    Credentials,
    ExplainedCheck,
    Explanation,
    Identity,
    LoggedIn,
    LoginReturn,
    LoginStart,
    Place,
    Resource,
    Transaction,
)
from skillery.errors import NotAuthenticated, StartupError, TooManyFailedLogins
from skillery.routes import Route
from skillery_oidc.access_tokens import MOST_CHARACTERS, TOO_LONG, Refused, expiry_of, looks_like_jwt, verify
from skillery_oidc.accounts import Accepted, Account, AccountRefused, Accounts
from skillery_oidc.browser_login import BrowserLogin
from skillery_oidc.introspection import Introspection
from skillery_oidc.keys import ProviderKeys
from skillery_oidc.memory import FailedLogins, Memory
from skillery_oidc.provider import Provider, ProviderFailed
from skillery_oidc.revocations import Revocations
from skillery_oidc.rules import explain_rules, identity_of
from skillery_oidc.scim import ScimEndpoints
from skillery_oidc.settings import SECTION, OidcSettings

SKILLERY_TOKENS = "sky_"
"""The start of tokens of the registry, which the authenticator `tokens` accepts."""
ACCEPTED_SECONDS = 300.0
REFUSED_SECONDS = 10.0
Checks = list[ExplainedCheck]


class OidcAuthenticator(Authenticator):
    """Accepts access tokens of one provider."""

    loopback_only = False

    def __init__(self, settings: OidcSettings, place: Place) -> None:
        self._settings = settings
        self._provider = Provider(settings)
        self._accepted: Memory[Accepted] = Memory()
        self._refused: Memory[str] = Memory()  # An exception would keep the whole request in memory.
        self._keys = ProviderKeys(self._provider, settings, self._forget)
        self._introspection = Introspection(self._provider, self._keys, settings) if settings.introspection else None
        self._revocations = Revocations(settings.revoked, place.values)
        self._failures = FailedLogins(settings.failures_per_minute)
        self._login = BrowserLogin(self._provider, self._keys, settings, self._claims, self._account)
        self._accounts: Accounts | None = None
        if settings.scim and place.values and place.end_identities:
            self._accounts = Accounts(settings, settings.scim, place.values, place.end_identities)

    async def start(self) -> None:
        """Read the metadata and the keys of the provider, and try introspection. Raise StartupError if that fails."""
        try:
            await self._keys.read()
            metadata = await self._keys.metadata()
            if self._introspection is not None:
                await self._introspection.try_credentials(metadata)
        except ProviderFailed as error:
            raise StartupError(f"{SECTION}: {error}") from None
        if self._settings.browser_login:
            self._login.check(metadata)

    async def close(self) -> None:
        await self._keys.close()
        await self._provider.close()

    def resource(self) -> Resource:
        settings = self._settings
        return Resource(settings.resource, (settings.issuer,), tuple(settings.scopes), settings.cli_client_id)

    def recognizes(self, credentials: Credentials) -> bool:
        """Return whether the credentials are a bearer token that a provider can have issued."""
        token = _token(credentials)
        if not token or token.startswith(SKILLERY_TOKENS):
            return False
        return self._introspection is not None or looks_like_jwt(token)

    async def authenticate(self, credentials: Credentials) -> Identity:
        token = _token(credentials)
        if not token:
            raise NotAuthenticated("this server wants an access token", hint=self._hint)
        if len(token) > MOST_CHARACTERS:
            raise self._failed(credentials.address, TOO_LONG)
        digest = hashlib.sha256(token.encode()).digest()
        accepted = self._accepted.find(digest)
        if accepted is not None:
            # If the keys have changed, no cached token is left.
            await self._keys.make_current()
            accepted = self._accepted.find(digest)
        if accepted is None or not accepted.is_valid or accepted.account != await self._current(accepted.account):
            accepted = await self._verified(token, digest, credentials)
        await self._check_name(accepted.identity.name)
        return accepted.identity

    def routes(self) -> list[Route]:
        if self._accounts is None:
            return []
        return ScimEndpoints(self._accounts, self._settings.resource).routes()

    def login_title(self) -> str | None:
        return self._login.title if self._settings.browser_login else None

    async def begin_login(self, callback: str) -> LoginStart:
        return await self._login.begin(callback)

    async def finish_login(self, answer: LoginReturn) -> LoggedIn:
        wait = self._failures.wait(answer.address)
        if wait is not None:
            raise _too_many(wait)
        try:
            login = await self._login.finish(answer)
        except Refused as error:
            raise self._failed(answer.address, error.message, "Sign in again.") from None
        await self._check_name(login.identity.name)
        return login

    async def check_login(self, identity: Identity) -> None:
        await self._check_name(identity.name)

    async def explain(self, credentials: Credentials) -> Explanation:
        checks: Checks = []
        try:
            identity = await self._explained(_token(credentials), checks)
        except NotAuthenticated as error:
            subject = error.subject if isinstance(error, Refused | AccountRefused) else "revocation"
            checks.append(ExplainedCheck(subject, "failed", error.message))
            return Explanation(tuple(checks), None)
        return Explanation(tuple(checks), identity)

    def revoke(self, name: str, within: Transaction) -> bool:
        return self._revocations.add(name, within)

    def restore(self, name: str, within: Transaction) -> bool:
        return self._revocations.remove(name, within)

    def revoked(self) -> list[str]:
        return self._revocations.names()

    async def _verified(self, token: str, digest: bytes, credentials: Credentials) -> Accepted:
        """Verify a token, and cache the outcome. Raise NotAuthenticated or Unavailable."""
        refused = self._refused.find(digest)
        if refused is not None:
            raise self._failed(credentials.address, refused)
        age = self._accepted.age
        try:
            accepted, seconds = await self._verify(token, credentials)
        except Refused as error:
            self._refused.keep(digest, error.message, REFUSED_SECONDS, age)
            raise self._failed(credentials.address, error.message) from None
        self._accepted.keep(digest, accepted, seconds, age)
        return accepted

    async def _verify(self, token: str, credentials: Credentials) -> tuple[Accepted, float]:
        """Return the accepted token, and how long it may be cached."""
        is_jwt = looks_like_jwt(token)
        wait = None if is_jwt else self._failures.wait(credentials.address)
        if wait is not None:
            raise _too_many(wait)
        claims = await self._claims(token, [])
        account = await self._account(claims)
        _, identity = identity_of(account.applied_to(claims), self._settings)
        seconds = ACCEPTED_SECONDS if is_jwt else self._settings.introspection_seconds
        return Accepted(identity, expiry_of(claims) + self._settings.skew_seconds, account), seconds

    async def _claims(self, token: str, checks: Checks) -> dict[str, Any]:
        if looks_like_jwt(token):
            return await verify(token, self._keys, self._settings, checks)
        if self._introspection is None:
            raise Refused("header", "the token is not a JSON Web Token, and this server accepts no other tokens")
        return await self._introspection.verify(token, checks)

    async def _explained(self, token: str, checks: Checks) -> Identity:
        claims = await self._claims(token, checks)
        account = await self._account(claims)
        claims = account.applied_to(claims)
        if account.claims:
            replaced = ", ".join(f"{name} {value!r}" for name, value in account.claims)
            checks.append(ExplainedCheck("account", "ok", f"SCIM replaces the claims {replaced}"[:1000]))
        checks += explain_rules(claims, self._settings)
        _, identity = identity_of(claims, self._settings)
        await self._check_name(identity.name)
        return identity

    async def _account(self, claims: dict[str, Any]) -> Account:
        return await self._accounts.find(claims) if self._accounts else Account()

    async def _current(self, account: Account) -> Account:
        return await self._accounts.read(account.user) if self._accounts else account

    async def _check_name(self, name: str) -> None:
        """Raise NotAuthenticated if an admin has revoked the identity, or the provider has deactivated its user."""
        await self._revocations.check(name)
        if self._accounts:
            await self._accounts.check(name)

    def _failed(self, address: str, why: str, hint: str = "") -> NotAuthenticated:
        wait = self._failures.note(address)
        return NotAuthenticated(why, hint=hint or self._hint) if wait is None else _too_many(wait)

    def _forget(self) -> None:
        """Forget all cached tokens, because the keys have changed."""
        self._accepted.clear()
        self._refused.clear()

    @property
    def _hint(self) -> str:
        return (
            f"Send 'Authorization: Bearer …' with an access token of {self._settings.issuer} for this server. In a "
            f"shell: skillery login --url {self._settings.resource}"
        )


def _token(credentials: Credentials) -> str:
    scheme, _, token = credentials.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _too_many(wait: float) -> TooManyFailedLogins:
    return TooManyFailedLogins(
        "too many logins from this address have failed",
        hint="Get a new token before you try again. A valid token is accepted at any time.",
        retry_after_ms=max(1, round(wait * 1000)),
    )
