"""A report as a list of blocks, made from JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from .exchange import shortened

DEEPEST = 4
LONGEST_CELL = 500
MOST_COLUMNS = 60


class Heading(NamedTuple):
    level: int
    text: str


class Paragraph(NamedTuple):
    text: str


class Note(NamedTuple):
    """A remark of the report itself, such as what it leaves out."""

    text: str


class Bullets(NamedTuple):
    items: list[str]


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    """For each column: whether its cells are numbers and stand to the right."""


Block = Heading | Paragraph | Note | Bullets | Table


class Shape(NamedTuple):
    """How much of the data to show."""

    columns: Sequence[str] = ()
    max_rows: int = 200


def opening_of(title: str, intro: str) -> list[Block]:
    parts = intro.strip().split("\n\n") if intro.strip() else []
    return [Heading(1, title), *(Paragraph(part) for part in parts)]


def blocks_of(title: str, data: Any, intro: str, shape: Shape) -> list[Block]:
    return [*opening_of(title, intro), *_blocks(data, 2, shape)]


def _blocks(data: Any, level: int, shape: Shape) -> Iterator[Block]:
    if isinstance(data, Mapping):
        yield from _object(data, level, shape)
    elif not isinstance(data, list | tuple):
        yield Paragraph(text_of(data))
    elif not data:
        yield Note("Nothing to show.")
    elif all(isinstance(item, Mapping) for item in data):
        columns = list(dict.fromkeys(chain.from_iterable(data)))
        rows = ([item.get(column, "") for column in columns] for item in data)
        yield from table_of(columns, rows, shape, len(data))
    else:
        yield Bullets([text_of(item) for item in data[: shape.max_rows]])
        yield from _left_out(len(data) - shape.max_rows, "entries")


def _object(data: Mapping[str, Any], level: int, shape: Shape) -> Iterator[Block]:
    """Single values as one table, then a section for everything that has parts."""
    parted = {key: value for key, value in data.items() if isinstance(value, Mapping | list | tuple) and value}
    single = [[key, value] for key, value in data.items() if key not in parted]
    if single or not data:
        yield from table_of(["Field", "Value"], single, Shape(max_rows=shape.max_rows), len(single))
    for key, value in parted.items():
        yield Heading(min(level, 6), key.replace("_", " ").strip().capitalize() or "…")
        if level > DEEPEST:
            yield Paragraph(text_of(value))
        else:
            yield from _blocks(value, level + 1, shape)


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]], shape: Shape, total: int | None) -> Iterator[Block]:
    """A table of the first rows and notes on what it leaves out. `total` None: `rows` is read to its end to count."""
    picked = _picked(columns, shape)
    remaining = iter(rows)
    shown = list(islice(remaining, shape.max_rows))
    cells = [[row[position] for position in picked] for row in shown]
    numeric = [_is_numeric([row[place] for row in cells]) for place in range(len(picked))]
    yield Table([columns[position] for position in picked], [[text_of(cell) for cell in row] for row in cells], numeric)
    more = sum(1 for _ in remaining) if total is None else total - len(shown)
    yield from _left_out(more, "rows")
    if not shape.columns:
        yield from _left_out(len(columns) - len(picked), "columns")


def _picked(columns: Sequence[str], shape: Shape) -> list[int]:
    if not shape.columns:
        return list(range(min(len(columns), MOST_COLUMNS)))
    unknown = [name for name in shape.columns if name not in columns]
    if unknown:
        raise ValueError(f"no column {unknown[0]!r:.80}: columns are {', '.join(columns[:20]):.600}")
    return [columns.index(name) for name in shape.columns]


def _left_out(count: int, what: str) -> Iterator[Block]:
    if count > 0:
        yield Note(f"… and {count} more {what}.")


def _is_numeric(cells: list[Any]) -> bool:
    filled = [cell for cell in cells if cell not in ("", None)]
    return bool(filled) and all(_number(cell) for cell in filled)


def _number(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip().lstrip("+-").replace(".", "", 1).isdecimal()
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def text_of(value: Any) -> str:
    """One value as a reader wants to see it, cut at 500 characters."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return shortened(value, LONGEST_CELL)
    return shortened(json.dumps(value, ensure_ascii=False), LONGEST_CELL)
