"""Words similar to a misspelt one: three-letter pieces to find candidates, and the distance that decides."""

from __future__ import annotations

WHOLE = ""
LEAST_LETTERS = 4
"""Fewest letters of a word that is corrected: a shorter word has too many similar words."""
LONG_WORD = 8
"""Letters from which a word may have two mistakes."""
SHORT_WORD = 5
"""Letters up to which a replaced letter makes another word: flow is no typo of slow."""
MOST_LETTERS = 32
"""Limit on the letters of a word. Longer runs are identifiers or encoded data."""


def pieces_of(word: str) -> list[str]:
    """Return the runs of three characters of a word between `^` and `$`, each once."""
    marked = f"^{word}$"
    return list(dict.fromkeys(marked[at : at + 3] for at in range(len(marked) - 2)))


def stored_pieces(word: str) -> list[str]:
    """Return the keys that store a word: WHOLE, for searches in alphabetical order, and its pieces."""
    return [WHOLE, *pieces_of(word)]


def is_known_spelling(word: str) -> bool:
    """Return whether a word of a text is stored as a correct spelling."""
    return 2 <= len(word) <= MOST_LETTERS


def may_be_misspelt(word: str) -> bool:
    """Return whether a word may be corrected. Numbers and names with digits are not: 2024 is no typo of 2025."""
    return LEAST_LETTERS <= len(word) <= MOST_LETTERS and word.isalpha()


def mistakes_allowed(word: str) -> int:
    return 2 if len(word) >= LONG_WORD else 1


def distance(left: str, right: str, most: int) -> int:
    """Return the optimal string alignment distance of two words; `most + 1` if it is larger than `most`.

    One step adds, drops or replaces a letter, or swaps it with the next one. In a short word a replaced letter counts
    twice.
    """
    if abs(len(left) - len(right)) > most:
        return most + 1
    replaced = 2 if len(left) <= SHORT_WORD else 1
    before: list[int] = []
    row = list(range(len(right) + 1))
    for at, letter in enumerate(left, 1):
        before, above, row = row, before, [at]
        for place, other in enumerate(right, 1):
            cost = min(before[place] + 1, row[-1] + 1, before[place - 1] + replaced * (letter != other))
            if at > 1 and place > 1 and letter == right[place - 2] and left[at - 2] == other:
                cost = min(cost, above[place - 2] + 1)
            row.append(cost)
        if min(row) > most and (not before or min(before) > most):
            return most + 1
    return min(row[-1], most + 1)
