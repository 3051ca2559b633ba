"""Points of a word by the field of a skill in which it occurs, similar words, and excerpts around found words."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import NamedTuple, Protocol

from skillery.formats.texts import normalized
from skillery.formats.words import FILLERS, Found, find_words_begun, is_of_characters, parse_words, spelt_words, stem_of

# -- Words similar to a misspelt word: three-letter pieces find the candidates, and a distance decides between them ----


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
    return list(dict.fromkeys(marked[start : start + 3] for start in range(len(marked) - 2)))


def stored_pieces(word: str) -> list[str]:
    """Return the keys under which a word is stored: WHOLE, for searches in alphabetical order, and its pieces."""
    return [WHOLE, *pieces_of(word)]


def is_known_spelling(word: str) -> bool:
    """Return whether a word of a text may be stored as a correct spelling."""
    return 2 <= len(word) <= MOST_LETTERS


def may_be_misspelt(word: str) -> bool:
    """Return whether a word may be corrected. Words with digits may not: 2024 is not a misspelt 2025. Pairs of Chinese
    characters have no similar words.
    """
    return LEAST_LETTERS <= len(word) <= MOST_LETTERS and word.isalpha() and not is_of_characters(word)


def mistakes_allowed(word: str) -> int:
    """Return how many letters of a word may be wrong."""
    return 2 if len(word) >= LONG_WORD else 1


def distance(left: str, right: str, most: int) -> int:
    """Return the optimal string alignment distance of two words, or `most + 1` if the distance is larger than `most`.

    One step adds, drops or replaces a letter, or swaps two adjacent letters. In a short word, a replaced letter counts
    as two steps.
    """
    if abs(len(left) - len(right)) > most:
        return most + 1
    replaced = 2 if len(left) <= SHORT_WORD else 1
    row_before: list[int] = []
    row = list(range(len(right) + 1))
    for left_number, letter in enumerate(left, 1):
        row_before, previous_row, row = row, row_before, [left_number]
        for right_number, other in enumerate(right, 1):
            cost = min(
                row_before[right_number] + 1, row[-1] + 1, row_before[right_number - 1] + replaced * (letter != other)
            )
            if (
                left_number > 1
                and right_number > 1
                and letter == right[right_number - 2]
                and left[left_number - 2] == other
            ):
                cost = min(cost, previous_row[right_number - 2] + 1)
            row.append(cost)
        if min(row) > most and (not row_before or min(row_before) > most):
            return most + 1
    return min(row[-1], most + 1)


IN_NAME = (16, 13, 11, 10)
"""Points of a word in the last segment of the name, if this segment has one, two, three, or at least four words.

