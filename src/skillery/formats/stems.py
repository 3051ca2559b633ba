"""English words as stems: `deploying`, `deploys` and `deployed` are `deploy` (Snowball's English stemmer, Porter 2)."""

from __future__ import annotations

import re
import threading
from functools import lru_cache

import snowballstemmer

_KEPT = 65_536
"""Number of cached stems: the stemmer takes 20 µs, and texts share most of their words."""
_ENGLISH = re.compile("[a-z]{3,64}")
# British spellings that differ from American ones: organise, summarising, colour, behaviour.
_ISE = re.compile("(?<=[a-z]{3})is(e|ed|es|er|ers|ing|ation|ations)$")
_YSE = re.compile("(?<=anal)ys(e|ed|er|ers|ing)$")
_OUR = re.compile("(?<=[a-z]{3})our(s|ed|ing|al|ful)?$")


# Plurals of abbreviations, which have no vowels that the stemmer could use: pdfs, csvs.
_PLURAL = re.compile("[^aeiouy]{3,}(?<!s)s")
_SAME = {"analysi": "analyz"}
"""Stems of nouns, mapped to the stem of their verb where it differs."""


class _Stemmer(threading.local):
    """Holds one stemmer for each thread, because a stemmer keeps the current word as its state."""

    def __init__(self) -> None:
        self.stem = snowballstemmer.stemmer("english").stemWord


_stemmer = _Stemmer()


@lru_cache(_KEPT)
def stem_of(word: str) -> str:
    """Return the stem of a word in lower case. Words with characters outside `a` to `z` are their own stems."""
    if not _ENGLISH.fullmatch(word):
        return word
    if _PLURAL.fullmatch(word):
        return word[:-1]
    american = _OUR.sub(r"or\1", _YSE.sub(r"yz\1", _ISE.sub(r"iz\1", word)))
    stem: str = _stemmer.stem(american)
    return _SAME.get(stem, stem)
