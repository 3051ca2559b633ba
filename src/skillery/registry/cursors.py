"""Opaque cursors: each contains a position in a listing, is signed with the registry's key, and is bound to the
query.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from sqlalchemy import Connection

from skillery.database.shared_values import keep_value
from skillery.errors import InvalidCursor

KEY_NAME = "cursor_key"
_MAC_BYTES = 12


def cursor_key(connection: Connection) -> bytes:
    """Return the signing key of this registry. The first call generates and stores the key in the transaction."""
    return keep_value(connection, KEY_NAME, secrets.token_bytes(32))


def make_cursor(key: bytes, bound_to: tuple[str, ...], position: tuple[str, ...]) -> str:
    payload = "\0".join(position).encode()
    return base64.urlsafe_b64encode(_mac(key, bound_to, payload) + payload).rstrip(b"=").decode()


def read_cursor(key: bytes, bound_to: tuple[str, ...], cursor: str, parts: int) -> tuple[str, ...]:
    """Return the position in the cursor. Raise InvalidCursor if the cursor was not issued for this query."""
    try:
        raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise _invalid() from None
    payload = raw[_MAC_BYTES:]
    canonical = base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == cursor
    if not canonical or not hmac.compare_digest(raw[:_MAC_BYTES], _mac(key, bound_to, payload)):
        raise _invalid()
    position = tuple(payload.decode().split("\0"))
    if len(position) != parts:
        raise _invalid()
    return position


def _mac(key: bytes, bound_to: tuple[str, ...], payload: bytes) -> bytes:
    text = "\0".join(bound_to).encode() + b"\0\0" + payload
    return hashlib.blake2b(text, key=key, digest_size=_MAC_BYTES).digest()


def _invalid() -> InvalidCursor:
    return InvalidCursor(
        "'cursor' was not issued for this listing",
        hint="Pass next_cursor of the previous answer unchanged, with the same other params.",
    )