A word in a short name says more about the skill: `pdf` is more about PDF than `pdf-to-word-converter`.
"""
IN_NAMESPACE = 4
EARLY, IN_DESCRIPTION = 6, 5
EARLY_WORDS = 12
"""Number of words at the start of a description that get EARLY points: they usually say the purpose of the skill."""
IN_TAGS = 3
IN_TEXT = 1
MOST_IMPACT = IN_NAME[0] + EARLY + IN_TAGS
MOST_DESCRIPTION_WORDS = 64
"""The maximum number of words that count as description. Further words count as words of the text."""
MOST_TAG_WORDS = 32
MAX_BODY = 32 * 1024
"""Number of characters of SKILL.md that are searched."""
LEAST_SHARE = 3
"""A result must match words that have at least a third (1 / LEAST_SHARE) of the total weight."""
_HYPHENATED = re.compile(r"[^\W\d_]{2,12}(?:-[^\W\d_]{2,12})+")


class Fields(NamedTuple):
    """The searched words of a skill: points of stems, known spellings, and stems without points."""

    impacts: dict[str, int]
    """Points from 1 to MOST_IMPACT for each stem in name, description and tags, and for each group of synonyms that
    they mention.
    """
    spellings: dict[str, str]
    """The stem of each word of name, description and tags, by spelling. Very short and very long words are omitted."""
    further: list[str]
    """Stems of the description that count as words of the text: fillers (*the*, *with*), and words over the limit."""


def search_fields(name: str, description: str, tags: Sequence[str]) -> Fields:
    """Return the searched words of a skill's name, description and tags. The text of SKILL.md is not included."""
    namespace, _, last_segment = name.rpartition(".")
    in_name = _with_joined(last_segment.replace("_", "-"))
    described = _with_joined(description)
    significant = [word for word in described if word not in FILLERS]
    described_words = significant[:MOST_DESCRIPTION_WORDS]
    further = [*(word for word in described if word in FILLERS), *significant[MOST_DESCRIPTION_WORDS:]]
    in_tags = _with_joined("\n".join(tags))[:MOST_TAG_WORDS]
    points = IN_NAME[min(len(spelt_words(last_segment.replace("_", "-"))), len(IN_NAME)) - 1]
    impacts: Counter[str] = Counter(dict.fromkeys(_stems(spelt_words(namespace)), IN_NAMESPACE))
    # `|` keeps the larger count: a word of both namespace and name gets the points of the name.
    impacts |= Counter(dict.fromkeys(_stems(in_name), points))
    impacts += Counter({stem: _described(place) for place, stem in reversed([*enumerate(_stems(described_words))])})
    impacts += Counter(dict.fromkeys(_stems(in_tags), IN_TAGS))
    impacts += Counter(_mentioned(last_segment.replace("_", "-"), description, tags, points))
    spelt = (*spelt_words(namespace), *in_name, *described_words, *in_tags)
    # Stems are stored as spellings too: a misspelt `brainstorm` is not similar enough to `brainstorming`.
    spellings = {
        spelling: stem_of(word) for word in spelt for spelling in (word, stem_of(word)) if is_known_spelling(spelling)
    }
    return Fields(dict(impacts), spellings, [stem for stem in _stems(further) if stem not in impacts])


def _mentioned(name: str, description: str, tags: Sequence[str], points: int) -> Mapping[str, int]:
    """Return the points of the groups of synonyms in name, description and tags."""
    impacts: Counter[str] = Counter(dict.fromkeys(_groups_in(name), points))
    described = _groups_in(description)
    impacts += Counter({key: _described(place) for key, place in described.items() if place < MOST_DESCRIPTION_WORDS})
    impacts += Counter(dict.fromkeys((key for tag in tags[:MOST_TAG_WORDS] for key in _groups_in(tag)), IN_TAGS))
    return impacts


def _groups_in(text: str) -> dict[str, int]:
    """Return the groups of synonyms in a text, with the place of the first word of each."""
    groups: dict[str, int] = {}
    for place, keys in enumerate(synonyms_in(_ordered(text))):
        for key in keys:
            groups.setdefault(key, place)
    return groups


def _ordered(text: str) -> list[str]:
    """Return the stems of a text in their order, with duplicates and without fillers."""
    return [stem_of(word) for word in parse_words(text) if word not in FILLERS]


# Synonyms: each group of words with one meaning has a key, which is a word of the index. A query looks for the keys of
# its words at half weight, so the number of synonyms does not matter for its speed.


def synonyms_in(stems: Sequence[str]) -> list[list[str]]:
    """Return the keys of the groups that each word belongs to, alone or as part of a phrase."""
    phrases = _phrases()
    keys: list[list[str]] = [[] for _ in stems]
    for start, stem in enumerate(stems):
        for phrase, key in phrases.get(stem, ()):
            if tuple(stems[start : start + len(phrase)]) == phrase:
                for place in range(start, start + len(phrase)):
                    if key not in keys[place]:
                        keys[place].append(key)
    return keys


@cache
def _phrases() -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """Return the phrases of synonyms.toml with the keys of their groups, by their first stem."""
    phrases: dict[str, list[tuple[tuple[str, ...], str]]] = defaultdict(list)
    for group in tomllib.loads(files("skillery.formats").joinpath("synonyms.toml").read_text("utf-8"))["groups"]:
        for entry in group:
            stems = tuple(_ordered(entry))
            # No word of a text begins with a tab.
            phrases[stems[0]].append((stems, f"\t{group[0]}"))
    return phrases


def _described(place: int) -> int:
    return EARLY if place < EARLY_WORDS else IN_DESCRIPTION


def _stems(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(stem_of, words)))


