"""The texts of failed runs: the frames of a traceback, and the shape that the same failures have in common."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from msgspec import Struct

from skillery.failure_types import FailureType

# -- The line at which a run failed ------------------------------------------------------------------------------------


_FRAMES = re.compile(
    r'^  File "([^"\n]+)", line (\d{1,7})(?:, in (.*))?$(?:\n {4}\S.*$(?:\n {4}([ ~]*\^[ ~^]*)$)?)?'
    r"|^ {4}at (?:([^\n(]*)\()?([^\n:()]+):(\d{1,7}):(\d{1,7})\)?$",
    re.MULTILINE,
)
"""A frame of a traceback of Python, with its carets, or of Node.js."""


class Frame(Struct, frozen=True):
    """A line of code in a traceback. Python has carets (`marks`) below the line, Node.js a column."""

    path: str
    line: int
    marks: str = ""
    column: int = 0
    function: str = ""


def failing_frame(traceback: str, start: str) -> Frame | None:
    """Return the innermost frame of a traceback whose path begins with `start`. The path has the rest."""
    frames = []
    for python, line, function, marks, of_node, node, node_line, column in _FRAMES.findall(traceback):
        path = (python or node).removeprefix("/run/code/")
        if path.startswith(start):
            path = path.removeprefix(start)
            if python:
                frames.append(Frame(path, int(line), marks, function=function))
            else:
                frames.append(Frame(path, int(node_line), column=int(column), function=of_node.strip()))
    return None if not frames else frames[0] if frames[0].column else frames[-1]


# -- The shape of a failure --------------------------------------------------------------------------------------------


MOST_MESSAGE = 200
"""The length in characters at which messages of counted failures are cut."""
_VALUE = re.compile(
    r"(?<!\w)'[^'\n]*'(?!\w)"
    r'|(?<!\w)"[^"\n]*"(?!\w)'
    r"|`[^`\n]*`"
    r"|(?<!\w)(?:~|\.{1,2})?/[^\s'\"`,;:()]+"
    r"|\b[^\W\d]*+\d[\w.:%-]*"
)
"""A part of a message that can be a value of one run: a quoted text, a path, or a word with a digit. Messages are cut
before, so that hostile ones take no time.
"""
_NAMES_OF_CODE = {
    *("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError"),
    *(FailureType.VALIDATION_ERROR, FailureType.SECRET_MISSING, FailureType.SECRET_NOT_GRANTED),
}
"""Failures whose quoted words are names in the code, of inputs or of secrets, which stay the same from run to run."""
_NAME = re.compile(r"'[A-Za-z_][\w.]*'")


class Shape(NamedTuple):
    """What a failure has in common with others: they are the same failure if their keys are equal."""

    key: str
    """A hash of the type, the file, the function and the pattern of the message."""
    error_type: str
    place: str
    """The failing line of the skill, or "" if the traceback has none: `code/main.py, line 19 in main`."""
    message: str
    """The start of the message."""


OTHER = Shape("other", "", "", "")
"""The shape of the failures of a skill that has too many different ones on one day."""


def shape_of(skill: str, error_type: str, message: str, traceback: str) -> Shape:
    """Return the shape of a failed run. The key has no line numbers, so that it is the same in the next version."""
    frame = failing_frame(traceback, f"/skills/{skill}/")
    start = message.partition("\n")[0][:MOST_MESSAGE]
    parts = (error_type, frame.path if frame else "", frame.function if frame else "", pattern_of(error_type, start))
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
    function = f" in {frame.function}" if frame and frame.function not in {"", "<module>"} else ""
    place = f"{frame.path}, line {frame.line}{function}"[:MOST_MESSAGE] if frame else ""
    return Shape(key, error_type, place, start)


def pattern_of(error_type: str, message: str) -> str:
    """Return a message without the values of its run: with … for numbers, paths and quoted texts."""
    keeps_names = error_type in _NAMES_OF_CODE
    return _VALUE.sub(lambda match: match[0] if keeps_names and _NAME.fullmatch(match[0]) else "…", message)
