"""Checks of ID tokens, after a login with a browser (OpenID Connect Core 1.0 §3.1.3.7)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from skillery_oidc.access_tokens import (
    ACCESS_PURPOSES,
    PLAIN_TYPES,
    Refused,
    check_issuer,
    check_times,
    read_header,
    signed_claims,
)
from skillery_oidc.keys import ProviderKeys
from skillery_oidc.settings import OidcSettings

MOST_SUBJECT = 255
_HASHES = {"256": "sha256", "384": "sha384"}
"""The hash of an algorithm, by the end of its name. Ed25519 has SHA-512, like ES512, PS512 and RS512."""


async def verify_id_token(
    token: str, keys: ProviderKeys, settings: OidcSettings, nonce: str, access_token: Any
) -> dict[str, Any]:
    """Return the claims of an ID token for the client of this server.

    `access_token` is the access token of the same answer, if there is one. Raise Refused if a check fails, Unavailable
    if the keys of the provider are not known.
    """
    header = read_header(token, settings, PLAIN_TYPES)
    claims = await signed_claims(token, header, keys, settings, [])
    check_issuer(claims, settings, [])
    _check_client(claims, settings.client_id)
    check_times(claims, settings, [])
    _check_nonce(claims, nonce)
    _check_access_token(claims, header.algorithm, access_token)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 1 <= len(subject) <= MOST_SUBJECT or not subject.isprintable():
        raise Refused("subject", "the claim 'sub' of the ID token is not valid")
    # An access token must not be used as a proof of a login: another client may have got it.
    if any(str(claims.get(name, "")).lower() in ACCESS_PURPOSES for name in ("typ", "token_use")):
        raise Refused("purpose", "the identity provider has sent another token in place of an ID token")
    return claims


def _check_client(claims: dict[str, Any], client_id: str) -> None:
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if client_id not in audiences or claims.get("azp", client_id) != client_id:
        raise Refused("audience", f"the ID token is for another client: this server is the client {client_id!r}")
    if len(audiences) > 1 and "azp" not in claims:
        raise Refused("audience", "the ID token is for several clients, and does not name the one that requested it")


def _check_nonce(claims: dict[str, Any], nonce: str) -> None:
    token_nonce = claims.get("nonce")
    if not isinstance(token_nonce, str) or not hmac.compare_digest(token_nonce.encode(), nonce.encode()):
        raise Refused("nonce", "the ID token belongs to another login")


def _check_access_token(claims: dict[str, Any], algorithm: str, access_token: Any) -> None:
    """Raise Refused if the ID token has the hash of another access token (OpenID Connect Core 1.0 §3.1.3.8)."""
    access_token_hash = claims.get("at_hash")
    if access_token_hash is None or not isinstance(access_token, str):
        return
    digest = hashlib.new(_HASHES.get(algorithm[-3:], "sha512"), access_token.encode()).digest()
    expected = base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=")
    if not isinstance(access_token_hash, str) or not hmac.compare_digest(
        access_token_hash.rstrip("=").encode(), expected
    ):
        raise Refused("at_hash", "the ID token belongs to another access token")
