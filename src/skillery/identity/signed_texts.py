"""Texts that the server signs and gives to browsers: form tokens, and the values of an unfinished login."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from sqlalchemy import Connection

from skillery.database.backend_values import keep_value

KEY_NAME = "web_key"
SALT_CHARACTERS = 22
_FORM, _VALUE = b"form\0", b"value\0"


def web_key(connection: Connection) -> bytes:
    """Return the signing key of this registry for browsers. The first call generates and stores the key."""
    return keep_value(connection, KEY_NAME, secrets.token_bytes(32))


class Signer:
    """Signs with the key of the registry, which all servers of a database share."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def form_token(self, session: str) -> str:
        """Return a token for the forms of one page. `session` is the cookie of the session, or "" without one."""
        salt = secrets.token_urlsafe(16)
        return salt + self._mac(_FORM, session, salt)

    def is_form_token(self, session: str, token: str) -> bool:
        """Return whether `form_token` has returned the token for this session."""
        salt, mac = token[:SALT_CHARACTERS], token[SALT_CHARACTERS:]
        return _equal(mac, self._mac(_FORM, session, salt))

    def signed(self, value: bytes) -> str:
        """Return the value with a signature. The value can be read without the key, but not be changed."""
        payload = _encoded(value)
        return f"{payload}.{self._mac(_VALUE, payload)}"

    def verified(self, text: str) -> bytes | None:
        """Return the value that `signed` got, or None if the text was not made by `signed`."""
        payload, _, mac = text.partition(".")
        if not _equal(mac, self._mac(_VALUE, payload)):
            return None
        try:
            return base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        except (binascii.Error, ValueError):
            return None

    def _mac(self, purpose: bytes, *parts: str) -> str:
        # The lengths separate the parts: other parts never give the same bytes.
        framed = b"".join(len(raw).to_bytes(4, "big") + raw for raw in (part.encode() for part in parts))
        return _encoded(hmac.digest(self._key, purpose + framed, hashlib.sha256))


def _equal(text: str, expected: str) -> bool:
    return hmac.compare_digest(text.encode(), expected.encode())


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
