"""Foreign text in messages, and suggestions for misspelt words."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import msgspec

from skillery.errors import InvalidParams, SkilleryError

MOST_COMPARED = 50
"""The maximum number of candidates that are compared letter by letter."""
LONGEST_COMPARED = 128
"""The maximum number of characters of a word that are compared, taken from its end: enough for a name, or for the
last parts of a path.
"""


# Characters without a shape that count as printable: a text for a model could hide sentences in them.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)

HIDDEN = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    "\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Pattern of control characters, format characters, variation selectors and tags. They control a terminal, reorder or
hide the text around them, or carry data that no reader sees.
"""
_EMOJI = re.compile("[©®‼⁉™ℹ\u2190-\u2bff〰〽㊗㊙\U0001f000-\U0001faff]")


def styles_emoji(text: str, position: int) -> bool:
    """Return whether the character at `position` is the selector U+FE0E or U+FE0F of the emoji or keycap before it."""
    if position == 0 or text[position] not in "\ufe0e\ufe0f":
        return False
    emoji = text[position - 1]
    return bool(_EMOJI.match(emoji)) or (emoji in "0123456789#*" and text[position + 1 : position + 2] == "\u20e3")


def quoted(text: str, limit: int = 80) -> str:
    """Return `text` in quotes, cut to `limit` characters. NUL, newlines and lone surrogates are escaped."""
    cut_text = text if len(text) <= limit else text[: limit - 1] + "…"
    return repr(cut_text)


def printable(text: str, limit: int = 200) -> str:
    """Return `text` cut and escaped like `quoted`, without the quotes. Quotes in the text have no backslash."""
    return quoted(text, limit)[1:-1].replace("\\'", "'")


def one_line(text: str, limit: int) -> str:
    """Return `text` as one line of at most `limit` characters, without control and invisible characters.

    A longer text is cut after a word, unless this would halve it.
    """
    visible = _INVISIBLE.sub("", text[: 4 * limit])
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in visible).split())
    if len(text) <= limit:
        return text
    words = text[:limit].rpartition(" ")[0].rstrip(",;:(")
    return (words if len(words) > limit // 2 else text[: limit - 1].rstrip()) + "…"


def first_names(names: Sequence[str], most: int) -> str:
    """Return at most `most` names, and the number of the others: `a, b and 3 more`."""
    others = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + others


def near_words(word: str, known: Iterable[str], most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return at most `most` known words that are similar to `word`, most similar first. `cutoff` is the least
    similarity, from 0 to 1.

    The time must not depend on the letters, because callers choose the words. difflib takes cubic time for repetitive
    words; this function takes a few milliseconds at most.
    """
    word = word[-LONGEST_COMPARED:]
    positions = _places(word)
    scored = (
        (_similarity(word, positions, candidate[-LONGEST_COMPARED:], cutoff), candidate)
        for candidate in _to_compare(word, known)
    )
    best_matches = heapq.nsmallest(most, ((-score, candidate) for score, candidate in scored if score >= cutoff))
    return [candidate for _, candidate in best_matches]


def _to_compare(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words to compare with `word`: all, or the MOST_COMPARED that share the most pairs of letters
    with it.
    """
    candidates = list(dict.fromkeys(known))
    if len(candidates) <= MOST_COMPARED:
        return candidates
    pairs = _pairs(word)
    return heapq.nlargest(
        MOST_COMPARED,
        candidates,
        key=lambda candidate: (len(pairs & _pairs(candidate)), -abs(len(candidate) - len(word))),
    )


def _pairs(word: str) -> set[tuple[str, str]]:
    """Return the pairs of adjacent letters of a word."""
    word = word[-LONGEST_COMPARED:]
    return set(itertools.pairwise(word))


def _places(word: str) -> dict[str, int]:
    """Return a bit mask for each letter: bit N is set if the letter is at position N of `word`."""
    positions: dict[str, int] = {}
    for number, letter in enumerate(word):
        positions[letter] = positions.get(letter, 0) | 1 << number
    return positions


def _similarity(word: str, positions: Mapping[str, int], other: str, cutoff: float) -> float:
    """Return the share of letters in the longest common subsequence of two words, from 0 to 1.

    Return 0 if the lengths already rule out `cutoff`. The time is one step for each letter of `other` (Hyyrö,
    "Bit-parallel LCS-length computation revisited", 2004).
    """
    length = len(word) + len(other)
    if not length or 2 * min(len(word), len(other)) < cutoff * length:
        return 0.0
    row = all_bits = (1 << len(word)) - 1
    for letter in other:
        matching_bits = row & positions.get(letter, 0)
        row = (row + matching_bits | row - matching_bits) & all_bits
    return 2 * (len(word) - row.bit_count()) / length


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is most similar to `word`, or None if no known word is similar."""
    return next(iter(near_words(word, known, 1, cutoff)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` with the most similar known word, or "" if no known word is similar."""
    match = nearest(word, known)
    return f" (did you mean {quoted(match)}?)" if match else ""


def has_surrogate(text: str) -> bool:
    """Return whether `text` contains a lone surrogate. No encoding can represent it."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


# -- Lists of problems: all problems of one input are reported in one error --------------------------------------------


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

    The message is the message of the first problem. `data["problems"]` has the first MAX_SHOWN problems. `data["file"]`
    and `data["line"]` come from the first problem that has a file.
    """
    other_count = len(problems) - 1
    message = f"{problems[0].message}{f' (and {other_count} more)' if other_count else ''}."
    located = next((problem for problem in problems if problem.file), None)
    location = {"file": located.file, "line": located.line} if located else {}
    first_problems = [problem.as_data() for problem in problems[:MAX_SHOWN]]
    values = {name: value for name, value in location.items() if value is not None}
    raise kind(message, hint=hint, problems=first_problems, **values)


def problems_of(error: SkilleryError) -> list[Problem]:
    """Return the problems that an error lists. If it has no list, its message is the only problem."""
    problem_list = error.data.get("problems")
    if not problem_list:
        return [Problem(error.message.rstrip("."))]
    return [msgspec.convert(entry, Problem) for entry in problem_list]
