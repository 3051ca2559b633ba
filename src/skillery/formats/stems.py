"""Stems of English words: `deploying`, `deploys` and `deployed` have the stem `deploy` (Snowball's Porter 2
stemmer).
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache

import snowballstemmer

_KEPT = 65_536
"""The number of cached stems: the stemmer takes 20 µs for a word, and texts have most words in common."""
_ENGLISH = re.compile("[a-z]{3,64}")
# British spellings that differ from American ones: organise, summarising, colour, behaviour.
_ISE = re.compile("(?<=[a-z]{3})is(e|ed|es|er|ers|ing|ation|ations)$")
_YSE = re.compile("(?<=anal)ys(e|ed|er|ers|ing)$")
_OUR = re.compile("(?<=[a-z]{3})our(s|ed|ing|al|ful)?$")


# Plurals of abbreviations (pdfs, csvs): the stemmer does not handle them, because they have no vowels.
_PLURAL = re.compile("[^aeiouy]{3,}(?<!s)s")
_SAME = {"analysi": "analyz"}
"""Stems of nouns, mapped to the stems of their verbs if the two differ."""


class _Stemmer(threading.local):
    """Holds a separate stemmer for each thread, because a stemmer stores the current word in itself."""

    def __init__(self) -> None:
        self.stem = snowballstemmer.stemmer("english").stemWord


_stemmer = _Stemmer()


@lru_cache(_KEPT)
def stem_of(word: str) -> str:
    """Return the stem of a word in lower case. A word that is not 3 to 64 letters `a` to `z` is returned unchanged."""
    if not _ENGLISH.fullmatch(word):
        return word
    if _PLURAL.fullmatch(word):
        return word[:-1]
    american = _OUR.sub(r"or\1", _YSE.sub(r"yz\1", _ISE.sub(r"iz\1", word)))
    stem: str = _stemmer.stem(american)
    return _SAME.get(stem, stem)
