"""The words of a text for searching. The databases do not split words, so SQLite and Postgres find the same results.

A word is a sequence of letters and digits, in lower case and without accents. English words are stored as their stems.
In Chinese and Japanese, each pair of adjacent characters is a word, and each character too.
"""

from __future__ import annotations

import re
import sys
import threading
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import snowballstemmer

from skillery.errors import InvalidParams
from skillery.formats.texts import normalized

# Stems of English words: `deploying`, `deploys` and `deployed` have the stem `deploy` (Snowball's Porter 2
# stemmer).


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
    """Has one stemmer for each thread, because a stemmer stores its current word."""

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


MAX_WORD = 64
"""The number of characters of a word that count. The rest is cut off."""
MAX_QUERY = 2000
MAX_QUERY_WORDS = 16

# Characters of Chinese and Japanese. These do not put spaces between words.
_ALONE = "\u3040-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Marks that belong to the letter before them: accents, and the vowel signs of Indic and related scripts.
_MARKS = "\u0300-\u036f\u0900-\u0dff\u0e00-\u0fff"
_WORD = re.compile(rf"[{_ALONE}]+|(?:(?![{_ALONE}])[^\W_][{_MARKS}]*)+")
_ASCII_WORD = re.compile("[A-Za-z0-9]+")
"""Matches a word of an ASCII text. Gives the same result as `_WORD`, but is faster."""
_RUN = re.compile(rf"[{_ALONE}]")
_ACCENT = re.compile("[\u0300-\u036f]")
# These words are removed from queries ("how do I profile a csv"), unless a query has no other words.
FILLERS = frozenset(
    """a about above after again against all also am an and another any anything are as at be because been before being
    below between both but by can could did do does doing don down during each every everyone everything few for from
    further get give had has have having he help her here hers herself him himself his how i if in into is it its
    itself just know like ll many me more most much my myself need no nor not now of off on once only or other our ours
    ourselves out over own per please s same she should since so some somebody someone something such t than that the
    their theirs them themselves then there these they this those through to too under until up us use used using ve
    very via want was we were what when where whether which while who whom why will with within without would you your
    yours yourself yourselves""".split()  # noqa: SIM905
)


class Found(NamedTuple):
    """A word of a text, and its position."""

    start: int
    end: int
    word: str
    """The stem of the word."""


class Term(msgspec.Struct, frozen=True):
    """A word of a query."""

    word: str
    """The stem of the word."""
    spelt: str
    """The word as typed, in lower case and without accents."""
    is_last: bool = False
    """True for the last word of a query, which may be unfinished."""

    def matches(self, word: str) -> bool:
        return word == self.word or (self.is_last and word.startswith(self.spelt))

    def beginnings(self) -> list[str]:
        """Return the letters with which a matching word begins."""
        return [beginning_of(self.word), *([self.spelt] if self.is_last else [])]


def find_words(text: str, low: int = 0, high: int = sys.maxsize) -> Iterator[Found]:
    """Yield every word of `text[low:high]` with its position. The text is in Unicode form NFC."""
    for match in _WORD.finditer(text, low, high):
        for start, end in _cuts(match):
            if word := _plain(text[start:end]):
                yield Found(start, end, stem_of(word))


