"""Statements of the documents, and the verdicts on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skills_protocol_conformance.session import Session

MOST_SHOWN = 300
"""Characters of an answer that a verdict shows."""

Check = Callable[["Session"], None]
"""Return if the server does what the statement says. Raise Failed or Skipped if not."""


class Level(StrEnum):
    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"
    EXAMPLE = "example"


MUST, SHOULD, MAY, EXAMPLE = Level.MUST, Level.SHOULD, Level.MAY, Level.EXAMPLE
Row = tuple[int, Level, str, Check | None]
"""Number in the document, level, quotation, check. None: no call to the server can show it."""


class Failed(Exception):
    """The server does not do what the statement says. `answer` shows what the server does."""

    def __init__(self, words: str, answer: object = None) -> None:
        super().__init__(words)
        self.words = words
        self.answer = "" if answer is None else shortened(answer)


class Skipped(Exception):
    """The statement cannot be checked on this server. The message is the reason."""


@dataclass(frozen=True)
class Statement:
    id: str
    level: Level
    document: str
    section: str
    quotation: str
    check: Check | None

    @property
    def title(self) -> str:
        """Return what the check looks at."""
        doc = self.check and self.check.__doc__
        return doc.strip().splitlines()[0] if doc else "not testable from outside"


def document(name: str, prefix: str, sections: Mapping[str, Sequence[Row]]) -> list[Statement]:
    """Return the statements of one document, from rows by section."""
    return [
        Statement(f"{prefix}-{number}", level, name, section, quotation, check)
        for section, rows in sections.items()
        for number, level, quotation, check in rows
    ]


def expect(condition: object, words: str, answer: object = None) -> None:
    """Raise Failed with these words unless the condition holds."""
    if not condition:
        raise Failed(words, answer)


def at(answer: Any, path: str) -> Any:
    """Return the field `a.b.c` of an answer. Raise Failed if the answer does not have the field."""
    value = answer
    for name in path.split("."):
        expect(isinstance(value, dict) and name in value, f"`{path}` is missing", answer)
        value = value[name]
    return value


def shortened(value: object) -> str:
    """Return a value as one short line of JSON or text, without control characters of the server."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    # Surrogates and escape sequences of an answer reach neither the terminal nor XML.
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text[: 4 * MOST_SHOWN].split()))
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 1]}…"
