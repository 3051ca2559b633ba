"""text.report.markdown. For other code: `render_report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TextIO

from runtime import blobs, log, summary

from .csv_rows import CsvRows
from .document import Block, Heading, Note, Shape, Table, blocks_of, opening_of, table_of
from .exchange import fitting, open_text, shortened
from .html_page import to_html
from .markdown_text import to_markdown

__all__ = ["main", "render_report"]

LONGEST_JSON = 64 * 1024 * 1024
FORMATS = ("markdown", "html", "both")


def render_report(
    title: str,
    data: Any,
    *,
    intro: str = "",
    columns: Sequence[str] = (),
    max_rows: int = 200,
    format: str = "markdown",  # noqa: A002 - the same word as in the arguments of the skill
) -> str:
    """The report on JSON data as one text: Markdown, or a whole HTML page for format "html".

    A list of objects becomes a table, another list bullets, an object a table of its single values and a section for
    each of the others.
    """
    if format not in FORMATS[:2]:
        raise ValueError(f"format is {format!r:.80}: give 'markdown' or 'html'")
    blocks = blocks_of(title, data, intro, _shape(columns, max_rows))
    return to_html(title, blocks) if format == "html" else to_markdown(blocks)


def main(args: dict[str, Any]) -> dict[str, Any]:
    title = args["title"].strip()
    if not title:
        raise ValueError("the title is blank: say in a few words what the report is about")
    blocks = _blocks(args, title)
    wanted = args.get("format", "markdown")
    written: dict[str, Any] = {}
    if wanted != "html":
        written["markdown_blob"] = blobs.write_text(to_markdown(blocks), kind="text/markdown")
    if wanted != "markdown":
        written["html_blob"] = blobs.write_text(to_html(title, blocks), kind="text/html")
    return {**_overview(title, blocks), **written}


def _blocks(args: dict[str, Any], title: str) -> list[Block]:
    shape = _shape(args.get("columns", ()), args.get("max_rows", 200))
    intro = args.get("intro", "")
    if ("data" in args) == ("data_blob" in args):
        raise ValueError("give the content once: data (JSON in the arguments) or data_blob (a CSV or JSON blob)")
    if "data" in args:
        return blocks_of(title, args["data"], intro, shape)
    with open_text(args["data_blob"]) as file:
        if _is_json(file, args.get("blob_kind", "auto")):
            return blocks_of(title, _json(file), intro, shape)
        rows = CsvRows(file)
        table = list(table_of(rows.columns, rows, shape, None))
    if rows.malformed:
        log.error(f"{rows.malformed} malformed rows left out")
        table.append(Note(f"{rows.malformed} rows with the wrong number of cells are left out."))
    return [*opening_of(title, intro), *table]


def _is_json(file: TextIO, kind: str) -> bool:
    if kind != "auto":
        return kind == "json"
    start = file.read(4096).lstrip()
    file.seek(0)
    return start.startswith(("{", "["))


def _json(file: TextIO) -> Any:
    text = file.read(LONGEST_JSON + 1)
    if len(text) > LONGEST_JSON:
        raise ValueError(f"the JSON has more than {LONGEST_JSON} characters: reduce it first, or give a CSV")
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"data_blob is no JSON ({error}): mend it, or give blob_kind='csv'") from None
    except RecursionError:
        raise ValueError("data_blob is JSON nested too deeply to report on: flatten it first") from None


def _shape(columns: Sequence[str], max_rows: int) -> Shape:
    if not 1 <= max_rows <= 10_000:
        raise ValueError(f"max_rows is {max_rows}: give 1 to 10000")
    return Shape(tuple(columns), max_rows)


def _overview(title: str, blocks: list[Block]) -> dict[str, Any]:
    tables = [block for block in blocks if isinstance(block, Table)]
    rows = sum(len(table.rows) for table in tables)
    text = f"Report '{shortened(title)}': {len(tables)} tables with {rows} rows."
    log.info(text)
    summary(text)
    sections = [block.text for block in blocks[1:] if isinstance(block, Heading)]
    return {
        "summary": text,
        "tables": len(tables),
        "rows_shown": rows,
        "sections": fitting([shortened(name) for name in sections], 1000),
        "notes": fitting([shortened(block.text) for block in blocks if isinstance(block, Note)], 1000),
    }
