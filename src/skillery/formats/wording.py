"""How foreign text is shown in messages, and which known word it may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def quoted(text: str, limit: int = 80) -> str:
    """`text` in quotes, cut to `limit` characters, printable whatever it holds (lone surrogates, NUL, newlines)."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return repr(shown)


def printable(text: str, limit: int = 200) -> str:
    """As `quoted`, without the quotes."""
    return quoted(text, limit)[1:-1]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    matches = difflib.get_close_matches(word[:64], list(known), n=1)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing."""
    match = nearest(word, known)
    return f" (did you mean {quoted(match)}?)" if match else ""


def has_surrogate(text: str) -> bool:
    """Whether `text` holds half a character, which no encoding can carry."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)
