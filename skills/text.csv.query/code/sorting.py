"""Sorting by several columns, and the first rows of many without keeping all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .columns import number, position_of

MOST_ROWS = 250_000
Cells = Sequence[Any]


class Order:
    """`sort` names columns, `-name` descending. Numbers before text, empty cells last, ties in the order they came."""

    def __init__(self, sort: Iterable[object], columns: Sequence[str]) -> None:
        self._keys: list[tuple[int, bool]] = []
        for name in sort:
            descending = isinstance(name, str) and name.startswith("-") and name not in columns
            self._keys.append((position_of(str(name)[1:] if descending else name, columns), descending))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def first(self, rows: Iterable[Cells], limit: int) -> list[Cells]:
        """The first `limit` rows in order, all for 0. Keeps at most a few times `limit` rows at once."""
        room = max(2 * limit, 10_000) if 0 < limit <= MOST_ROWS // 2 else MOST_ROWS
        kept: list[Cells] = []
        for row in rows:
            kept.append(row)
            if len(kept) > room:
                kept = self._cut(kept, limit, room)
        self._sort(kept)
        return kept[: limit or None]

    def _cut(self, rows: list[Cells], limit: int, room: int) -> list[Cells]:
        if room == MOST_ROWS:
            raise ValueError(f"more than {MOST_ROWS} rows to sort: narrow them with where, or give a smaller limit")
        self._sort(rows)
        return rows[:limit]

    def _sort(self, rows: list[Cells]) -> None:
        for position, descending in reversed(self._keys):
            rows.sort(key=_key(position, descending), reverse=descending)


def _key(position: int, descending: bool) -> Callable[[Cells], tuple[int, Any]]:
    empty, numeric, text = (0, 2, 1) if descending else (2, 0, 1)

    def key(row: Cells) -> tuple[int, Any]:
        cell = str(row[position]).strip()
        if not cell:
            return empty, ""
        value = number(cell)
        return (text, cell) if value is None else (numeric, value)

    return key
