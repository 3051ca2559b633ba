"""Points of a word in the search, by the field that contains the word: name, description, tags or text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skillery.formats.spellings import is_known_spelling
from skillery.formats.stems import stem_of
from skillery.formats.words import FILLERS, spelt_words

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
    impacts: dict[str, int]
    """Points from 1 to MOST_IMPACT for each stem in name, description and tags."""
    spellings: dict[str, str]
    """The stem of each word of name, description and tags, by spelling. Very short and very long words are omitted."""
    further: list[str]
    """Stems of the description that count as words of the text: fillers (*the*, *with*), and words over the limit."""


def search_fields(name: str, description: str, tags: Sequence[str]) -> Fields:
    """Return the searched words of a skill's name, description and tags. The text of SKILL.md is not included."""
    above, _, last = name.rpartition(".")
    in_name = _with_joined(last.replace("_", "-"))
    described = _with_joined(description)
    significant = [word for word in described if word not in FILLERS]
    described_words = significant[:MOST_DESCRIPTION_WORDS]
    further = [*(word for word in described if word in FILLERS), *significant[MOST_DESCRIPTION_WORDS:]]
    in_tags = _with_joined("\n".join(tags))[:MOST_TAG_WORDS]
    points = IN_NAME[min(len(spelt_words(last.replace("_", "-"))), len(IN_NAME)) - 1]
    impacts: Counter[str] = Counter(dict.fromkeys(_stems(spelt_words(above)), IN_NAMESPACE))
    # `|` keeps the larger count: a word of both namespace and name gets the points of the name.
    impacts |= Counter(dict.fromkeys(_stems(in_name), points))
    impacts += Counter({stem: _described(place) for place, stem in reversed([*enumerate(_stems(described_words))])})
    impacts += Counter(dict.fromkeys(_stems(in_tags), IN_TAGS))
    spelt = (*spelt_words(above), *in_name, *described_words, *in_tags)
    # Stems are stored as spellings too: a misspelt `brainstorm` is not similar enough to `brainstorming`.
    spellings = {each: stem_of(word) for word in spelt for each in (word, stem_of(word)) if is_known_spelling(each)}
    return Fields(dict(impacts), spellings, [stem for stem in _stems(further) if stem not in impacts])


def _described(place: int) -> int:
    return EARLY if place < EARLY_WORDS else IN_DESCRIPTION


def _stems(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(stem_of, words)))


def _with_joined(text: str) -> list[str]:
    """Return the words of a text. Hyphenated words are added as one word too, so that `frontend` finds `front-end`."""
    joined = (word for each in _HYPHENATED.findall(text) for word in spelt_words(each.replace("-", "")))
    return list(dict.fromkeys((*spelt_words(text), *joined)))
