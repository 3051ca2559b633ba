"""Checks of access tokens that are JSON Web Tokens (RFC 7519, RFC 8725, RFC 9068)."""

from __future__ import annotations

import base64
import binascii
import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import Key

from skillery.backends import ExplainedCheck
from skillery.errors import NotAuthenticated
from skillery_oidc.keys import ProviderKeys
from skillery_oidc.settings import OidcSettings

MOST_CHARACTERS = 16_384
TOO_LONG = f"the token is longer than {MOST_CHARACTERS} characters"
MOST_KID = 512
ACCESS_TYPES = frozenset({"at+jwt", "application/at+jwt"})
PLAIN_TYPES = frozenset({"", "jwt", "application/jwt"})
ACCESS_PURPOSES = frozenset({"bearer", "access"})
ID_TOKEN_CLAIMS = ("nonce", "at_hash", "c_hash", "s_hash")
"""Claims that only ID tokens have (OpenID Connect Core 1.0 §2 and §3.3.2.11)."""
_UNDERSTOOD_BY_NO_CHECK = ("crit", "b64", "zip", "enc")


class Refused(NotAuthenticated):
    """Raised if a check of a token fails. `subject` is the name of the check."""

    def __init__(self, subject: str, message: str) -> None:
        super().__init__(message)
        self.subject = subject


class Header(NamedTuple):
    """The protected header of a token. The token is not verified yet."""

    algorithm: str
    kid: str | None
    type: str
    """In lower case. "" if the header has no type."""


class _Registry(jws.JWSRegistry):
    """The algorithms of joserfc that the settings allow."""

    max_header_length = 8192
    max_payload_length = MOST_CHARACTERS

    def get_alg(self, name: str) -> Any:
        # Without the warnings of joserfc about names like EdDSA: the settings have chosen the algorithms.
        if name not in (self.allowed or ()):
            raise UnsupportedAlgorithmError(name)
        return self.algorithms[name]


def looks_like_jwt(token: str) -> bool:
    return token.count(".") in {2, 4}


async def verify(token: str, keys: ProviderKeys, settings: OidcSettings, log: list[ExplainedCheck]) -> dict[str, Any]:
    """Return the claims of a token whose signature and claims are valid. Add each passed check to `log`.

    Raise Refused if a check fails, Unavailable if the keys of the provider are not known.
    """
    header = read_header(token, settings, ACCESS_TYPES if settings.require_at_jwt else ACCESS_TYPES | PLAIN_TYPES)
    claims = await signed_claims(token, header, keys, settings, log)
    check_claims(claims, settings, log)
    _check_purpose(claims, header)
    log.append(_passed("purpose", "an access token"))
    return claims


async def signed_claims(
    token: str, header: Header, keys: ProviderKeys, settings: OidcSettings, log: list[ExplainedCheck]
) -> dict[str, Any]:
    """Return the claims of a token whose signature is valid. The claims themselves are not checked.

    Raise Refused if the signature is not valid, Unavailable if the keys of the provider are not known.
    """
    log.append(_passed("header", f"algorithm {header.algorithm}, type {header.type or 'none'}, key {header.kid!r}"))
    matching = await keys.find(header.kid, header.algorithm)
    if not matching:
        raise Refused("signature", "the token is signed with a key that the identity provider does not list")
    claims = _claims_of(_payload(token, matching, header.algorithm))
    log.append(_passed("signature", f"valid, by a key of {settings.issuer}"))
    return claims


def unverified_claims(token: str) -> dict[str, Any]:
    """Return the claims of a token without any check. Use them only to find the issuer's keys."""
    return _object(token.split(".")[1], "claims")


def read_header(token: str, settings: OidcSettings, types: frozenset[str]) -> Header:
    """Return the header of a token. `types` are the types that the header may have. Raise Refused if the header is not
    acceptable.

    Members that name or contain a key (`jku`, `jwk`, `x5u`, `x5c`) are ignored: only the keys of the issuer count.
    """
    if len(token) > MOST_CHARACTERS:
        raise Refused("header", TOO_LONG)
    if token.count(".") != 2:
        raise Refused("header", "the token is not a signed JSON Web Token")
    header = _object(token.partition(".")[0], "header")
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
    if not isinstance(algorithm, str) or algorithm not in settings.algorithms:
        raise Refused("header", f"the algorithm {str(algorithm)[:40]!r} of the token is not accepted")
    if not (kid is None or (isinstance(kid, str) and len(kid) <= MOST_KID)):
        raise Refused("header", "the key id of the token is not valid")
    unknown = [name for name in _UNDERSTOOD_BY_NO_CHECK if name in header]
    if unknown:
        raise Refused("header", f"the header of the token has '{unknown[0]}', which this server does not support")
    kind = kind.lower() if isinstance(kind, str) else "not a text"
    if kind not in types:
        advice = "send an access token" if types & ACCESS_TYPES else "it is not an ID token"
        raise Refused("header", f"the token has the type {kind[:40]!r}: {advice}")
    return Header(algorithm, kid, kind)


