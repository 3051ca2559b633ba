"""Tables: texts with delimiters and JSON as rows with typed columns, which a reader can sort and filter."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from skillery.web.display import counted
from skillery.web.views.kinds import Format

MOST_ROWS, MOST_COLUMNS = 50_000, 100
LONG_CELL = 300
PAGE_ROWS = 100
_TYPED_ROWS = 2_000
"""The number of rows that decide the type of a column."""
_MATCHING = 0.98
_DELIMITERS = ",;\t|"
_SAMPLE_LINES = 20
_BARS, _BAR_HEIGHT = 8, 16
_MOST_DECIMALS = 6
_NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_TIME = re.compile(
    r"\d{4}-(?:W\d\d|\d\d(?:-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?)?)"
    r"|\d\d:\d\d(?::\d\d)?",
    re.ASCII,
)
_YES_OR_NO = {"true", "false", "yes", "no"}
_PLAIN_NUMBERS = {"id", "year", "zip", "code", "nr", "no", "number", "phone"}
"""Columns whose name ends with such a word have numbers without separators."""
_OPERATORS = {">=": ge, "<=": le, "!=": ne, ">": gt, "<": lt, "=": eq}
Type = Literal["number", "time", "yes or no", "text"]


class Table(NamedTuple):
    """A table of texts. All rows have as many cells as the head. An empty text is an empty cell."""

    head: list[str]
    rows: list[list[str]]


class Column(Struct, frozen=True):
    """A column as a page shows it. `bars` are the heights of the bars of a histogram, for numbers."""

    name: str
    type: Type
    words: str
    bars: list[int]


class TableView(Struct, frozen=True):
    """The shown rows of a table. `first` is the number of the first shown row, from 1."""

    columns: list[Column]
    rows: list[list[str]]
    count: int
    matched: int
    first: int
    sort: str
    """The name of the column that sorts the rows, with "-" before it for a falling order, or ""."""


class Wanted(Struct, frozen=True):
    """The rows that a page shows, the separators in the numbers of its reader, and whether the browser may frame."""

    most: int = PAGE_ROWS
    sort: str = ""
    where: str = ""
    chart: str = ""
    """The kind of the chart, "none", or "" for the kind that fits the table."""
    x: str = ""
    y: str = ""
    agg: str = ""
    part: str = ""
    """The part that has this chart, if the page shows several parts."""
    page: int = 1
    group: str = ","
    decimal: str = "."
    picture: str = ""
    """The number of a picture of a notebook, which alone is sent."""
    has_frames: bool = False
    """Whether the browser names the destination of each request. Without that name, frames show nothing."""


# -- Reading -----------------------------------------------------------------------------------------------------------


def table_of_text(text: str, text_format: Format) -> Table | None:
    """Return a text with delimiters or with one JSON value in each line as a table, or None if it is no table."""
    if text_format == "jsonl":
        return _table_of_lines(text)
    return _table_of_cells(text, "\t" if text_format == "tsv" else "") if text_format in {"csv", "tsv"} else None


def _table_of_cells(text: str, delimiter: str) -> Table | None:
    """Return a text with delimiters as a table, or None if it has fewer than two columns or breaks the rules of CSV."""
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter or _delimiter(text))
        rows = [row for row, _ in zip(filter(None, reader), range(MOST_ROWS + 1), strict=False)]
    except csv.Error:
        return None
    width = min(max((len(row) for row in rows[:_SAMPLE_LINES]), default=0), MOST_COLUMNS)
    if width < 2:
        return None
    first = [cell.strip() for cell in rows[0]]
    is_head = len(first) == width and len(set(first)) == width and not any(map(_NUMBER.fullmatch, first))
    head = first if is_head else [f"column {number}" for number in range(1, width + 1)]
    return Table(head, [_fitting(row, width) for row in rows[is_head : MOST_ROWS + is_head]])


def _fitting(row: list[str], width: int) -> list[str]:
    return [*row[:width], *[""] * (width - len(row))]


def _delimiter(text: str) -> str:
    """Return the delimiter that occurs equally often, outside quotes, in most of the first lines."""
    lines = ["".join(line.split('"')[::2]) for line in text.split("\n", _SAMPLE_LINES)[:_SAMPLE_LINES] if line.strip()]
    counts = {delimiter: [line.count(delimiter) for line in lines] or [0] for delimiter in _DELIMITERS}

    def rank(delimiter: str) -> tuple[int, int]:
        first = counts[delimiter][0]
        return counts[delimiter].count(first) if first else 0, first

    return max(_DELIMITERS, key=rank)


def _table_of_lines(text: str) -> Table | None:
    lines = text.split("\n", MOST_ROWS)[:MOST_ROWS]
    try:
        return table_of_json([json.loads(line) for line in lines if line.strip()])
    except (ValueError, RecursionError):
        return None


def table_of_json(value: Any) -> Table | None:
    """Return an array of objects, an array of arrays or an object of equally long arrays as a table, or None.

    A table of objects has 60 % of its cells, and 70 % of the cells of a table are scalars.
    """
    if isinstance(value, dict):
        lists = list(value.values())
        if len(lists) < 2 or not all(isinstance(cells, list) and len(cells) > 1 for cells in lists):
            return None
        if len({len(cells) for cells in lists}) > 1:
            return None
        rows = [list(row) for row in zip(*lists[:MOST_COLUMNS], strict=True)]
        return _checked([str(name) for name in value][:MOST_COLUMNS], rows[:MOST_ROWS])
    if not isinstance(value, list) or not value:
        return None
    elements = value[:MOST_ROWS]
    if all(isinstance(element, dict) for element in elements):
        names = list(dict.fromkeys(name for element in elements for name in element))[:MOST_COLUMNS]
        filled = sum(name in element for element in elements for name in names)
        if not names or filled < 0.6 * len(names) * len(elements):
            return None
        return _checked(names, [[element.get(name) for name in names] for element in elements])
    if len(value) > 1 and all(isinstance(element, list) and len(element) > 1 for element in elements):
        width = min(max(map(len, elements)), MOST_COLUMNS)
        if sum(map(len, elements)) < 0.6 * width * len(elements):
            return None
        first = elements[0]
        is_head = len(first) == width and all(isinstance(name, str) for name in first) and len(set(first)) == width
        head = first if is_head else [f"column {number}" for number in range(1, width + 1)]
        return _checked(head, [[*row[:width], *[None] * (width - len(row))] for row in elements[is_head:]])
    return None


def _checked(head: list[str], rows: list[list[Any]]) -> Table | None:
    """Return JSON cells as a table of texts, or None if fewer than 70 % of them are scalars."""
    count = sum(not isinstance(cell, dict | list) for row in rows for cell in row)
    if count < 0.7 * len(head) * len(rows):
        return None
    return Table(head, [[_cell(cell) for cell in row] for row in rows])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if type(value) is int or type(value) is float:
        return repr(value)  # json.dumps makes an encoder for each cell
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_csv(table: Table) -> str:
    """Return a table as CSV. A quote before a cell that is a formula in spreadsheets keeps it a text there."""
    target = io.StringIO()
    writer = csv.writer(target)
    writer.writerow(map(_harmless, table.head))
    writer.writerows([_harmless(cell) for cell in row] for row in table.rows)
    return target.getvalue()


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(cell) else cell


# -- Columns and rows --------------------------------------------------------------------------------------------------


def types_of(table: Table) -> list[Type]:
    return [_type([row[index] for row in table.rows[:_TYPED_ROWS]]) for index in range(len(table.head))]


def table_view(table: Table, types: Sequence[Type], rows: list[list[str]], wanted: Wanted) -> TableView:
    """Return a page of `rows`, sorted as wanted, with numbers in the form of the reader's language."""
    name = wanted.sort.removeprefix("-")
    is_sorted = name in table.head
    if is_sorted:
        rows = _sorted(rows, table.head.index(name), types[table.head.index(name)], wanted.sort.startswith("-"))
    first = min((max(wanted.page, 1) - 1) * wanted.most, max(len(rows) - 1, 0) // wanted.most * wanted.most)
    page = rows[first : first + wanted.most]
    shown = [[cell if len(cell) <= LONG_CELL else f"{cell[:LONG_CELL]}…" for cell in row] for row in page]
    columns = []
    for index, (title, kind) in enumerate(zip(table.head, types, strict=True)):
        values = [row[index] for row in table.rows]
        columns.append(_column(title, kind, values))
        if kind == "number":
            for row, text in zip(shown, _aligned(title, [row[index] for row in shown], values, wanted), strict=True):
                row[index] = text
    return TableView(columns, shown, len(table.rows), len(rows), first + 1, wanted.sort if is_sorted else "")


def _type(cells: Sequence[str]) -> Type:
    """Return the type that 98 % of the filled cells have."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    least = max(1, math.ceil(_MATCHING * len(filled)))
    if sum(number_in(cell) is not None for cell in filled) >= least:
        return "number"
    if sum(_TIME.fullmatch(cell) is not None for cell in filled) >= least:
        return "time"
    return "yes or no" if sum(cell.lower() in _YES_OR_NO for cell in filled) >= least else "text"


def number_in(cell: str) -> float | None:
    """Return the number in a cell, or None. Infinite numbers are texts."""
    return None if len(cell) > 80 else _number(cell)


@lru_cache(16_384)  # the types, bars and decimals of columns, and the chart, read the same cells
def _number(cell: str) -> float | None:
    value = float(cell) if _NUMBER.fullmatch(cell.strip()) else math.inf
    return value if math.isfinite(value) else None


def _column(name: str, kind: Type, cells: Sequence[str]) -> Column:
    """Return a column with its type, its empty cells, and its bars or the count of its values in words."""
    words: str = kind
    if kind == "text" and cells:
        words += f", {counted(len({cell for cell in cells if cell}), 'value')}"
    empty = sum(not cell.strip() for cell in cells)
    words += f", {empty:,} empty" if empty else ""
    numbers = [value for value in map(number_in, cells) if value is not None] if kind == "number" else []
    return Column(name[:80] or "no name", kind, words, _bars(numbers))


def _bars(numbers: Sequence[float]) -> list[int]:
    """Return the heights of a histogram, or [] if the numbers do not differ."""
    least, most = min(numbers, default=0.0), max(numbers, default=0.0)
    width = most / _BARS - least / _BARS
    if not width or not math.isfinite(width):
        return []
    counts = [0] * _BARS
    for value in numbers:
        counts[min(_BARS - 1, int((value - least) / width))] += 1
    return [math.ceil(_BAR_HEIGHT * count / max(counts)) for count in counts]


def _aligned(name: str, shown: Sequence[str], cells: Sequence[str], wanted: Wanted) -> list[str]:
    """Return the numbers of a column with equally many decimals, and with separators if some are large."""
    plain = [cell.strip() for cell in cells]
    if any("e" in cell.lower() for cell in plain):
        return list(shown)
    plain = [cell for cell in plain if number_in(cell) is not None]
    numbers = list(map(float, plain))
    decimals = max((len(_fraction(cell)) for cell in plain), default=0)
    largest = max(map(abs, numbers), default=0.0)
    if largest < 0.001 or largest >= 1e15:
        return list(shown)
    is_grouped = _is_grouped(name, largest)
    separators = {ord(","): wanted.group if is_grouped else "", ord("."): wanted.decimal}
    return [cell if number_in(cell) is None else f"{float(cell):,.{decimals}f}".translate(separators) for cell in shown]


def _is_grouped(name: str, largest: float) -> bool:
    """Return whether numbers with this name have separators: large numbers that are no ids, years or codes."""
    return largest >= 10_000 and not is_plain_number(name)


def is_plain_number(name: str) -> bool:
    """Return whether the numbers of a column are names, such as ids and years."""
    return re.split(r"\W|_", name.lower())[-1] in _PLAIN_NUMBERS


def grouped(name: str, value: Any, wanted: Wanted) -> Any:
    """Return a large whole number as a text with separators, and any other value as it is."""
    if not isinstance(value, int) or not _is_grouped(name, abs(value)) or abs(value) >= 1e15:
        return value
    return f"{value:,}".replace(",", wanted.group)


def _fraction(cell: str) -> str:
    """Return the decimals of a number. The end of a longer fraction is mostly the error of its binary form."""
    fraction = cell.partition(".")[2]
    return (
        f"{float(f'0.{fraction}'):.{_MOST_DECIMALS}f}"[2:].rstrip("0") if len(fraction) > _MOST_DECIMALS else fraction
    )


def matching_rows(table: Table, types: Sequence[Type], where: str) -> list[list[str]]:
    """Return the rows that contain all words of `where`, or that match it as COLUMN OPERATOR NUMBER."""
    text = where.strip()
    for operator, compare in _OPERATORS.items():
        name, sign, limit_text = text.partition(operator)
        limit = number_in(limit_text.strip()) if sign else None
        index = next((i for i, title in enumerate(table.head) if title.lower() == name.strip().lower()), None)
        if limit is not None and index is not None and types[index] == "number":
            values = ((row, number_in(row[index])) for row in table.rows)
            return [row for row, value in values if value is not None and compare(value, limit)]
    words = text.casefold().split()[:20]
    if not words:
        return table.rows
    texts = ("\n".join(row).casefold() for row in table.rows)
    return [row for row, text in zip(table.rows, texts, strict=True) if all(word in text for word in words)]


def _sorted(rows: list[list[str]], index: int, kind: Type, is_falling: bool) -> list[list[str]]:
    """Return the rows sorted by a column. Empty cells, and texts between numbers, come last."""
    if kind == "number":
        keys: list[Any] = [number_in(row[index]) for row in rows]
    else:
        keys = [row[index].casefold() or None for row in rows]
    with_key = [(key, row) for key, row in zip(keys, rows, strict=True) if key is not None]
    with_key.sort(key=lambda pair: pair[0], reverse=is_falling)
    return [row for _, row in with_key] + [row for key, row in zip(keys, rows, strict=True) if key is None]
