"""Columns by name, cells as numbers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence


def position_of(name: object, columns: Sequence[str]) -> int:
    """Raises ValueError that names the nearest columns."""
    if isinstance(name, str) and name in columns:
        return columns.index(name)
    near = difflib.get_close_matches(str(name), columns, n=3, cutoff=0.5)
    known = ", ".join(columns[:20]) + (", …" if len(columns) > 20 else "")
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"no column {name!r:.80}: {meant}columns are {known:.600}")


def number(cell: str) -> float | None:
    """The cell as a finite number, None if it is none."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def plain(value: float) -> int | float:
    """Sums of cents come out as people write them: 0.3, not 0.30000000000000004."""
    rounded = round(value, 6)
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
