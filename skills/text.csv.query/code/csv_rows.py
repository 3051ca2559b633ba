"""Reading CSV of unknown make, row by row."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

DELIMITERS = (",", ";", "\t", "|")
SNIFFED_LINES = 200
LONGEST_CELL = 1 << 20
MOST_EXAMPLES = 20


class CsvRows:
    """The well-formed rows of a CSV, each as long as the header; iterate once.

    `source` is the text of the CSV or anything that yields its lines. The counts (`read`, `blank`, `malformed`) grow
    while it is read. A row with more or fewer cells than the header is malformed: counted, shown in `examples`, left
    out.
    """

    def __init__(self, source: str | Iterable[str], delimiter: str = "auto", has_header: bool = True) -> None:
        csv.field_size_limit(LONGEST_CELL)
        lines = iter(io.StringIO(source, newline="") if isinstance(source, str) else source)
        head = list(_decoded(islice(lines, SNIFFED_LINES)))
        self.delimiter = sniff_delimiter(head) if delimiter == "auto" else delimiter_named(delimiter)
        self._reader = csv.reader(chain(head, _decoded(lines)), delimiter=self.delimiter)
        self.read = self.blank = self.malformed = 0
        self.examples: list[dict[str, int]] = []
        self.warnings: list[str] = []
        first = next(self._records(), None)
        if first is None:
            raise ValueError("the CSV is empty: it has no header and no row")
        self._first = None if has_header else first
        self.columns = self._named(first if has_header else [""] * len(first), has_header)

    def __iter__(self) -> Iterator[list[str]]:
        records = self._records() if self._first is None else chain([self._first], self._records())
        width = len(self.columns)
        for row in records:
            if len(row) == width:
                self.read += 1
                yield row
            else:
                self._note_malformed(row)

    def _records(self) -> Iterator[list[str]]:
        while True:
            try:
                row = next(self._reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ValueError(
                    f"line {self._reader.line_num} is no CSV ({error}): look for a quote left open, "
                    "or name the delimiter"
                ) from None
            if row:
                yield row
            else:
                self.blank += 1

    def _note_malformed(self, row: list[str]) -> None:
        self.malformed += 1
        if len(self.examples) < MOST_EXAMPLES:
            self.examples.append({"line": self._reader.line_num, "cells": len(row), "expected": len(self.columns)})

    def _named(self, header: list[str], has_header: bool) -> list[str]:
        names: dict[str, int] = {}  # and how many columns wanted each
        for position, cell in enumerate(header, start=1):
            wanted = name = cell.strip() or f"column_{position}"
            while name in names:
                names[wanted] += 1
                name = f"{wanted}_{names[wanted]}"
            if has_header and name != cell.strip():
                self.warnings.append(f"column {position} is called {cell.strip()!r:.80}, here {name!r:.80}")
            names[name] = 1
        return list(names)


def sniff_delimiter(lines: list[str]) -> str:
    """The delimiter that cuts most lines into the same number of cells, more than one; a comma if none does."""

    def quality(delimiter: str) -> tuple[float, int]:
        try:
            widths = Counter(len(row) for row in csv.reader(lines, delimiter=delimiter) if row)
        except csv.Error:
            return 0.0, 0
        width, rows = max(widths.items(), key=lambda item: item[1], default=(0, 0))
        return (rows / widths.total(), width) if width > 1 else (0.0, 0)

    best = max(DELIMITERS, key=quality)
    return best if quality(best)[1] else ","


def delimiter_named(text: str) -> str:
    delimiter = "\t" if text == "tab" else text
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise ValueError(f"the delimiter is {text!r}: give one character, 'tab' or 'auto'")
    return delimiter


def _decoded(lines: Iterable[str]) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeError as error:
        raise ValueError(
            f"the CSV is not in the encoding that was named ({error}): try encoding 'cp1252', 'latin-1' or 'utf-16'"
        ) from None
