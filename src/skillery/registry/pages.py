"""Pages of lists. Each page has a limit on its bytes and on its number of items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Annotated, Any, TypeVar

import msgspec

Row = TypeVar("Row")
NextCursor = Annotated[str | None, msgspec.Meta(description="For the next page; null on the last page")]
MOST_BYTES = 2 * 1024 * 1024
"""Limit on the bytes of all items of a page. A single item may have 256 KiB, and `limit` may be a thousand."""
ROWS_AT_ONCE = 50
"""Number of rows with large items that are read at a time. The bytes are counted after each read."""


def fitting(rows: Sequence[Row], size_of: Callable[[Row], int]) -> Sequence[Row]:
    """Return the first rows with together at most MOST_BYTES of items, but at least one row."""
    ends = accumulate(map(size_of, rows))
    return rows[: max(1, sum(1 for end in ends if end <= MOST_BYTES))]


def fitting_items(items: Sequence[Row]) -> Sequence[Row]:
    """Return the first items with together at most MOST_BYTES of JSON, but at least one item."""
    return fitting(items, lambda item: len(msgspec.json.encode(item)))


def read_until_full(
    read: Callable[[int, Row | None], Sequence[Row]], count: int, size_of: Callable[[Row], int]
) -> list[Row]:
    """Return up to `count` rows. Stop reading when their items have more than MOST_BYTES.

    `read(wanted, last)` returns the next `wanted` rows after the row `last`, or fewer at the end of the list.
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
    """Return the number of bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
