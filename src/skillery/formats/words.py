"""Texts as words, for searching: the same on every database, because no database is asked what a word is.

A word is a run of letters and digits without accents and in lower case; an English plural is its singular. Scripts
without spaces between words (Chinese, Japanese) count each character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from skillery.errors import InvalidParams
from skillery.formats.normal_forms import normalized

MAX_WORD = 64
"""Characters of a word that count."""
MAX_QUERY = 200
MAX_QUERY_WORDS = 16
MIN_PREFIX = 2
"""Characters that the last word of a query needs to stand for what begins with it."""

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Marks that belong to the letter before them: accents, and the vowel signs of India and its neighbours.
_MARKS = "\u0300-\u036f\u0900-\u0dff\u0e00-\u0fff"
_WORD = re.compile(rf"[{_ALONE}]|(?:(?![{_ALONE}])[^\W_][{_MARKS}]*)+")
_ASCII_WORD = re.compile("[A-Za-z0-9]+")
"""The same, for a text of ASCII."""
_ACCENT = re.compile("[\u0300-\u036f]")
# Left out of questions, unless there is nothing else: "how to profile a csv".
_FILLERS = frozenset(
    """a an and are as at be by can do for from how i in is it my of on or that the this to with""".split()  # noqa: SIM905
)


class Found(NamedTuple):
    """A word of a text, and where it stands."""

    start: int
    end: int
    word: str


class Term(msgspec.Struct, frozen=True):
    """A word that must be there; with a prefix, one that begins with it will do."""

    word: str
    prefix: str | None = None

    def matches(self, word: str) -> bool:
        return word == self.word or (self.prefix is not None and word.startswith(self.prefix))


def find_words(text: str) -> Iterator[Found]:
    """Every word of a text in Unicode's form NFC, with its place."""
    for match in _WORD.finditer(text):
        word = _singular(_plain(match[0]))
        if word:
            yield Found(match.start(), match.end(), word)


def words_of(text: str) -> list[str]:
    """The words of a text, each once."""
    text = normalized("NFC", text)
    # Each spelling is looked at once; and where there is nothing but ASCII, ten times as fast.
    spelt = dict.fromkeys((_ASCII_WORD if text.isascii() else _WORD).findall(text))
    return list(dict.fromkeys(word for each in spelt if (word := _singular(_plain(each)))))


def parse_query(text: str) -> tuple[Term, ...]:
    """What all must be found; the last word may be unfinished. () where there is no word in it.

    Raises InvalidParams for a NUL, and for a query that is too long. Nothing in it is an operator.
    """
    if "\0" in text:
        raise InvalidParams("'query' holds a NUL", hint="Write some words.", param="query")
    if len(text) > MAX_QUERY:
        raise InvalidParams(
            f"'query' has {len(text)} characters, at most {MAX_QUERY} are allowed",
            hint="Write the few words that matter.",
            param="query",
        )
    raw = [_plain(match[0]) for match in _WORD.finditer(normalized("NFC", text))]
    raw = [word for word in raw if word]
    if not raw:
        return ()
    last = raw.pop()
    asked = [word for word in dict.fromkeys(raw) if word not in _FILLERS]
    if len(asked) >= MAX_QUERY_WORDS:
        raise InvalidParams(
            f"'query' has {len(asked) + 1} words, at most {MAX_QUERY_WORDS} are allowed",
            hint="Write the few words that matter.",
            param="query",
        )
    terms = [Term(_singular(word)) for word in asked]
    terms.append(Term(_singular(last), last if len(last) >= MIN_PREFIX else None))
    return tuple(dict.fromkeys(terms))


def _plain(word: str) -> str:
    if not word.isascii():
        word = _ACCENT.sub("", normalized("NFKD", word)).casefold()
        # What decomposing has brought, a space or a sign, would part the word in an index.
        word = "".join(filter(_belongs, word))
    return word[:MAX_WORD].lower()


def _belongs(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character)[0] == "M"


def _singular(word: str) -> str:
    """Without the ending of an English plural: the weakest of stemmers, which hardly ever joins what is apart
    (D. Harman, "How effective is suffixing?", 1991)."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us")):
        return word
    if word.endswith("ies"):
        return word if word.endswith(("eies", "aies")) else word[:-3] + "y"
    return word[:-1]
