"""The lines of a TOML text at which its keys and array items are written. `tomllib` does not return lines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from skillery.formats.json_values import join

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]++|\#[^\n]*+)|(?P<end>\n)"""
    r"""|(?P<text>"{3}(?:[^\\"]|\\.|"(?!""))*+"{3,5}|\'{3}(?:[^']|'(?!''))*+\'{3,5}|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
    r"""|(?P<sign>[\[\]{},=])|(?P<bare>[^\s\[\]{},="'#]++)|(?P<other>.)""",
    re.DOTALL,
)


MOST_CHARACTERS = 64 * 1024
"""Limit on the text that is scanned: a longer one would occupy the interpreter for a noticeable time."""
MOST_KEYS = 64
"""Limit on the parts of a dotted key. No path of a manifest has as many."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int
    at: int


def lines_of(text: str, paths: Collection[str]) -> dict[str, int]:
    """Return the line of each of `paths` (`inputs.a.type`, `tags[2]`) that a valid TOML text contains.

    A text of more than MOST_CHARACTERS has no lines.
    """
    return _scanned(text, paths).lines


def span_of(text: str, path: str) -> tuple[int, int] | None:
    """Return the start and end of the string at `path`, with its quotes, or None if there is no string."""
    return _scanned(text, {path}).spans.get(path)


def _scanned(text: str, paths: Collection[str]) -> _Scanner:
    scanner = _Scanner(text if len(text) <= MOST_CHARACTERS else "", frozenset(paths))
    with contextlib.suppress(RecursionError, StopIteration):
        scanner.scan()
    return scanner


def line_of(lines: dict[str, int], path: str) -> int:
    """Return the line of a path. If the text does not contain it, return the line of the table it belongs to, or 1."""
    while path:
        if path in lines:
            return lines[path]
        path = parent_of(path)
    return 1


def parent_of(path: str) -> str:
    """Return the path of the table or array that contains a path; "" for the whole text."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]


def ancestors(paths: Collection[str]) -> set[str]:
    """Return the paths and everything that contains them."""
    found: set[str] = set()
    for path in paths:
        while path and path not in found:
            found.add(path)
            path = parent_of(path)  # noqa: PLW2901 - the walk up
    return found


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or ""
        if kind != "space":
            yield _Token(kind, found[0], line, found.start())
        line += found[0].count("\n")
    yield _Token("end", "\n", line, len(text))


class _Scanner:
    """One pass over the tokens of a valid text."""

    def __init__(self, text: str, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self.lines: dict[str, int] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self._items: dict[str, int] = {}
        """The last index of each array of tables."""

    def scan(self) -> None:
        """Fill `lines` and `spans`. Raise StopIteration at the end of the text."""
        table = ""
        while True:
            if self._next.kind == "end":
                self._take()
            elif self._next.text == "[":
                table = self._header()
            else:
                self._pair(table)

    def _take(self) -> _Token:
        token = self._next
        self._next = next(self._tokens)
        return token

    def _note(self, path: str, line: int) -> None:
        if path in self._wanted:
            self.lines.setdefault(path, line)

    def _header(self) -> str:
        first = self._take()
        is_array = self._next.text == "[" and self._next.at == first.at + 1
        if is_array:
            self._take()
        *parents, last = self._keys()
        path = ""
        for key in parents:
            path = self._item(join(path, key))
        path = join(path, last)
        self._note(path, first.line)
        if is_array:
            self._items[path] = self._items.get(path, -1) + 1
            self._take()
        path = self._item(path)
        self._note(path, first.line)
        self._take()
        return path

    def _item(self, path: str) -> str:
        return f"{path}[{self._items[path]}]" if path in self._items else path

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while self._next.kind in {"bare", "text"}:
            token = self._take()
            keys += token.text.split(".") if token.kind == "bare" else [_unquoted(token.text)]
        return [key for key in keys if key][:MOST_KEYS] or [""]

    def _pair(self, table: str) -> None:
        line, path = self._next.line, table
        for key in self._keys():
            path = join(path, key)
            self._note(path, line)
        self._take()  # the sign =
        self._value(path)

    def _value(self, path: str) -> None:
        opening = self._take()
        if opening.text == "[":
            self._array(path)
        elif opening.text == "{":
            self._inline_table(path)
        else:
            if path in self._wanted and opening.text[0] in "\"'":
                self.spans[path] = (opening.at, opening.at + len(opening.text))
            while self._next.kind in {"bare", "other"}:  # a date and a time with a blank between them
                self._take()

    def _array(self, path: str) -> None:
        number = 0
        while self._next.text != "]":
            if self._next.kind == "end" or self._next.text == ",":
                self._take()
                continue
            item = f"{path}[{number}]"
            self._note(item, self._next.line)
            self._value(item)
            number += 1
        self._take()

    def _inline_table(self, path: str) -> None:
        while self._next.text != "}":
            if self._next.text == "," or self._next.kind == "end":
                self._take()
            else:
                self._pair(path)
        self._take()


def _unquoted(text: str) -> str:
    """Return a quoted key without its quotes. Escapes are not decoded, so keys with escapes have no line."""
    return text[1:-1]
