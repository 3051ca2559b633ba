"""Blocks as GitHub-flavoured Markdown. Text of the data never turns into markup."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .document import Block, Bullets, Heading, Note, Paragraph, Table

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~])")
_LEADING = re.compile(r"^(\s*)([#+-]|\d+[.)])(?=\s|$)")


def to_markdown(blocks: Iterable[Block]) -> str:
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return "#" * level + " " + _inline(text)
        case Paragraph(text):
            return "\n".join(_line(line) for line in text.splitlines())
        case Note(text):
            return f"_{_inline(text)}_"
        case Bullets(items):
            return "\n".join(f"- {_line(_flat(item))}" for item in items)
        case Table(columns, rows, numeric):
            rule = ["---:" if right else "---" for right in numeric]
            return "\n".join([_row(columns), "|" + "|".join(rule) + "|", *(_row(row) for row in rows)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_inline(cell) for cell in cells) + " |"


def _inline(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", _flat(text)).replace("&", "&amp;")


def _line(text: str) -> str:
    return _LEADING.sub(lambda match: f"{match[1]}{match[2][:-1]}\\{match[2][-1]}", _inline(text))


def _flat(text: str) -> str:
    return " ".join(text.split())
