"""Differences of two versions or runs as HTML: hunks of unified diffs, with the changed words of lines marked."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace

from skillery.formats import texts
from skillery.formats.bundle import SKILL_MD
from skillery.formats.version_diffs import Compared, DiffSide, FileChange, FileFacts, ValueChange, compare_versions
from skillery.runs.comparison import TableDiff, compare_rows
from skillery.web.display import visible
from skillery.web.views.kinds import decoded, format_of
from skillery.web.views.parts import Part, decoded_json, parts_of, split_output
from skillery.web.views.shown import ToShow
from skillery.web.views.tables import Table, as_csv, table_of_text

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
    """Yield the hunks of a unified diff: their first line numbers in both files, and the lines with their signs."""
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
            group_lines = list(group)
            if is_same:
                shown = [visible(line[1:], is_code=is_code) for line in group_lines]
                rows += [_row("same", old + offset, new + offset, html) for offset, html in enumerate(shown)]
                old, new = old + len(group_lines), new + len(group_lines)
            else:
                sides = ([line[1:] for line in group_lines if line[0] == sign] for sign in "-+")
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
        for kind, old_start, old_end, new_start, new_end in texts.parts_of(before, after):
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


# -- The results of two runs: their inputs, values and parts -----------------------------------------------------------


_BLOB = re.compile(r"blob:\w+", re.ASCII)
_UNREAD = "one of many files that differ, so its lines are not compared"


class ResultsDiff(Struct, frozen=True):
    """The differences of two results. `tables` are parts whose rows are compared, and `files` all other parts."""

    inputs: list[ValueChange]
    others: list[ValueChange]
    """The values of the output that are not parts."""
    tables: dict[str, TableDiff]
    files: list[FileDiff]
    left_out: int


def compare_results(old: ToShow, new: ToShow) -> ResultsDiff:
    """Return the differences of the results of two runs. Parts with the same name are compared.

    Inputs are compared only if the args of both runs are kept. Runs in the rendering process.
    """
    before, after = _compared_parts(old), _compared_parts(new)
    tables = {name: rows for name in after if (rows := _table_diff(before.get(name), after[name]))}
    diff = compare_versions(_without(tables, before, old), _without(tables, after, new))
    unread = {part.name for part in (*before.values(), *after.values()) if part.file and part.file.content is None}
    changes = [*([diff.instructions] if diff.instructions else []), *diff.files]
    noted = [replace(change, note=_UNREAD) if change.path in unread else change for change in changes]
    inputs, others = (_below(f"{key}.", diff.manifest) for key in ("inputs", "values"))
    return ResultsDiff(inputs, others, tables, file_diffs(noted, "", MOST_WORDS), diff.left_out)


def _without(tables: Mapping[str, TableDiff], parts: Mapping[str, Part], side: ToShow) -> Compared:
    facts = {name: _facts(part) for name, part in parts.items() if name not in tables}
    values = {"inputs": decoded_json(side.args), "values": _values(side)}
    return Compared(DiffSide("", "", ""), values, facts, lambda name: _content(parts[name]))


def _below(path: str, changes: Iterable[ValueChange]) -> list[ValueChange]:
    below = [change for change in changes if change.path.startswith(path)]
    return [replace(change, path=change.path.removeprefix(path)) for change in below]


def _compared_parts(side: ToShow) -> dict[str, Part]:
    """Return the code and the parts of a run by name, without the short values and the whole output."""
    code = [Part(side.code.path, side.code.content.decode("utf-8", "replace"))] if side.code else []
    return {part.name: part for part in [*code, *parts_of(side.output, side.files)] if not part.role}


def _values(side: ToShow) -> dict[str, Any]:
    """Return the values of an output that are not parts. Files have their name and digest in place of their id."""
    values, others, _ = split_output(decoded_json(side.output), side.files)
    names = {file.blob_id: json.dumps(f"{file.path or 'file'} {file.digest[:8]}")[1:-1] for file in side.files}
    text = json.dumps({**values, **others})
    return dict(json.loads(_BLOB.sub(lambda match: names.get(match[0], match[0]), text)))


def _content(part: Part) -> bytes:
    if part.file:
        return part.file.content or b""
    return (as_csv(part.table) if part.table else str(part.value)).encode("utf-8", "replace")


def _facts(part: Part) -> FileFacts:
    content, file = _content(part), part.file
    digest, size = (file.digest, file.size_bytes) if file else (sha256(content).hexdigest(), len(content))
    return FileFacts(digest, size, executable=False)


def _table(part: Part | None) -> Table | None:
    """Return a part as a table, or None if it is no table or was not read to its end."""
    file = part.file if part else None
    if file is None or file.content is None or len(file.content) < file.size_bytes:
        return part.table if part else None
    return table_of_text(decoded(file.content, is_whole=True) or "", format_of(file.path, file.media_type))


def _table_diff(old_part: Part | None, new_part: Part) -> TableDiff | None:
    """Return the rows that differ, or None if none do or if the part is no table with unique rows."""
    old, new = _table(old_part), _table(new_part)
    diff = compare_rows(*old, *new) if old and new else None
    return diff if diff and diff.rows else None
