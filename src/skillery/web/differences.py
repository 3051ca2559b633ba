"""Differences of two versions as HTML: the hunks of unified diffs, with the changed words of changed lines."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from skillery.web.display import visible

MOST_TOKENS = 400
"""Tokens of a line whose changed words are marked."""
MOST_PAIRS = 200
"""Changed lines of one file whose changed words are marked."""
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_HEADING = re.compile(r"#{1,6}\s+\S")


class Line(NamedTuple):
    kind: Literal["same", "plus", "minus"]
    old: int | None
    """The number of the line in the old file."""
    new: int | None
    html: Markup


class Hunk(NamedTuple):
    """Changed lines with the lines around them."""

    heading: str
    """The nearest Markdown heading above the hunk, or ""."""
    lines: list[Line]


class FileDiff(NamedTuple):
    path: str
    change: str
    note: str
    old_size: int | None
    new_size: int | None
    hunks: list[Hunk]
    plus: int
    minus: int


def file_diff(change: dict[str, Any], text: str = "", *, is_code: bool = True) -> FileDiff:
    """Return a FileChange of diff_versions as HTML. `text` is the new file, for its headings."""
    hunks = hunks_of(change["diff"], text, is_code=is_code)
    lines = [line for hunk in hunks for line in hunk.lines]
    sizes = [(change[side] or {}).get("size_bytes") for side in ("old", "new")]
    plus, minus = (sum(line.kind == kind for line in lines) for kind in ("plus", "minus"))
    return FileDiff(change["path"], change["change"], change["note"], sizes[0], sizes[1], hunks, plus, minus)


def hunks_of(diff: str, text: str = "", *, is_code: bool = True) -> list[Hunk]:
    """Return the hunks of a unified diff. Hidden characters are boxes with their code."""
    hunks: list[Hunk] = []
    headings = text.split("\n")
    pairs = MOST_PAIRS
    old = new = 0
    removed: list[tuple[int, str]] = []
    added: list[tuple[int, str]] = []

    def flush() -> None:
        nonlocal pairs
        lines = hunks[-1].lines if hunks else []
        count = min(len(removed), len(added)) if len(removed) == len(added) else 0
        shown = [words_of(removed[n][1], added[n][1], is_code=is_code) for n in range(min(count, pairs))]
        pairs -= len(shown)
        for place, (number, line) in enumerate(removed):
            html = shown[place][0] if place < len(shown) else visible(line, is_code=is_code)
            lines.append(Line("minus", number, None, html))
        for place, (number, line) in enumerate(added):
            html = shown[place][1] if place < len(shown) else visible(line, is_code=is_code)
            lines.append(Line("plus", None, number, html))
        removed.clear()
        added.clear()

    for line in diff.split("\n"):
        match = _HUNK.match(line)
        if match:
            flush()
            old, new = int(match[1]), int(match[2])
            hunks.append(Hunk(_heading(headings, new), []))
        elif not hunks or line.startswith("\\"):
            continue
        elif line.startswith("-"):
            removed.append((old, line[1:]))
            old += 1
        elif line.startswith("+"):
            added.append((new, line[1:]))
            new += 1
        elif line.startswith(" "):
            flush()
            hunks[-1].lines.append(Line("same", old, new, visible(line[1:], is_code=is_code)))
            old, new = old + 1, new + 1
    flush()
    return hunks


def _heading(lines: list[str], number: int) -> str:
    for line in reversed(lines[: max(0, number - 1)]):
        if _HEADING.match(line):
            return line.lstrip("#").strip()[:200]
    return ""


def words_of(old: str, new: str, *, is_code: bool = True) -> tuple[Markup, Markup]:
    """Return both lines with their changed words marked."""
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    if len(before) > MOST_TOKENS or len(after) > MOST_TOKENS:
        return visible(old, is_code=is_code), visible(new, is_code=is_code)
    left: list[Markup] = []
    right: list[Markup] = []
    for kind, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for parts, text, tag in ((left, "".join(before[a:b]), "del"), (right, "".join(after[c:d]), "ins")):
            shown = visible(text, is_code=is_code)
            if text:
                parts.append(shown if kind == "equal" else Markup("<{0}>{1}</{0}>").format(Markup(tag), shown))  # noqa: S704
    return Markup("").join(left), Markup("").join(right)
