"""Unicode normal forms of foreign text, in linear time (https://www.unicode.org/reports/tr15/)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Literal

PIECE = 256
SEARCH = 64


def normalized(form: Literal["NFC", "NFKD"], text: str) -> str:
    """Return the text in a normal form.

    `unicodedata.normalize` sorts each sequence of combining characters in quadratic time and holds the interpreter
    lock: a sequence of 32,768 takes a second. Therefore a sequence longer than a piece is normalised in pieces, and its
    marks may get another order. Ordinary text has no such sequences.
    """
    if text.isascii():
        return text
    return "".join(unicodedata.normalize(form, piece) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        limit = min(end + SEARCH, len(text))
        # If the next character never combines with the previous one, a cut between the two does not change the result.
        end = next((at for at in range(end, limit) if _stands_alone(text[at])), end)
        yield text[start:end]
        start = end


def _stands_alone(character: str) -> bool:
    is_mark = unicodedata.category(character)[0] == "M"
    is_vowel_or_final_of_hangul = "\u1160" <= character <= "\u11ff"
    return not (is_mark or is_vowel_or_final_of_hangul)
