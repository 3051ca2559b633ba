"""Pages of lists. Next to `limit`, the bytes of a page are limited, so that no list makes a large answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Annotated, Any, TypeVar

import msgspec

Row = TypeVar("Row")
NextCursor = Annotated[str | None, msgspec.Meta(description="For the next page; null on the last page")]
MOST_BYTES = 2 * 1024 * 1024
"""Limit on the items of a page, in bytes. A single item may have 256 KiB, and a caller may request a thousand."""
ROWS_AT_ONCE = 50
"""Rows of large items that are read before their bytes are counted."""


def fitting(rows: Sequence[Row], size_of: Callable[[Row], int]) -> Sequence[Row]:
    """Return the first rows whose items fit into MOST_BYTES, at least one."""
    ends = accumulate(map(size_of, rows))
    return rows[: max(1, sum(1 for end in ends if end <= MOST_BYTES))]


def fitting_items(items: Sequence[Row]) -> Sequence[Row]:
    """Return the first items that fit into MOST_BYTES of JSON, at least one."""
    return fitting(items, lambda item: len(msgspec.json.encode(item)))


def read_until_full(
    read: Callable[[int, Row | None], Sequence[Row]], count: int, size_of: Callable[[Row], int]
) -> list[Row]:
    """Return up to `count` rows, and no more once their items pass MOST_BYTES.

    `read` returns the requested number of rows after a row, fewer at the end of the list.
    """
    rows: list[Row] = []
    size = 0
    while len(rows) < count and size <= MOST_BYTES:
        wanted = min(ROWS_AT_ONCE, count - len(rows))
        found = read(wanted, rows[-1] if rows else None)
        rows += found
        size += sum(map(size_of, found))
        if len(found) < wanted:
            break
    return rows


def text_bytes(text: Any) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
