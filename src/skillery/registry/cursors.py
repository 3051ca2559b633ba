"""Opaque cursors. A cursor contains a position in a list, is signed with the key of the registry, and is bound to a
query.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, TypeVar

import msgspec
from sqlalchemy import Connection

from skillery.database.backend_values import keep_value
from skillery.errors import InvalidCursor

KEY_NAME = "cursor_key"
_MAC_BYTES = 12


def cursor_key(connection: Connection) -> bytes:
    """Return the key that signs the cursors of this registry. The first call generates and stores the key."""
    return keep_value(connection, KEY_NAME, secrets.token_bytes(32))


def make_cursor(key: bytes, bound_to: tuple[str, ...], position: tuple[str, ...]) -> str:
    """Return a cursor for a position in the list of a query. `bound_to` are the values that identify the query."""
    payload = "\0".join(position).encode()
    return base64.urlsafe_b64encode(_mac(key, bound_to, payload) + payload).rstrip(b"=").decode()


def read_cursor(key: bytes, bound_to: tuple[str, ...], cursor: str, parts: int) -> tuple[str, ...]:
    """Return the position in a cursor, which has `parts` values.

    Raise InvalidCursor if the cursor was not issued for the query `bound_to`.
    """
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
    """Return the signature of a position for a query."""
    text = "\0".join(bound_to).encode() + b"\0\0" + payload
    return hashlib.blake2b(text, key=key, digest_size=_MAC_BYTES).digest()


def _invalid() -> InvalidCursor:
    """Return the error for a cursor of another query."""
    return InvalidCursor(
        "'cursor' was not issued for this listing",
        hint="Pass next_cursor of the previous answer unchanged, with the same other params.",
    )


# -- Pages of lists. Each page has a limit on its bytes and on its number of items -------------------------------------


Row = TypeVar("Row")
NextCursor = Annotated[str | None, msgspec.Meta(description="For the next page; null on the last page")]
MOST_BYTES = 2 * 1024 * 1024
"""The maximum size of all items of a page together. A single item may have 256 KiB, and `limit` may be a thousand."""
ROWS_AT_ONCE = 50
"""The number of rows with large items that are read at once. Their bytes are counted after each read."""


def fitting(rows: Sequence[Row], sizes: Iterable[int]) -> Sequence[Row]:
    """Return the first rows with together at most MOST_BYTES of items, but at least one row. `sizes` are the bytes of
    the items.
    """
    whole = 0
    for count, size in enumerate(sizes):
        whole += size
        if whole > MOST_BYTES and count:
            return rows[:count]
    return rows


def bytes_of(texts: Iterable[str]) -> Iterable[int]:
    """Return the numbers of bytes of the texts in UTF-8."""
    return map(len, map(str.encode, texts))


def fitting_items(items: Sequence[Row]) -> Sequence[Row]:
    """Return the first items with together at most MOST_BYTES of JSON, but at least one item."""
    return fitting(items, map(len, map(msgspec.json.encode, items)))


def read_until_full(
    read: Callable[[int, Row | None], Sequence[Row]], count: int, size_of: Callable[[Row], int]
) -> list[Row]:
    """Return at most `count` rows, or fewer if their items have more than MOST_BYTES together.

    `read(wanted, last)` returns the next `wanted` rows after the row `last`, or fewer at the end of the list.
    """
    rows: list[Row] = []
    size = 0
    while len(rows) < count and size <= MOST_BYTES:
        row_count = min(ROWS_AT_ONCE, count - len(rows))
        batch = read(row_count, rows[-1] if rows else None)
        rows += batch
        size += sum(map(size_of, batch))
        if len(batch) < row_count:
            break
    return rows
