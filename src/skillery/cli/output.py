"""Output of commands: tables on a terminal, plain text otherwise, one JSON document with --json."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from skillery.formats.wording import HIDDEN, styles_emoji

if TYPE_CHECKING:
    from skillery.settings.load import Settings


_HIDDEN = re.compile(HIDDEN)
_JOINERS = "\u200c\u200d"
"""They join letters in many languages and emoji."""
WIDTH = 100
IDS = frozenset({"run", "id"})
"""Names of the columns with ids."""
_SPACE = re.compile(r"\s+")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")


def clean(text: object) -> str:
    """Return `text` with hidden characters as codes. Texts of skills are untrusted: they could control the terminal, or
    show other text than they contain. Joiners and selectors of emoji stay as they are.
    """
    return _HIDDEN.sub(_code, str(text).replace("\r\n", "\n"))


def _is_visible_part(match: re.Match[str]) -> bool:
    """Return whether the hidden character joins or styles visible ones, so that the text needs it."""
    return match[0] in _JOINERS or styles_emoji(match.string, match.start())


def _code(match: re.Match[str]) -> str:
    if _is_visible_part(match):
        return match[0]
    number = ord(match[0])
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def print_json(value: Any) -> None:
    click.echo(as_json(value))


def as_json(value: Any, indent: int = 2) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    # These characters are only in strings, where an escape means the same.
    return _HIDDEN.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0] if _is_visible_part(match) else json.dumps(match[0])[1:-1]


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    none: str = "",
    headed: bool = False,
) -> None:
    """Print a table on a terminal, otherwise one line per row with fields separated by tabs. With `headed`, the first
    line has the names of the columns.

    On a terminal, timestamps are shortened to seconds and may wrap. Columns of IDS never wrap, so that a user can copy
    an id. If there are no rows, print the sentence `none` to stderr.
    """
    rows = list(rows)
    if not rows and none:
        click.echo(none, err=True)
        return
    if not is_terminal():
        for row in (columns, *rows) if headed else rows:
            click.echo("\t".join(_SPACE.sub(" ", clean(field)) for field in row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        # A truncated digest would be useless, so long fields continue on the next line.
        table.add_column(column, overflow="fold", no_wrap=column in IDS)
    for row in rows:
        table.add_row(*(Text(_TIMESTAMP.sub(r"\1 \2Z", clean(field))) for field in row))
    Console().print(table)


def print_warning(text: str) -> None:
    click.echo(f"{click.style('warning:', fg='yellow')} {clean(text)}", err=True)


def print_warnings(skills: Iterable[Mapping[str, Any]]) -> None:
    """Print the warnings of the skills in a listing to stderr."""
    for skill in skills:
        for warning in skill.get("warnings", ()):
            print_warning(f"{skill['name']}: {warning}")


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print one `name: value` per line.

    A value of several lines is indented below its name. Values that are not text are printed as JSON.
    """
    for name, value in fields:
        text = clean(value if isinstance(value, str) else _short_json(value)).rstrip("\n")
        if "\n" in text:
            text = "\n  " + text.replace("\n", "\n  ")
        click.echo(f"{click.style(name + ':', bold=True)} {text}")


def _short_json(value: Any) -> str:
    line = as_json(value, indent=-1)
    return line if len(line) <= WIDTH else as_json(value)


# -- The log of a command: warnings on stderr --------------------------------------------------------------------------


def show_log(settings: Settings) -> None:
    """Log warnings to stderr, one line each. With log level debug, log everything."""
    debug = settings.log_level == "debug"
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("%(levelname)s: %(message)s") if not debug else logging.Formatter())
    logging.basicConfig(level="DEBUG" if debug else "WARNING", handlers=[handler], force=True)


class _Lines(logging.Formatter):
    """Formatter that omits tracebacks. The log level `debug` shows them."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging calls
        return f"{ei[0].__name__}: {ei[1]}"
