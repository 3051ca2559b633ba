"""sum, mean, min, max, distinct and count over the rows of a group."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .columns import number, plain, position_of

MOST_DISTINCT = 1_000_000
_CALL = re.compile(r"\s*(sum|mean|min|max|distinct|count)\s*\(\s*`?([^`]*?)`?\s*\)\s*")


class Aggregate:
    """A column that is made of many cells. Empty cells never count; `ignored` are those that sum and mean skipped."""

    def __init__(self, name: str, call: object, columns: Sequence[str]) -> None:
        match = _CALL.fullmatch(call) if isinstance(call, str) else None
        if match is None:
            raise ValueError(
                f"aggregate {name!r:.80} is {call!r:.80}: give e.g. 'sum(total)', with one of sum, mean, min, max, "
                "distinct, count"
            )
        self.name = name
        self.function, column = match.groups()
        if not column and self.function != "count":
            raise ValueError(f"aggregate {name!r:.80}: {self.function}() needs a column, e.g. {self.function}(total)")
        self.position = position_of(column, columns) if column and column != "*" else -1

    def start(self) -> Figures:
        return Figures()

    def add(self, figures: Figures, row: Sequence[str]) -> None:
        if self.position < 0:
            figures.count += 1
            return
        cell = row[self.position].strip()
        if not cell:
            return
        figures.count += 1
        if self.function == "distinct":
            figures.add_distinct(cell)
        elif self.function != "count":
            figures.add_value(cell)

    def result(self, figures: Figures) -> int | float | str:
        match self.function:
            case "count":
                return figures.count
            case "distinct":
                return len(figures.distinct)
            case "sum":
                return plain(figures.total)
            case "mean":
                return plain(figures.total / figures.numbers) if figures.numbers else ""
        return figures.extreme(lowest=self.function == "min")


class Figures:
    __slots__ = ("count", "distinct", "high", "high_text", "low", "low_text", "numbers", "texts", "total")

    def __init__(self) -> None:
        self.count = self.numbers = self.texts = 0
        self.total = 0.0
        self.low, self.high = float("inf"), float("-inf")
        self.low_text: str | None = None
        self.high_text = ""
        self.distinct: set[str] = set()

    def add_distinct(self, cell: str) -> None:
        self.distinct.add(cell)
        if len(self.distinct) > MOST_DISTINCT:
            raise ValueError(f"distinct: more than {MOST_DISTINCT} different values in one group; narrow it with where")

    def add_value(self, cell: str) -> None:
        self.low_text = cell if self.low_text is None else min(self.low_text, cell)
        self.high_text = max(self.high_text, cell)
        value = number(cell)
        if value is None:
            self.texts += 1
            return
        self.numbers += 1
        self.total += value
        self.low, self.high = min(self.low, value), max(self.high, value)

    def extreme(self, *, lowest: bool) -> int | float | str:
        """As numbers where all cells are, else as text."""
        if self.low_text is None:
            return ""
        if self.texts:
            return self.low_text if lowest else self.high_text
        return plain(self.low if lowest else self.high)