def _with_joined(text: str) -> list[str]:
    """Return the words of a text. Hyphenated words are added as one word too, so that `frontend` finds `front-end`."""
    joined_words = (
        word for hyphenated in _HYPHENATED.findall(text) for word in spelt_words(hyphenated.replace("-", ""))
    )
    return list(dict.fromkeys((*spelt_words(text), *joined_words)))


# Snippets: a short excerpt of a text around the searched words. The excerpt is plain text without the marks of
# Markdown, with « and » around each match.


LENGTH = 200
BEFORE = 40
MOST_LOOKED_AT = 50
OPEN, CLOSE = "«", "»"
# These marks in the stored text are replaced, so that every mark in a snippet is around a match.
_OTHERS = str.maketrans({OPEN: "‹", CLOSE: "›"})
# Marks at the start of a line, whole lines of marks, links and pictures, and marks within a line. `_` stays: names have
# it. No part of the pattern scans a text twice.
_MARKDOWN = re.compile(
    r"^[ \t]*(?:[#>]+[ \t]|[-*+][ \t]+(?:\[[ xX]\][ \t]+)?|(?:```|~~~)[^\n]*$|[-*_=|:][-*_=|: \t]*$)"
    r"|!?\[([^\[\]\n]*)\]\([^()\s]*\)|\*\*|`+|^\||\|$",
    re.MULTILINE,
)


class Term(Protocol):
    """A searched word. `matches` returns whether a stem matches. Every matching word begins with one of
    `beginnings`.
    """

    def matches(self, word: str) -> bool: ...

    def beginnings(self) -> Iterable[str]: ...


def snippet_of(texts: Iterable[str], terms: Sequence[Term]) -> str:
    """Return the best excerpt of the text in which the most terms match. Each match is between « and ».

    If no term matches, return the beginning of the first text.
    """
    best_excerpt, most_terms, first_text = "", 0, None
    for text in texts:
        printable_text = _printable(text)
        first_text = printable_text if first_text is None else first_text
        matches = list(islice(_matching(printable_text, terms), MOST_LOOKED_AT))
        start, count = _best_place(matches, terms)
        if count > most_terms:
            best_excerpt, most_terms = _marked(printable_text, matches, start), count
        if most_terms == len(terms):
            break
    return best_excerpt or _cut(first_text or "", 0, LENGTH)


def _matching(text: str, terms: Sequence[Term]) -> Iterator[Found]:
    words = find_words_begun(text, {beginning for term in terms for beginning in term.beginnings()})
    return (word for word in words if any(term.matches(word.word) for term in terms))


def _printable(text: str) -> str:
    """Return the text on one line, without characters that are not printable or would look like marks of matches."""
    line = " ".join(without_markdown(normalized("NFC", text).translate(_OTHERS)).split())
    return line if line.isprintable() else "".join(filter(str.isprintable, line))


def without_markdown(text: str) -> str:
    """Return a text without the marks of Markdown: the text of a link remains."""
    return _MARKDOWN.sub(lambda match: match[1] or "", text)


def _best_place(matches: Sequence[Found], terms: Sequence[Term]) -> tuple[int, int]:
    """Return the start of the excerpt that contains the most terms, and the number of these terms."""
    best = (0, 0)
    for at, first in enumerate(matches):
        near_words = [match.word for match in matches[at:] if match.end <= first.start + LENGTH - BEFORE]
        count = sum(any(term.matches(word) for word in near_words) for term in terms)
        if count > best[1]:
            best = (first.start, count)
    return best


def _marked(text: str, matches: Sequence[Found], start: int) -> str:
    """Return the excerpt that begins near `start`, with marks around the matches."""
    low = 0 if start <= BEFORE else text.find(" ", start - BEFORE, start) + 1 or start
    high = low + LENGTH
    parts, at = [], low
    for left, right in _joined((match.start, match.end) for match in matches):
        if low <= left and right <= high:
            parts += [text[at:left], OPEN, text[left:right], CLOSE]
            at = right
    return ("… " if low else "") + "".join(parts) + _cut(text, at, high)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans, in their order, with those that overlap joined: pairs of Chinese characters do."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _cut(text: str, low: int, high: int) -> str:
    """Return `text[low:high]`, cut after a whole word if possible, with ` …` if the text continues."""
    if high >= len(text):
        return text[low:]
    space = text.rfind(" ", low, high)
    return text[low : space if space >= 0 else high] + " …"
