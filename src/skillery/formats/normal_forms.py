"""Unicode normal forms of foreign text, in linear time (https://www.unicode.org/reports/tr15/)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Literal

PIECE = 256
SEARCH = 64


def normalized(form: Literal["NFC", "NFKD"], text: str) -> str:
    """Return the text in a normal form.

    `unicodedata.normalize` sorts each run of combining characters in quadratic time and holds the interpreter lock: a
    run of 32,768 costs a second. A run longer than a piece is therefore normalized piece by piece, which can leave its
    marks in another order. Text that people write has no such runs.
    """
    if text.isascii():
        return text
    return "".join(unicodedata.normalize(form, piece) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        limit = min(end + SEARCH, len(text))
        # A cut before a character that never combines with the one before it changes nothing.
        end = next((at for at in range(end, limit) if _stands_alone(text[at])), end)
        yield text[start:end]
        start = end


def _stands_alone(character: str) -> bool:
    is_mark = unicodedata.category(character)[0] == "M"
    is_vowel_or_final_of_hangul = "\u1160" <= character <= "\u11ff"
    return not (is_mark or is_vowel_or_final_of_hangul)
