"""Words similar to a misspelt word: three-letter pieces find the candidates, and a distance decides between them."""

from __future__ import annotations

WHOLE = ""
LEAST_LETTERS = 4
"""The minimum number of letters of a word that may be corrected: shorter words have too many similar words."""
LONG_WORD = 8
"""A word with at least this many letters may have two mistakes."""
SHORT_WORD = 5
"""In a word with at most this many letters, a replaced letter gives another word: slow is not a misspelt flow."""
MOST_LETTERS = 32
"""The maximum number of letters of a word. Longer ones are identifiers or encoded data."""


def pieces_of(word: str) -> list[str]:
    """Return the distinct trigrams of a word. `^` marks its start and `$` its end: `cat` gives `^ca`, `cat`, `at$`."""
    marked = f"^{word}$"
    return list(dict.fromkeys(marked[at : at + 3] for at in range(len(marked) - 2)))


def stored_pieces(word: str) -> list[str]:
    """Return the keys under which a word is stored: WHOLE, for searches in alphabetical order, and its pieces."""
    return [WHOLE, *pieces_of(word)]


def is_known_spelling(word: str) -> bool:
    """Return whether a word of a text may be stored as a correct spelling."""
    return 2 <= len(word) <= MOST_LETTERS


def may_be_misspelt(word: str) -> bool:
    """Return whether a word may be corrected. Words with digits may not: 2024 is not a misspelt 2025."""
    return LEAST_LETTERS <= len(word) <= MOST_LETTERS and word.isalpha()


def mistakes_allowed(word: str) -> int:
    return 2 if len(word) >= LONG_WORD else 1


def distance(left: str, right: str, most: int) -> int:
    """Return the optimal string alignment distance of two words, or `most + 1` if the distance is larger than `most`.

    One step adds, drops or replaces a letter, or swaps two adjacent letters. In a short word, a replaced letter counts
    as two steps.
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
