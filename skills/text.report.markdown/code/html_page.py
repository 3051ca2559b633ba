"""Blocks as one HTML page that needs nothing else; its frame is resources/page.html."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from string import Template

from .document import Block, Bullets, Heading, Note, Paragraph, Table

FRAME = Path(__file__).parents[1] / "resources" / "page.html"


def to_html(title: str, blocks: Iterable[Block]) -> str:
    body = "\n".join(_block(block) for block in blocks)
    return Template(FRAME.read_text(encoding="utf-8")).substitute(title=html.escape(title), body=body)


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return "<p>" + html.escape(text).replace("\n", "<br>\n") + "</p>"
        case Note(text):
            return f'<p class="note">{html.escape(text)}</p>'
        case Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"
        case Table(columns, rows, numeric):
            head = _row("th", columns, numeric)
            body = "\n".join(_row("td", row, numeric) for row in rows)
            return f"<table>\n<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _row(tag: str, cells: Iterable[str], numeric: Iterable[bool]) -> str:
    shown = (_cell(tag, cell, right) for cell, right in zip(cells, numeric, strict=True))
    return "<tr>" + "".join(shown) + "</tr>"


def _cell(tag: str, text: str, right: bool) -> str:
    kind = ' class="number"' if right else ""
    return f"<{tag}{kind}>{html.escape(text)}</{tag}>"
