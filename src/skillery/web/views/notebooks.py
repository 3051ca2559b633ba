"""Notebooks of Jupyter (nbformat 4): cells of Markdown and code, with streams, tables and pictures as outputs."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from typing import Any

import nh3
from msgspec import Struct

from skillery.web.display import visible, without_hidden
from skillery.web.markdown import ID, Place, rendered
from skillery.web.rendering import highlighted
from skillery.web.views.kinds import kind_of, picture_size

MOST_CELLS, MOST_ON_RUN = 200, 20
_MOST_TEXT = 20_000
"""The number of characters that are shown of one source or output."""
_MOST_PICTURE, _HEAD = 8_000_000, 8192
"""The numbers of characters in base64 that a picture has at most, and that show its kind and size."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TABLES = {"table", "thead", "tbody", "tr", "th", "td", "caption"}
_ENDINGS = {"python": "py", "javascript": "js", "typescript": "ts", "bash": "sh", "r": "r", "rust": "rs", "sql": "sql"}


class Output(Struct, frozen=True):
    """An output of a cell: HTML of a table, HTML of a text, or the number of a picture."""

    table: str = ""
    text: str = ""
    picture: str = ""
    size: tuple[int, int] = (0, 0)


class Cell(Struct, frozen=True):
    """A cell. `label` is that of a code cell, for example "[3]". `html` is highlighted code or rendered Markdown."""

    html: str
    label: str = ""
    is_code: bool = False
    outputs: list[Output] = []


def is_notebook(value: Any) -> bool:
    return isinstance(value, dict) and value.get("nbformat") == 4 and isinstance(value.get("cells"), list)


def cells_of(value: Any, place: Place, most: int = MOST_CELLS) -> list[Cell]:
    """Return the first `most` cells of a notebook."""
    language = _inner(value, "metadata", "language_info", "name") or _inner(value, "metadata", "kernelspec", "language")
    ending = _ENDINGS.get(language.lower(), "") if isinstance(language, str) else ""
    return [_cell(number, cell, place, ending) for number, cell in enumerate(value["cells"][:most])]


def _cell(number: int, cell: Any, place: Place, ending: str) -> Cell:
    source, kind = _text(_inner(cell, "source")), _inner(cell, "cell_type")
    if kind == "markdown" and (made := rendered(source, place)) is not None:
        # The headings of two cells may have the same words.
        return Cell(made.html.replace(f' id="{ID}', f' id="{ID}{number}-'))
    if kind != "code":
        return Cell(str(visible(source)), is_code=True)
    count = _inner(cell, "execution_count")
    label = f"[{count}]" if isinstance(count, int) else "[ ]"
    return Cell(highlighted(source, f"cell.{ending}"), label, True, list(_outputs(number, cell)))


def _outputs(number: int, cell: Any) -> Iterator[Output]:
    for place, output in enumerate(_listed(_inner(cell, "outputs"))):
        picture = _picture(output)[:_HEAD]
        head = _decoded(picture)
        table = _table(_text(_inner(output, "data", "text/html")))
        texts = [
            _inner(output, "text"),
            _inner(output, "data", "text/plain"),
            "\n".join(map(_text, _listed(_inner(output, "traceback")))),
        ]
        text = next(filter(None, map(_text, texts)), "")
        if _is_picture(head):
            yield Output(picture=f"{number}.{place}", size=picture_size(head))
        elif table:
            yield Output(table=table)
        elif text:
            yield Output(text=str(visible(_COLOURS.sub("", text))))


def picture_of(value: Any, number: str) -> bytes:
    """Return the picture with the number of an Output, or b""."""
    cell_number, _, place = number.partition(".")
    if not all(text.isascii() and text.isdecimal() and len(text) < 6 for text in (cell_number, place)):
        return b""
    for cell in value["cells"][int(cell_number) :][:1]:
        for output in _listed(_inner(cell, "outputs"))[int(place) :][:1]:
            content = _decoded(_picture(output))
            return content if _is_picture(content) else b""
    return b""


def _picture(output: Any) -> str:
    """Return the picture of an output in base64, or ""."""
    names = (f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp"))
    return next(filter(None, (_text(_inner(output, "data", name), _MOST_PICTURE) for name in names)), "")


def _decoded(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text)
    except ValueError:
        return b""


def _is_picture(content: bytes) -> bool:
    return kind_of("", content, len(content)).group == "image"


def _table(html: str) -> str:
    """Return the HTML of a table without attributes, or "" if the HTML has no table."""
    if "<table" not in html:
        return ""
    cleaned = nh3.clean(html, tags=_TABLES, attributes={}, clean_content_tags={"script", "style"}, strip_comments=True)
    return without_hidden(cleaned).replace("<th></th>", "<td></td>")


def _inner(value: Any, *keys: str) -> Any:
    """Return the value below the keys of nested objects, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _listed(value: Any) -> list[Any]:
    return value[:MOST_CELLS] if isinstance(value, list) else []


def _text(value: Any, most: int = _MOST_TEXT) -> str:
    """Return a text, which a notebook may have as a list of its parts."""
    parts = value if isinstance(value, list) else [value]
    return "".join(part for part in parts if isinstance(part, str))[:most]
