"""Source code of skills as HTML that is safe on pages of this server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import groupby
from typing import Any

from markupsafe import Markup
from pygments.lexers import find_lexer_class_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String

from skillery.formats.tracebacks import Frame
from skillery.web.display import visible
from skillery.web.views.kinds import ending_of

# -- Source code: tokens are spans of few classes, and hidden characters are boxes -------------------------------------
# Only the ending of the file selects the lexer. Guessing by content would execute slow patterns on hostile texts.


_LEXERS = {
    **dict.fromkeys(("py", "pyi"), "python"),
    **dict.fromkeys(("sh", "bash", "zsh"), "bash"),
    **dict.fromkeys(("js", "mjs", "cjs", "jsx"), "javascript"),
    **dict.fromkeys(("ts", "tsx"), "typescript"),
    **dict.fromkeys(("yaml", "yml"), "yaml"),
    **dict.fromkeys(("html", "htm", "xhtml"), "html"),
    **dict.fromkeys(("xml", "svg", "xsd", "xsl"), "xml"),
    **dict.fromkeys(("ini", "cfg"), "ini"),
    **dict.fromkeys(("c", "h"), "c"),
    **dict.fromkeys(("cpp", "hpp", "cc"), "cpp"),
    **dict.fromkeys(("diff", "patch"), "diff"),
    **dict.fromkeys(("md", "markdown"), "markdown"),
    **{name: name for name in ("toml", "json", "css", "sql", "go", "java", "lua", "php", "r", "swift")},
    "rs": "rust",
    "rb": "ruby",
    "kt": "kotlin",
    "pl": "perl",
    "ps1": "powershell",
    "tex": "latex",
    "dockerfile": "docker",
    "makefile": "make",
}
"""Names of Pygments lexers by the ending of a file, or by the name of a file without an ending."""
_TOKEN_CLASSES: tuple[tuple[Any, str], ...] = (
    (Comment, "c"),
    (String, "s"),
    (Number, "n"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Tag, "k"),
    (Name.Function, "n"),
    (Name.Class, "n"),
    (Name.Decorator, "n"),
    (Name.Attribute, "n"),
)


_IMPORTED_LATE = ("pygments.lexers._cocoa_builtins", "pygments.lexers._php_builtins")
"""Modules that some lexers import only when they read their first text."""


def load_lexers() -> None:
    """Import all lexers, because a worker process cannot open files later."""
    for name in set(_LEXERS.values()):
        find_lexer_class_by_name(name)
    for module in _IMPORTED_LATE:
        import_module(module)


def has_lexer(path: str) -> bool:
    """Return whether files with the ending of `path` are highlighted."""
    return ending_of(path) in _LEXERS


def highlighted_lines(text: str, path: str) -> list[str]:
    """Return the lines of a file as HTML, without line ends."""
    lines: list[list[Markup]] = [[]]
    for name, part in _parts(text.replace("\r\n", "\n"), _LEXERS.get(ending_of(path), "")):
        for number, piece in enumerate(part.split("\n")):
            if number:
                lines.append([])
            if piece:
                shown = visible(piece, is_code=True)
                lines[-1].append(Markup('<span class="{}">{}</span>').format(name, shown) if name else shown)
    if len(lines) > 1 and not lines[-1]:
        lines.pop()
    return [str(Markup("").join(line)) for line in lines]


def highlighted(text: str, path: str) -> str:
    """Return the text of a file as HTML."""
    return "\n".join(highlighted_lines(text, path))


def _parts(text: str, lexer: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a text, each with the CSS class of its tokens. "" means no class."""
    if not lexer:
        yield "", text
        return
    # Unprocessed: the usual preparation of a lexer removes and changes characters.
    tokens = ((_class_of(kind), part) for _, kind, part in _lexer(lexer).get_tokens_unprocessed(text))
    for name, group in groupby(tokens, key=lambda token: token[0]):
        yield name, "".join(part for _, part in group)


@cache
def _lexer(name: str) -> Any:
    return find_lexer_class_by_name(name)()


@cache
def _class_of(kind: Any) -> str:
    """Return the CSS class of a token type, or ""."""
    return next((name for group, name in _TOKEN_CLASSES if kind in group), "")


# -- Lines with numbers, and the line at which a run failed ------------------------------------------------------------


_LINES_AT_ONCE = 100
_BEFORE, _AFTER = 4, 2


def with_mark(text: str, path: str, frame: Frame | None, *, is_file: bool) -> str:
    """Return code as HTML with its failing line marked, or "" if a file has no such line."""
    lines = highlighted_lines(text, path)
    if frame is None or frame.line > len(lines):
        return "" if is_file else numbered(lines)
    line = text.replace("\r\n", "\n").split("\n")[frame.line - 1]
    indent = line[: frame.column - 1] if frame.column else line[: len(line) - len(line.lstrip())]
    marks = "^" if frame.column else frame.marks
    below = re.sub(r"[^\t]", " ", indent) + marks if marks else ""
    first = max(1, frame.line - _BEFORE) if is_file else 1
    shown = lines[first - 1 : frame.line + _AFTER] if is_file else lines
    return numbered(shown, first, frame.line, below)


def numbered(lines: Sequence[str], first: int = 1, failing: int = 0, below: str = "") -> str:
    """Return lines of HTML, each with its number and id, in blocks: a browser lays out the blocks in view.

    The line `failing` is marked, and `below` stands below it.
    """
    blocks = []
    for start in range(0, len(lines), _LINES_AT_ONCE):
        block = lines[start : start + _LINES_AT_ONCE]
        rows = [f'<span id="L{n}" data-n="{n}">{line}\n</span>' for n, line in enumerate(block, start + first)]
        if start <= failing - first < start + len(block):
            at = failing - first - start
            rows[at] = rows[at].replace("<span ", '<span class="failing" ', 1)
            rows[at] += f'<span class="carets" data-n="">{below}\n</span>' if below else ""
        # Only a whole block has a known height.
        is_whole = len(rows) == _LINES_AT_ONCE and not failing
        blocks.append(f'<span class="{"block" if is_whole else "end"}">{"".join(rows)}</span>')
    return "".join(blocks)
