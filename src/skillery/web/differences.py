"""Differences of two versions as HTML: hunks of unified diffs, with the changed words of changed lines marked."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup
from msgspec.structs import replace

from skillery.formats.bundle import SKILL_MD
from skillery.formats.texts import parts_of
from skillery.formats.version_diffs import FileChange
from skillery.web.display import visible

MOST_TOKENS = 400
"""The changed words of a line with more tokens than this are not marked."""
MOST_WORDS = 20_000
"""The maximum number of tokens on one page whose changes are marked. Further changed lines are shown without marks."""
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_HEADING = re.compile(r"#{1,6}\s+\S")


class Hunk(NamedTuple):
    """Changed lines with the lines around them."""

    heading: str
    """The nearest Markdown heading above the hunk, or ""."""
    rows: str
    """The lines as rows of a table, as HTML: both numbers, the sign, the text."""


class FileDiff(NamedTuple):
    """The changes of one file as HTML. `plus` and `minus` count the added and removed lines."""

    change: FileChange
    hunks: list[Hunk]
    plus: int
    minus: int
    before: str = ""
    """The path before a rename, or ""."""


def file_diffs(changes: list[FileChange], skill_md: str, most_words: int) -> list[FileDiff]:
    """Return file changes as HTML. The changed words of lines with `most_words` tokens are marked.

    `skill_md` is the new SKILL.md, which has the headings above its hunks. Only the marks cost more than linear time,
    so this function runs in the rendering process.
    """
    marker = Marker(most_words)
    diffs = []
    for change in changes:
        is_code = change.path != SKILL_MD
        hunks = marker.hunks(change.diff, "" if is_code else skill_md, is_code=is_code)
        plus, minus = (sum(hunk.rows.count(_START[kind]) for hunk in hunks) for kind in ("plus", "minus"))
        diffs.append(FileDiff(replace(change, diff=""), hunks, plus, minus))
    return diffs


def _parsed(diff: str) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the hunks of a unified diff: the first line number in the old and the new file, and the lines with their
    signs.
    """
    start: re.Match[str] | None = None
    lines: list[str] = []
    for line in diff.split("\n"):
        match = _HUNK.match(line)
        if match and start:
            yield int(start[1]), int(start[2]), lines
        if match:
            start, lines = match, []
        elif start and line.startswith(("-", "+", " ")):
            lines.append(line)
    if start:
        yield int(start[1]), int(start[2]), lines


class Marker:
    """Writes changed lines as table rows, and marks their changed words: at most `most_words` tokens in all."""

    def __init__(self, most_words: int = MOST_WORDS) -> None:
        self._words_left = most_words

    def hunks(self, diff: str, text: str = "", *, is_code: bool = True) -> list[Hunk]:
        """Return the hunks of a unified diff. Hidden characters are shown as boxes with their code.

        `text` is the new file, which has the headings above the hunks.
        """
        headings = [(number, line) for number, line in enumerate(text.split("\n"), 1) if _HEADING.match(line)]
        hunks = _parsed(diff)
        return [Hunk(_heading(headings, new), self._rows(old, new, lines, is_code)) for old, new, lines in hunks]

    def _rows(self, old: int, new: int, lines: list[str], is_code: bool) -> str:
        """Return the rows of a hunk as HTML. `old` and `new` are the numbers of its first line in both files."""
        rows: list[str] = []
        for is_same, group in groupby(lines, lambda line: line[0] == " "):
            texts = list(group)
            if is_same:
                shown = [visible(line[1:], is_code=is_code) for line in texts]
                rows += [_row("same", old + offset, new + offset, html) for offset, html in enumerate(shown)]
                old, new = old + len(texts), new + len(texts)
            else:
                sides = ([line[1:] for line in texts if line[0] == sign] for sign in "-+")
                removed, added = self._changed(*sides, is_code=is_code)
                rows += [_row("minus", old + offset, "", html) for offset, html in enumerate(removed)]
                rows += [_row("plus", "", new + offset, html) for offset, html in enumerate(added)]
                old, new = old + len(removed), new + len(added)
        return "".join(rows)

    def _changed(self, removed: list[str], added: list[str], *, is_code: bool) -> list[list[Markup]]:
        """Return the removed and the added lines as HTML. If there are as many, mark the changed words of each pair."""
        if len(removed) != len(added):
            return [[visible(line, is_code=is_code) for line in lines] for lines in (removed, added)]
        pairs = [self.words(*pair, is_code=is_code) for pair in zip(removed, added, strict=True)]
        return [[old for old, _ in pairs], [new for _, new in pairs]]

    def words(self, old: str, new: str, *, is_code: bool = True) -> tuple[Markup, Markup]:
        """Return both lines as HTML with their changed words marked, or without marks if the limit is used up."""
        before, after = _TOKEN.findall(old), _TOKEN.findall(new)
        count = len(before) + len(after)
        if max(len(before), len(after)) > MOST_TOKENS or count > self._words_left:
            return visible(old, is_code=is_code), visible(new, is_code=is_code)
        self._words_left -= count
        old_parts: list[str] = []
        new_parts: list[str] = []
        for kind, old_start, old_end, new_start, new_end in parts_of(before, after):
            removed, added = "".join(before[old_start:old_end]), "".join(after[new_start:new_end])
            for parts, text, tag in ((old_parts, removed, "del"), (new_parts, added, "ins")):
                if text:
                    shown = visible(text, is_code=is_code)
                    parts.append(shown if kind == "equal" else f"<{tag}>{shown}</{tag}>")
        return Markup("".join(old_parts)), Markup("".join(new_parts))  # noqa: S704 - each text is escaped by `visible`


_SIGNS = {"plus": ("+", "added"), "minus": ("−", "removed"), "same": ("", "unchanged")}
_START = {kind: f'<tr class="{kind}">' for kind in _SIGNS}


def _row(kind: str, old: int | str, new: int | str, html: Markup) -> str:
    sign, label = _SIGNS[kind]
    return (
        f'{_START[kind]}<td class="n">{old}</td><td class="n">{new}</td><td class="sign" aria-label="{label}">{sign}'
        f'</td><td class="t">{html}</td></tr>\n'
    )


def _heading(headings: list[tuple[int, str]], number: int) -> str:
    """Return the nearest Markdown heading above the line `number`, or "". `headings` are (line number, line)."""
    index = bisect_left(headings, (number,))
    return headings[index - 1][1].lstrip("#").strip()[:200] if index else ""
