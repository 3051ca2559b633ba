"""The verifier of the signed tokens of CI jobs, for the issuers that trust rules name."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from skillery.backends import ExplainedCheck, Place
from skillery.errors import InvalidParams, SkilleryError, StartupError, Unavailable
from skillery_oidc.access_tokens import (
    ACCESS_TYPES,
    MOST_CHARACTERS,
    PLAIN_TYPES,
    TOO_LONG,
    Refused,
    check_claims,
    read_header,
    signed_claims,
    unverified_claims,
)
from skillery_oidc.keys import ProviderKeys
from skillery_oidc.provider import Provider, ProviderFailed
from skillery_oidc.settings import ASYMMETRIC, OidcSettings, VerifierSettings

Fetch = Callable[[str], Awaitable[bytes]]
log = logging.getLogger(__name__)
SECTION = "[backends.verifier.oidc]"
MOST_ISSUERS = 1000
"""As many as there can be trust rules, so that no issuer of a rule is read again before its time."""
MOST_OF_ISSUER = 32
"""Limit of the tokens of one issuer that are verified at the same time. So a slow or unavailable issuer cannot
stop the jobs of others."""
ID_PURPOSES = frozenset({"id", "jwt"})


def open_verifier(settings: VerifierSettings, place: Place) -> IssuersVerifier:
    unsafe = sorted(set(settings.algorithms) - ASYMMETRIC)
    if unsafe or not settings.algorithms:
        permitted = ", ".join(sorted(ASYMMETRIC))
        raise StartupError(f"{SECTION}: algorithms is '{', '.join(unsafe) or 'empty'}': permitted are {permitted}")
    if place.fetch is None:
        raise StartupError(
            f"{SECTION}: only a server can open the verifier, because the verifier reads documents over the network"
        )
    return IssuersVerifier(settings, place.fetch)


class FetchedProvider(Provider):
    """A provider whose documents are read with `Place.fetch` of the server."""

    def __init__(self, settings: OidcSettings, fetch: Fetch) -> None:
        super().__init__(settings)
        self._fetch = fetch

    async def _request(
        self,
        method: str,
        address: str,
        form: dict[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        statuses: frozenset[int] = frozenset({200}),
    ) -> dict[str, Any]:
        try:
            answer = msgspec.json.decode(await self._fetch(address))
        except SkilleryError as error:
            log.warning("issuer of CI jobs: %s", error.message)
            raise ProviderFailed(error.message) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ProviderFailed(f"{address[:300]} does not answer with a JSON object")
        return answer


class IssuersVerifier:
    """Verifies tokens of many issuers. The keys of the issuers in use are cached."""

    def __init__(self, settings: VerifierSettings, fetch: Fetch) -> None:
        self._settings = settings
        self._fetch = fetch
        self._keys: OrderedDict[str, ProviderKeys] = OrderedDict()
        self._verifying: Counter[str] = Counter()

    async def check_issuer(self, issuer: str) -> None:
        is_known = issuer in self._keys
        try:
            await self._keys_of(issuer).read()
        except ProviderFailed as error:
            if not is_known:
                self._keys.pop(issuer, None)
            raise InvalidParams(
                f"the issuer '{issuer}' cannot be used: {error}",
                hint="Copy the claim 'iss' from a token of this issuer.",
                param="issuer",
            ) from None

    async def verify(self, token: str, issuers: Collection[str], audience: str) -> Mapping[str, Any]:
        if len(token) > MOST_CHARACTERS:
            raise Refused("header", TOO_LONG)
        # The header is read before anything is fetched: most wrong texts cost nothing.
        header = read_header(token, self._of("", audience), ACCESS_TYPES | PLAIN_TYPES)
        if header.type in ACCESS_TYPES:
            raise Refused("header", "the token is an access token: send the ID token of the CI job")
        issuer = unverified_claims(token).get("iss")
        if not isinstance(issuer, str) or issuer not in issuers:
            issuer_text = repr(issuer)[:200]
            raise Refused("issuer", f"no trust rule of this server is for the issuer {issuer_text} of the token")
        settings, passed_checks = self._of(issuer, audience), list[ExplainedCheck]()
        with self._turn(issuer):
            claims = await signed_claims(token, header, self._keys_of(issuer), settings, passed_checks)
        check_claims(claims, settings, passed_checks)
        _check_job(claims, audience)
        return claims

    @contextmanager
    def _turn(self, issuer: str) -> Iterator[None]:
        """Context manager for a check with the keys of an issuer. Raise Unavailable if the keys cannot be read, or if
        too many tokens wait for them.
        """
        unavailable = Unavailable(
            f"the keys of the issuer '{issuer}' cannot be read",
            hint="Try again later. An admin finds the reason in the log.",
        )
        if self._verifying[issuer] >= MOST_OF_ISSUER:
            raise unavailable
        self._verifying[issuer] += 1
        try:
            yield
        except Unavailable:
            raise unavailable from None
        finally:
            self._verifying[issuer] -= 1
            if not self._verifying[issuer]:
                del self._verifying[issuer]

    def _of(self, issuer: str, audience: str) -> OidcSettings:
        """Return settings of the authenticator for tokens of this issuer and audience."""
        verifier_settings = self._settings
        return OidcSettings(
            issuer=issuer,
            resource=audience,
            rules=(),
            audiences=(audience,),
            algorithms=verifier_settings.algorithms,
            skew_seconds=verifier_settings.skew_seconds,
            keys_seconds=verifier_settings.keys_seconds,
            unknown_key_seconds=verifier_settings.unknown_key_seconds,
        )

    def _keys_of(self, issuer: str) -> ProviderKeys:
        if issuer not in self._keys:
            settings = self._of(issuer, "")
            self._keys[issuer] = ProviderKeys(FetchedProvider(settings, self._fetch), settings, lambda: None)
        self._keys.move_to_end(issuer)
        if len(self._keys) > MOST_ISSUERS:
            self._keys.popitem(last=False)
        return self._keys[issuer]


def _check_job(claims: Mapping[str, Any], audience: str) -> None:
    """Raise Refused for a token for several audiences, a token bound to a key, a logout token, or an access token."""
    if claims.get("aud") not in (audience, [audience]):
        raise Refused("audience", f"the token is for other audiences too: request one for {audience} alone")
    if "cnf" in claims or "events" in claims:
        raise Refused("purpose", "the token is bound to a key, or reports an event: send the ID token of the CI job")
    # Some issuers state the purpose in a claim: `typ` (Keycloak) or `token_use` (Cognito).
    if {str(claims[name]).lower() for name in ("typ", "token_use") if name in claims} - ID_PURPOSES:
        raise Refused("purpose", "the token is an access token or has another purpose: send the ID token of the CI job")
    if claims.get("exp", 0) <= claims.get("iat", 0):
        raise Refused("expiry", "the token expires before it becomes valid")