def _cuts(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the words in a match of `_WORD`: a run of Chinese has several, which overlap."""
    start, end = match.span()
    if end - start == 1 or not _RUN.match(match[0]):
        yield start, end
        return
    for at in range(start, end):
        if at + 2 <= end:
            yield at, at + 2
        yield at, at + 1


def is_of_characters(word: str) -> bool:
    """Return whether a word is of Chinese or Japanese characters."""
    return _RUN.match(word) is not None


def find_words_begun(text: str, beginnings: Iterable[str]) -> Iterator[Found]:
    """Yield at least the words of a line that begin with one of `beginnings`: the caller checks each word.

    Only parts of the line (between spaces) that contain a beginning, or a character that is not ASCII, are split into
    words. This is much faster than finding all words of the line.
    """
    lowered = text.lower()
    if len(lowered) != len(text):
        yield from find_words(text)
        return
    candidate = re.compile("|".join(["[^\\x00-\\x7f]", *sorted(map(re.escape, beginnings))]))
    end = 0
    while match := candidate.search(lowered, end):
        start = text.rfind(" ", end, match.start()) + 1 or end
        end = text.find(" ", match.end())
        end = len(text) if end < 0 else end
        yield from find_words(text, start, end)


def spelt_words(text: str) -> list[str]:
    """Return the words of a text in their order, in lower case, without accents and duplicates. Single characters of
    Chinese and Japanese are last.
    """
    text = normalized("NFC", text)
    # Each spelling is processed once; an ASCII text is ten times as fast.
    if text.isascii():
        return list(dict.fromkeys(map(_plain, dict.fromkeys(_ASCII_WORD.findall(text)))))
    matches = dict.fromkeys(_WORD.findall(text))
    spelt = dict.fromkeys(part for each in matches for part in _pairs(each))
    spelt |= dict.fromkeys(character for each in matches if _RUN.match(each) for character in each)
    return list(dict.fromkeys(word for each in spelt if (word := _plain(each))))


def _pairs(word: str) -> list[str]:
    """Return the pairs of adjacent characters of a run of Chinese or Japanese. Any other word is returned whole."""
    if len(word) < 2 or not _RUN.match(word):
        return [word]
    return [word[at : at + 2] for at in range(len(word) - 1)]


def words_of(text: str) -> list[str]:
    """Return the stems of the words of a text in their order, without duplicates."""
    return list(dict.fromkeys(map(stem_of, spelt_words(text))))


class Query(NamedTuple):
    """The words of a query, without frequent words such as "the"."""

    terms: tuple[Term, ...]
    """The words that are searched for, each stem once. () if the query has no word."""
    warnings: list[str]
    """What was cut off."""


def parse_query(text: str) -> Query:
    """Return the words of a query. A query has no operators. Of a long query, only the start is searched for.

    Raise InvalidParams if the query contains a NUL.
    """
    if "\0" in text:
        raise InvalidParams("'query' contains a NUL character", hint="Write some words.", param="query")
    is_cut = len(text) > MAX_QUERY
    raw = parse_words(text[:MAX_QUERY])
    last_word = raw[-1] if raw else ""
    words = [word for word in dict.fromkeys(raw) if word not in FILLERS] or list(dict.fromkeys(raw))
    is_cut = is_cut or len(words) > MAX_QUERY_WORDS
    words = words[:MAX_QUERY_WORDS]
    terms = {stem_of(word): Term(stem_of(word), word, word == last_word) for word in words}
    warning = f"The query was cut after its first {len(words)} significant words. Fewer words find more."
    return Query(tuple(terms.values()), [warning] if is_cut else [])


def parse_words(text: str) -> list[str]:
    """Return the words of a text in their order, with duplicates, in lower case and without accents. Of Chinese, return
    pairs of characters.
    """
    parts = (part for each in _WORD.findall(normalized("NFC", text)) for part in _pairs(each))
    return [word for part in parts if (word := _plain(part))]


def beginning_of(stem: str) -> str:
    """Return the letters with which all words of this stem begin.

    The result may be shorter than the stem: `analyz` is also the stem of `analysis`.
    """
    return stem[: max(2, len(stem) - 2)]


def _plain(word: str) -> str:
    if not word.isascii():
        word = _ACCENT.sub("", normalized("NFKD", word)).casefold()
        # Decomposition can add a space or a sign, which would split the word in an index.
        word = "".join(filter(_belongs, word))
    return word[:MAX_WORD].lower()


def _belongs(character: str) -> bool:
    """Return whether a character is a part of a word: a letter, a digit or a mark."""
    return character.isalnum() or unicodedata.category(character)[0] == "M"


# -- The words of hints. Errors name methods, in the words of JSON-RPC. The shell and MCP replace them by their own ----


COMMANDS = {
    "add_trust_rule": "skillery trust add",
    "add_webhook": "skillery webhook add",
    "approve_version": "skillery approve",
    "call_tool": "skillery tool call",
    "cancel_run": "skillery runs cancel",
    "check_skill": "skillery publish --dry-run",
    "collect_garbage": "skillery gc",
    "create_blob or POST /blobs": "skillery blob put",
    "create_blob": "skillery blob put",
    "create_skill": "skillery publish",
    "create_token": "skillery token create",
    "create_workspace with 'from'": "skillery workspace fork",
    "create_workspace": "skillery workspace create",
    "define_tool": "skillery tool define",
    "delete_blob": "skillery blob rm",
    "delete_workspace": "skillery workspace delete",
    "deprecate_skill": "skillery deprecate",
    "describe_environment": "skillery env show",
    "describe_skill with detail 'full'": "skillery describe --detail full",
    "describe_skill": "skillery describe",
    "describe_workspace": "skillery workspace files",
    "diff_versions": "skillery diff",
    "execute_skill": "skillery run",
    "get_run": "skillery runs show",
    "get_usage": "skillery quota",
    "list_audit": "skillery audit list",
    "list_dead_letters": "skillery webhook dead",
    "list_environments": "skillery env list",
    "list_holds": "skillery hold list",
    "list_labels": "skillery label list --history",
    "list_runs": "skillery runs list",
    "list_skill_usage": "skillery usage",
    "list_skills": "skillery list",
    "list_tokens": "skillery token list",
    "list_tools": "skillery tool list",
    "list_trust_rules": "skillery trust list",
    "list_versions": "skillery versions",
    "list_waivers": "skillery waiver list",
    "list_webhooks": "skillery webhook list",
    "list_workspaces": "skillery workspace list",
    "POST /blobs": "skillery blob put",
    "purge_version": "skillery purge",
    "read_blob": "skillery blob get",
    "read_run_log": "skillery runs logs",
    "read_skill_file": "skillery read",
    "read_workspace_file": "skillery workspace get",
    "rebuild_environment": "skillery env rebuild",
    "reject_version": "skillery reject",
    "remove_label": "skillery label rm",
    "remove_tool": "skillery tool remove",
    "remove_trust_rule": "skillery trust rm",
    "remove_webhook": "skillery webhook rm",
    "reset_workspace": "skillery workspace reset",
    "resolve_skills": "skillery lock",
    "revoke_identity": "skillery offboard",
    "revoke_token": "skillery token revoke",
    "revoke_waiver": "skillery waiver rm",
    "rollback_label": "skillery label rollback",
    "run_code": "skillery code",
    "search_skills": "skillery search",
    "set_label": "skillery label set",
    "set_visibility": "skillery visibility",
    "submit_version": "skillery submit",
    "test_webhook": "skillery webhook test",
    "undeprecate_skill": "skillery undeprecate",
    "unyank_version": "skillery unyank",
    "verify_lock": "skillery lock --check",
    "waive_finding": "skillery waiver add",
    "yank_version": "skillery yank",
}
"""The command for a method, or for a phrase with a method."""
_PHRASES = re.compile(rf"(?<![\w./'])(?:{'|'.join(map(re.escape, sorted(COMMANDS, key=len, reverse=True)))})(?!\w)")
MOUNT = re.compile(r"mount_skills=\['([^']+)'\]")
"""The param of run_code in a message, and the name of its skill: `--mount NAME` in the shell."""
_SENTENCE = re.compile(r"(?<=[.!?]) +")
_TOOLS_OF = {"create_blob or POST /blobs": "create_blob", "POST /blobs": "create_blob"}


def words_of_shell(text: str) -> str:
    """Return the hint with shell commands instead of method names: list_skills becomes `skillery list`."""
    return _PHRASES.sub(lambda match: f"`{COMMANDS[match[0]]}`", MOUNT.sub(r"--mount \1", text))


def words_of_tools(text: str, tools: Collection[str]) -> str:
    """Return the hint for a model that has only these tools. Sentences that name other methods are left out: return ""
    if none remains.
    """
    replaced = re.sub("|".join(_TOOLS_OF), lambda match: _TOOLS_OF[match[0]], text)
    return " ".join(part for part in _SENTENCE.split(replaced) if _methods_in(part) <= set(tools))


def error_for_tools(error: dict[str, Any], tools: Collection[str]) -> dict[str, Any]:
    """Return the error object with its hint for a model that has only these tools, or without a hint."""
    data = error.get("data")
    if not isinstance(data, dict) or "hint" not in data:
        return error
    data_without_hint = {name: value for name, value in data.items() if name != "hint"}
    hint = words_of_tools(str(data["hint"]), tools)
    return {**error, "data": {**data_without_hint, "hint": hint} if hint else data_without_hint}


def _methods_in(text: str) -> set[str]:
    return {match[0].split(" ")[0] for match in _PHRASES.finditer(text)}