def _payload(token: str, keys: list[Key], algorithm: str) -> bytes:
    # The registry accepts only the algorithm that the keys were chosen for.
    registry = _Registry(algorithms=[algorithm], strict_check_header=False)
    for key in keys:
        try:
            return jws.deserialize_compact(token, key, registry=registry).payload
        except (JoseError, ValueError, TypeError):
            continue
    raise Refused("signature", "the signature of the token is not valid")


def _claims_of(payload: bytes) -> dict[str, Any]:
    try:
        claims = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise Refused("claims", "the token does not contain claims")
    return claims


def check_claims(claims: dict[str, Any], settings: OidcSettings, log: list[ExplainedCheck]) -> None:
    """Check issuer, audience and times. Raise Refused if a claim is not acceptable."""
    check_issuer(claims, settings, log)
    check_audience(claims, settings, log)
    check_times(claims, settings, log)


def check_issuer(claims: dict[str, Any], settings: OidcSettings, log: list[ExplainedCheck]) -> None:
    if claims.get("iss") != settings.issuer:
        raise Refused("issuer", f"the token is from another issuer: this server accepts {settings.issuer}")
    log.append(_passed("issuer", settings.issuer))


def check_audience(claims: dict[str, Any], settings: OidcSettings, log: list[ExplainedCheck]) -> None:
    claim = claims.get("aud")
    audiences = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    accepted = sorted({audience for audience in audiences if isinstance(audience, str)} & settings.accepted_audiences)
    if not accepted:
        expected = ", ".join(sorted(settings.accepted_audiences))
        raise Refused("audience", f"the token is for another audience: this server is {expected}")
    log.append(_passed("audience", accepted[0]))


def check_times(claims: dict[str, Any], settings: OidcSettings, log: list[ExplainedCheck]) -> None:
    now, skew = datetime.now(UTC).timestamp(), settings.skew_seconds
    expires = expiry_of(claims)
    if now >= expires + skew:
        raise Refused("expiry", "the token has expired")
    if _time(claims, "nbf", now) > now + skew or _time(claims, "iat", now) > now + skew:
        raise Refused("expiry", "the token is not valid yet: compare the clocks of this server and of the provider")
    log.append(_passed("expiry", f"valid for {max(0, round(expires - now))} s"))


def expiry_of(claims: dict[str, Any]) -> float:
    """Return the claim `exp`. Raise Refused if the token never expires."""
    if claims.get("exp") is None:
        raise Refused("expiry", "the token has no time of expiry")
    return _time(claims, "exp", 0.0)


def _time(claims: dict[str, Any], name: str, default: float) -> float:
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refused("expiry", f"the claim '{name}' of the token is not a time")
    return float(value)


def _check_purpose(claims: dict[str, Any], header: Header) -> None:
    """Raise Refused for tokens that the issuer signs for other purposes, and for tokens bound to a key."""
    if "cnf" in claims:
        raise Refused("purpose", "the token is bound to a key of its client, which this server cannot check")
    if "events" in claims:
        raise Refused("purpose", "the token reports an event: send an access token")
    if header.type in ACCESS_TYPES:
        return
    # Some providers state the purpose in a claim: `typ` (Keycloak), `token_use` (Cognito).
    purposes = {str(claims[name]).lower() for name in ("typ", "token_use") if name in claims}
    if purposes - ACCESS_PURPOSES or (not purposes and any(name in claims for name in ID_TOKEN_CLAIMS)):
        raise Refused("purpose", "the token is an ID token or has another purpose: send the access token")


def _object(part: str, subject: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise Refused(subject, f"the {subject} of the token cannot be read")
    return decoded


def _passed(subject: str, detail: str) -> ExplainedCheck:
    return ExplainedCheck(subject, "ok", detail)
