"""What is known of one column after its cells went by."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from .cells import Kind, kind_of
from .exchange import shortened

MOST_DISTINCT = 10_000
"""Different values remembered for each column; past that, counts of distinct and top values are lower bounds."""
LONGEST_VALUE = 200
"""Longer cells are measured and not remembered."""
MOSTLY = 0.95
"""A column has a type if this share of its values fits: a few dirty cells are told, not hidden behind 'text'."""

_FAMILIES: tuple[tuple[Kind, ...], ...] = (("integer", "number"), ("date", "datetime"), ("boolean",))


class Column:
    def __init__(self, name: str, null_values: frozenset[str]) -> None:
        self.name = name
        self.nulls = 0
        self._null_values = null_values
        self._counts: dict[str, int] = {}
        self._forgotten = 0
        self._cells = _Cells()

    def add(self, cell: str) -> None:
        value = cell.strip()
        if value in self._null_values:
            self.nulls += 1
        elif value in self._counts:
            self._counts[value] += 1
        elif len(self._counts) < MOST_DISTINCT and len(value) <= LONGEST_VALUE:
            self._counts[value] = 1
        else:
            self._forgotten += 1
            self._cells.add(value, 1)

    def report(self, top: int) -> dict[str, Any]:
        """Call once, after the last cell."""
        for value, times in self._counts.items():
            self._cells.add(value, times)
        most = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:top]
        return {
            "name": self.name,
            **self._cells.report(),
            "nulls": self.nulls,
            "distinct": len(self._counts),
            "distinct_is_exact": not self._forgotten,
            "top": [{"value": shortened(value), "count": times} for value, times in most],
        }


class _Cells:
    """Running figures over the values that are not null."""

    def __init__(self) -> None:
        self.kinds: Counter[Kind] = Counter()
        self.examples: dict[Kind, list[str]] = {}
        self.numbers = 0
        self.mean = self.squares = 0.0
        self.low, self.high = math.inf, -math.inf
        self.first = self.last = ""
        self.shortest, self.longest = math.inf, 0

    def add(self, value: str, times: int) -> None:
        kind = kind_of(value)
        self.kinds[kind] += times
        shown = self.examples.setdefault(kind, [])
        if len(shown) < 5:
            shown.append(shortened(value))
        self.shortest, self.longest = min(self.shortest, len(value)), max(self.longest, len(value))
        if kind in ("integer", "number"):
            self._add_number(float(value), times)
        elif kind in ("date", "datetime"):
            self.first = min(self.first or value, value)
            self.last = max(self.last, value)

    def _add_number(self, number: float, times: int) -> None:
        # Welford's recurrence, weighted: one pass and no loss to large means.
        self.numbers += times
        distance = number - self.mean
        self.mean += distance * times / self.numbers
        self.squares += times * distance * (number - self.mean)
        self.low, self.high = min(self.low, number), max(self.high, number)

    def report(self) -> dict[str, Any]:
        values = self.kinds.total()
        if not values:
            return {"type": "empty", "values": 0}
        family = self._family(values)
        others: list[Kind] = [kind for kind in self.kinds if family and kind not in family]
        return {
            "type": self._type(family),
            "values": values,
            "mismatches": sum(self.kinds[kind] for kind in others),
            "mismatch_examples": [text for kind in others for text in self.examples[kind]][:5],
            "kinds": dict(self.kinds),
            **self._range(family),
            "min_length": self.shortest,
            "max_length": self.longest,
        }

    def _family(self, values: int) -> tuple[Kind, ...]:
        shares = {family: sum(self.kinds[kind] for kind in family) / values for family in _FAMILIES}
        return next((family for family, share in shares.items() if share >= MOSTLY), ())

    def _type(self, family: tuple[Kind, ...]) -> Kind:
        if not family:
            return "text"
        return family[-1] if self.kinds[family[-1]] else family[0]

    def _range(self, family: tuple[Kind, ...]) -> dict[str, Any]:
        if "date" in family:
            return {"min": self.first, "max": self.last}
        if "integer" not in family:
            return {}
        spread = math.sqrt(max(self.squares, 0.0) / self.numbers)
        return {
            "min": _plain(self.low),
            "max": _plain(self.high),
            "mean": round(self.mean, 6),
            "stddev": round(spread, 6),
        }


def _plain(number: float) -> int | float:
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
