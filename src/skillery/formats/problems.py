"""Lists of problems: all problems of one input are reported in one error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import msgspec

from skillery.errors import InvalidParams

MAX_SHOWN = 50
"""The maximum number of problems in one answer. Hostile input can have thousands."""

AGAIN = " and publish again; nothing was stored."
"""End of the hints that publishing gives after problems of files. A test of a folder omits these hints."""


class Problem(msgspec.Struct, frozen=True):
    """One problem. The message includes its subject and has no full stop.

    `path` is a key (`runtime.entrypoint`) or a file. `line` counts from 1. `toml` is the correct text for skill.toml.
    """

    message: str
    path: str | None = None
    file: str | None = None
    line: int | None = None
    toml: str | None = None

    def as_data(self) -> dict[str, object]:
        fields = {
            "path": self.path,
            "file": self.file,
            "line": self.line,
            "message": self.message,
            "toml": self.toml,
        }
        return {name: value for name, value in fields.items() if value is not None}


def raise_problems(kind: type[InvalidParams], problems: Sequence[Problem], *, hint: str | None) -> NoReturn:
    """Raise an error of type `kind` that lists the problems.

    The message is that of the first problem. `data["problems"]` has the first MAX_SHOWN problems. `data["file"]` and
    `data["line"]` are those of the first problem with a file.
    """
    more = len(problems) - 1
    message = f"{problems[0].message}{f' (and {more} more)' if more else ''}."
    located = next((problem for problem in problems if problem.file), None)
    place = {"file": located.file, "line": located.line} if located else {}
    shown = [problem.as_data() for problem in problems[:MAX_SHOWN]]
    values = {name: value for name, value in place.items() if value is not None}
    raise kind(message, hint=hint, problems=shown, **values)


def problems_of(error: InvalidParams) -> list[Problem]:
    """Return the problems of an error, or the message as the only problem if the error has no list."""
    listed = error.data.get("problems")
    if not listed:
        return [Problem(error.message.rstrip("."))]
    return [msgspec.convert(each, Problem) for each in listed]
