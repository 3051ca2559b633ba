"""text.csv.profile. For other code: `profile_csv`, `sniff_delimiter`, `SAMPLE`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from runtime import blobs, log, summary

from .column import Column
from .csv_rows import CsvRows, sniff_delimiter
from .exchange import fitting, open_text, shortened

__all__ = ["DEFAULT_NULLS", "SAMPLE", "main", "profile_csv", "sniff_delimiter"]

SAMPLE = Path(__file__).parents[1] / "resources" / "orders.csv"
DEFAULT_NULLS = ("", "NA", "N/A", "n/a", "null", "NULL", "None", "-")


def profile_csv(
    source: str | Iterable[str],
    *,
    delimiter: str = "auto",
    has_header: bool = True,
    null_values: Iterable[str] = DEFAULT_NULLS,
    top: int = 5,
    max_rows: int = 0,
) -> dict[str, Any]:
    """The whole report on a CSV: its text, or an open file or other iterable of its lines.

    Raises ValueError where it is empty, no CSV, or not in the encoding it was opened with.
    """
    if not 0 <= top <= 100:
        raise ValueError(f"top is {top}: give 0 to 100")
    if max_rows < 0:
        raise ValueError(f"max_rows is {max_rows}: give 0 for all rows, or a positive number")
    rows = CsvRows(source, delimiter, has_header)
    nulls = frozenset(str(value).strip() for value in null_values)
    columns = [Column(name, nulls) for name in rows.columns]
    adders = [column.add for column in columns]
    for row in islice(rows, max_rows or None):
        for add, cell in zip(adders, row, strict=True):
            add(cell)
    return {
        "rows": rows.read,
        "delimiter": rows.delimiter,
        "has_header": has_header,
        "blank_lines": rows.blank,
        "malformed_rows": rows.malformed,
        "malformed_examples": rows.examples,
        "warnings": rows.warnings,
        "columns": [column.report(top) for column in columns],
    }


def main(args: dict[str, Any]) -> dict[str, Any]:
    options = ("delimiter", "has_header", "null_values", "top", "max_rows")
    with _open(args) as lines:
        report = profile_csv(lines, **{name: args[name] for name in options if name in args})
    log.info(f"{report['rows']} rows, {len(report['columns'])} columns, delimiter {report['delimiter']!r}")
    for warning in report["warnings"][:10]:
        log.error(warning)
    report_blob = blobs.write_json(report)
    answer = _overview(report)
    summary(answer["summary"])
    return {**answer, "report_blob": report_blob}


def _open(args: dict[str, Any]) -> Any:
    if args.get("sample"):
        return SAMPLE.open(encoding="utf-8", newline="")
    if not args.get("csv_blob"):
        raise ValueError("no CSV: give csv_blob (create_blob makes one), or sample=true for the bundled orders")
    return open_text(args["csv_blob"], args.get("encoding", "utf-8"))


def _overview(report: dict[str, Any]) -> dict[str, Any]:
    columns = [
        {
            "name": shortened(column["name"]),
            **{key: column[key] for key in ("type", "nulls", "distinct", "mismatches", "min", "max") if key in column},
        }
        for column in report["columns"]
    ]
    dirty = sum(column.get("mismatches", 0) for column in report["columns"])
    shown = fitting(columns)
    return {
        "summary": (
            f"{report['rows']} rows, {len(columns)} columns; {report['malformed_rows']} malformed rows, "
            f"{dirty} cells that do not fit their column."
        ),
        "rows": report["rows"],
        "delimiter": report["delimiter"],
        "malformed_rows": report["malformed_rows"],
        "misfit_cells": dirty,
        "columns": shown,
        "columns_left_out": len(columns) - len(shown),
    }
