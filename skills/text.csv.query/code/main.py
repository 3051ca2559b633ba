"""text.csv.query. For other code: `query_csv`, and `Query` for results that do not fit in memory."""

from __future__ import annotations

import csv
import io
from typing import Any

from runtime import blobs, log, summary

from .exchange import fitting, open_text, shortened
from .query import Query, query_csv

__all__ = ["Query", "main", "query_csv"]

MOST_PREVIEWED = 20


def main(args: dict[str, Any]) -> dict[str, Any]:
    options = ("where", "select", "group_by", "aggregate", "sort", "limit", "delimiter")
    with open_text(args["csv_blob"], args.get("encoding", "utf-8")) as lines:
        query = Query(lines, **{name: args[name] for name in options if name in args})
        content, head, count = _written(query)
    source = query.source
    log.info(f"{source.read} rows read, {query.matched} matched, {source.malformed} malformed left out")
    text = f"{count} rows of {source.read} ({query.matched} matched)."
    summary(text)
    preview = fitting([{shortened(name): _shown(cell) for name, cell in row.items()} for row in head])
    return {
        "summary": text,
        "rows": count,
        "rows_read": source.read,
        "rows_matched": query.matched,
        "malformed_rows": source.malformed,
        "columns": fitting([shortened(name) for name in query.columns], 600),
        "preview": preview,
        "preview_left_out": count - len(preview),
        "result_blob": blobs.write_bytes(content, kind="text/csv"),
    }


def _written(query: Query) -> tuple[bytes, list[dict[str, Any]], int]:
    """The result as CSV, its first rows as objects, and the number of rows."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(query.columns)
    head: list[dict[str, Any]] = []
    count = 0
    for count, row in enumerate(query.rows(), start=1):  # noqa: B007 - the last one is the number of rows
        writer.writerow(row)
        if len(head) < MOST_PREVIEWED:
            head.append(dict(zip(query.columns, row, strict=True)))
    file.flush()
    return raw.getvalue(), head, count


def _shown(cell: Any) -> Any:
    return shortened(cell) if isinstance(cell, str) else cell
