"""What a single cell holds."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Literal

Kind = Literal["integer", "number", "boolean", "date", "datetime", "text"]

# A leading zero makes it a code (postal, article), which no one wants the mean of.
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BOOLEANS = frozenset({"true", "false", "yes", "no"})
_HUGE = 1e100


def kind_of(cell: str) -> Kind:
    if cell.lower() in _BOOLEANS:
        return "boolean"
    if _NUMBER.fullmatch(cell) and abs(float(cell)) < _HUGE:
        return "integer" if _INTEGER.fullmatch(cell) else "number"
    if not _DATE.match(cell):
        return "text"
    try:
        if len(cell) == 10:
            date.fromisoformat(cell)
            return "date"
        datetime.fromisoformat(cell)
    except ValueError:
        return "text"
    return "datetime"
