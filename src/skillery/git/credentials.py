"""Credentials of git: Basic becomes Bearer, and a 401 makes git ask its credential helper."""

from __future__ import annotations

import base64
import binascii

from skillery.edge.http import HttpRefusal

UNAUTHORIZED = 401
REALM = "Skillery"
MOST_CHARACTERS = 16_384


def with_bearer(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with the password of Basic as a Bearer token. The user name is ignored.

    Other credentials, and credentials that cannot be read, stay as they are: the authenticator refuses them.
    """
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic" or len(encoded) > MOST_CHARACTERS:
        return headers
    try:
        _, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return headers
    # A password with other characters would be a header that no client can send.
    if not password.isascii() or not password.isprintable():
        return headers
    return {**headers, "authorization": f"Bearer {password}"}


def challenged(refusal: HttpRefusal) -> list[tuple[str, str]]:
    """Return the headers of a refusal. A 401 also asks for Basic: git knows no other challenge."""
    if refusal.status != UNAUTHORIZED:
        return refusal.headers
    return [("www-authenticate", f'Basic realm="{REALM}", charset="UTF-8"'), *refusal.headers]
