"""The lines of a TOML text at which its keys and array items are written. `tomllib` does not return lines."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from skillery.formats.json_values import join
from skillery.formats.wording import Problem

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
    """A token of TOML: its kind, its text, its line and its position in the text."""

    kind: str
    text: str
    line: int
    at: int


def lines_of(text: str, paths: Collection[str]) -> dict[str, int]:
    """Return the line of each of `paths` (`inputs.a.type`, `tags[2]`) that a valid TOML text contains.

    The result is {} for a text of more than MOST_CHARACTERS.
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
    """Return the line of a path. If `lines` does not contain it, return the line of the nearest table that contains it,
    or 1.
    """
    while path:
        if path in lines:
            return lines[path]
        path = parent_of(path)
    return 1


def parent_of(path: str) -> str:
    """Return the path of the table or array that contains a path; "" for the whole text."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]


def ancestors(paths: Collection[str]) -> set[str]:
    """Return the paths, and the paths of all tables and arrays that contain them."""
    all_paths: set[str] = set()
    for path in paths:
        while path and path not in all_paths:
            all_paths.add(path)
            path = parent_of(path)  # noqa: PLW2901 - the walk up
    return all_paths


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "space":
            yield _Token(kind, match[0], line, match.start())
        line += match[0].count("\n")
    yield _Token("end", "\n", line, len(text))


class _Scanner:
    """Reads the tokens of a valid TOML text once, and notes the lines and spans of the wanted paths."""

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
        """Read a table header up to its closing bracket. Return the path of the table, with the index of an array of
        tables.
        """
        bracket = self._take()
        is_array = self._next.text == "[" and self._next.at == bracket.at + 1
        if is_array:
            self._take()
        *parents, last_key = self._keys()
        path = ""
        for key in parents:
            path = self._item(join(path, key))
        path = join(path, last_key)
        self._note(path, bracket.line)
        if is_array:
            self._items[path] = self._items.get(path, -1) + 1
            self._take()
        path = self._item(path)
        self._note(path, bracket.line)
        self._take()
        return path

    def _item(self, path: str) -> str:
        """Return the path of the last item if the path is an array of tables, else the path."""
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
        """Read the value of a path. Note the span of a string."""
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
        """Read an array up to its closing bracket, and note the line of each item."""
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


# -- The TOML to write for a problem of a manifest ---------------------------------------------------------------------


SKILL_TOML = "skill.toml"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_RUNTIME = '[runtime]\nentrypoint = "code/main.py"'
_LIMITS = {"memory_mb": 512, "processes": 64, "cpus": 1.0, "disk_mb": 256, "timeout_ms": 60000}
_FORMS: tuple[tuple[str, str], ...] = (
    (r"name", 'name = "team.my-skill"'),
    (r"version", 'version = "0.1.0"'),
    (r"description", 'description = "What the skill does."'),
    (r"kind", 'kind = "action"'),
    (r"tags", 'tags = ["csv", "report"]'),
    (r"runtime(\.entrypoint)?", _RUNTIME),
    (r"runtime\.language", 'language = "python"'),
    (r"runtime\.export", 'export = "main"'),
    (r"runtime\.dependencies", 'dependencies = ["pandas>=2,<3"]'),
    (r"runtime\.requires-python", 'requires-python = ">=3.11"'),
    (r"runtime\.limits", "[runtime.limits]\nmemory_mb = 512"),
    (r"inputs", '[inputs]\nname = { type = "string", required = true }'),
    (r"inputs\..+\.type", 'type = "string"'),
    (r"inputs\..+\.description", 'description = "What the caller passes."'),
    (r"inputs\..+\.enum", 'enum = ["small", "large"]'),
    (r"inputs\..+\.required", "required = true"),
    (r"permissions", '[permissions]\nnetwork = ["https://api.example.com"]'),
    (r"permissions\.network", 'network = ["https://api.example.com"]'),
    (r"permissions\.secrets", 'secrets = ["API_KEY"]'),
    (
        r"tool_examples(\.tool)?",
        '[[tool_examples]]\ntool = "count_words"\nargs = { text = "a b" }\nexpect = { words = 2 }',
    ),
    (r"examples\.name", 'name = "a greeting"'),
    (r"examples\.args", 'args = { name = "Ada" }'),
    (r"examples\.blobs", 'blobs = { sheet = "resources/sheet.csv" }'),
    (r"examples\.input_blobs", 'input_blobs = ["resources/sheet.csv"]'),
    (r"examples\.expect_error", 'expect_error = "ValueError"'),
    (r"examples\.needs_permissions", "needs_permissions = true"),
    (r"examples(\..+)?", '[[examples]]\nargs = { name = "Ada" }\nexpect = { greeting = "Hello, Ada!" }'),
)
_COMPILED = [(re.compile(pattern), toml) for pattern, toml in _FORMS]


def with_toml(problems: Iterable[Problem], skill_toml: str | None) -> list[Problem]:
    """Return the problems of a manifest. A problem of a known key gets an example of correct TOML.

    If `skill_toml` is given, the problems also get their line numbers, unless the text is too long to be searched.
    """
    problems, lines = list(problems), None
    if skill_toml and len(skill_toml) <= MOST_CHARACTERS:
        lines = lines_of(skill_toml, ancestors({problem.path or "" for problem in problems}))
    return [_completed(problem, lines, skill_toml is not None) for problem in problems]


def _completed(problem: Problem, lines: dict[str, int] | None, is_given: bool) -> Problem:
    path = problem.path or ""
    line = problem.line or (line_of(lines, path) if lines is not None else None)
    file = SKILL_TOML if is_given else problem.file
    return msgspec.structs.replace(problem, toml=problem.toml or toml_for(path), file=file, line=line)


def toml_for(path: str) -> str | None:
    """Return an example of correct TOML for the key at `path`, or None if there is no example."""
    if match := re.fullmatch(r"runtime\.limits\.(\w+)", path):
        return f"{match[1]} = {_LIMITS[match[1]]}" if match[1] in _LIMITS else None
    without_items = re.sub(r"\[\d+\]", "", path)
    if without_items.startswith("tool_examples.") and without_items != "tool_examples.tool":
        without_items = without_items.removeprefix("tool_")
    for pattern, toml in _COMPILED:
        if pattern.fullmatch(without_items):
            return toml
    if match := re.fullmatch(r"inputs\.([^.]+)", without_items):
        return f'{key(match[1])} = {{ type = "string" }}'
    return None


def key(text: str) -> str:
    """Return a key of TOML, quoted if needed."""
    return text if _BARE_KEY.fullmatch(text) else json.dumps(text, ensure_ascii=False)
