"""Colours of logs: the escape sequences of terminals as (class, text)."""

from __future__ import annotations

import re

# Logs have control characters in escaped form: ESC is the text \x1b.
_SEQUENCE = re.compile(
    r"\\x1b\[(?P<codes>[0-9;:]*)m"
    r"|\\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\\x1b[\]PX^_].*?(?:\\x07|\\x1b\\|$)"
    r"|\\x1b[ -/]*[0-~]"
    r"|\\x9b[0-?]*[ -/]*[@-~]",
    re.MULTILINE,
)
_OVERWRITTEN = re.compile(r"^.*\\x0d(?=.)", re.MULTILINE)
Part = tuple[str, str]


def parts_of(text: str) -> list[Part]:
    """Return a part of a log as texts with their CSS classes: `f0` to `f15` for 16 colours, `b` for bold.

    All other sequences are removed: movements of the cursor, titles, links. Of a line that was overwritten with
    carriage returns, the last text remains.
    """
    shown = _OVERWRITTEN.sub("", text).replace("\\x0d\n", "\n")
    parts: list[Part] = []
    colour, is_bold, end = "", False, 0
    for match in _SEQUENCE.finditer(shown):
        _add(parts, colour, is_bold, shown[end : match.start()])
        end = match.end()
        if match["codes"] is not None:
            colour, is_bold = _after(match["codes"], colour, is_bold)
    _add(parts, colour, is_bold, shown[end:])
    return parts


def _add(parts: list[Part], colour: str, is_bold: bool, text: str) -> None:
    if text:
        parts.append((f"{colour} b".strip() if is_bold else colour, text))


def _after(codes: str, colour: str, is_bold: bool) -> tuple[str, bool]:
    if ":" in codes or ";5;" in codes or ";2;" in codes:
        return colour, is_bold  # one of 256 or more colours: not shown
    for code in codes.split(";"):
        number = int(code[:4]) if code else 0
        if number == 0:
            colour, is_bold = "", False
        elif number in {1, 22}:
            is_bold = number == 1
        elif 30 <= number <= 37:
            colour = f"f{number - 30}"
        elif 90 <= number <= 97:
            colour = f"f{number - 82}"
        elif number == 39:
            colour = ""
    return colour, is_bold
