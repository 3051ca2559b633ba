"""Values as pages show them: numbers, sizes, times, and foreign texts with their hidden characters made visible."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup, escape

from skillery.formats.wording import HIDDEN, styles_emoji

_SIZES = ("B", "kB", "MB", "GB", "TB")
_STEPS = ((60, "second"), (60, "minute"), (24, "hour"), (7, "day"), (4.348, "week"), (12, "month"), (1e9, "year"))
LONG_TEXT = 200
"""The maximum length of a text in a list. A longer one is cut in the middle, and its `title` is the whole text."""


class Language(NamedTuple):
    """The separators in numbers of a language: of groups of digits, and of decimals."""

    group: str
    decimal: str


ENGLISH = Language(",", ".")
_LANGUAGES = {
    **dict.fromkeys(("de", "nl", "es", "it", "pt", "da", "id", "tr", "el"), Language(".", ",")),
    **dict.fromkeys(("fr", "pl", "cs", "sv", "nb", "fi", "ru", "uk"), Language("\u202f", ",")),
}


def language_of(accepted: str) -> Language:
    """Return the separators of the reader's language. `accepted` is the header Accept-Language."""
    first = accepted.partition(",")[0].partition(";")[0].strip().lower().partition("-")[0]
    return _LANGUAGES.get(first, ENGLISH)


def number(value: float, language: Language = ENGLISH, digits: int = 0) -> str:
    """Return a number with separators, for example 18,204 in English or 18.204 in German."""
    text = f"{value:,.{digits}f}"
    if language is ENGLISH:
        return text
    return text.translate({ord(","): language.group, ord("."): language.decimal})


def counted(value: float, word: str, language: Language = ENGLISH, plural: str = "") -> str:
    """Return a number with its noun, for example "1 file" or "1,204 files". `plural` is an irregular plural."""
    text = number(value, language, 0 if value == int(value) else 1)
    return f"{text} {word if value == 1 else plural or f'{word}s'}"


def size(value: float, language: Language = ENGLISH) -> str:
    """Return a number of bytes with a decimal unit, for example 4.2 MB."""
    unit = 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value /= 1000
        unit += 1
    digits = 1 if unit and value < 9.95 else 0
    return f"{number(value, language, digits)}\u00a0{_SIZES[unit]}"


def duration(milliseconds: float, language: Language = ENGLISH) -> str:
    """Return a duration with a unit, for example 180 ms, 4.2 s or 3 min 5 s."""
    if 0 < milliseconds < 0.5:
        return "under 1\u00a0ms"
    if milliseconds < 1000:
        return f"{number(milliseconds, language)}\u00a0ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{number(seconds, language, 0 if seconds == int(seconds) else 1)}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s"
    return f"{number(minutes // 60, language)}\u00a0h {minutes % 60}\u00a0min"


LIMITS = {
    "memory_mb": ("MiB of memory", "MiB of memory"),
    "cpus": ("processor", "processors"),
    "processes": ("process", "processes"),
    "disk_mb": ("MiB of files in /workspace", "MiB of files in /workspace"),
    "timeout_ms": ("", ""),
}
"""The words of the limits of runs, for one and for several."""


def limit_in_words(name: str, value: float, language: Language = ENGLISH) -> str:
    """Return a limit of runs with its words, for example "256 MiB of memory"."""
    if name == "timeout_ms":
        return duration(value, language)
    word, plural = LIMITS[name]
    return counted(value, word, language, plural)


def time_of(value: Any) -> datetime | None:
    """Return a time in UTC. `value` is a datetime, text in RFC 3339, or None."""
    if value is None or isinstance(value, datetime):
        return value
    return datetime.fromisoformat(str(value)).astimezone(UTC)


def ago(value: Any, now: datetime | None = None) -> str:
    """Return a time relative to `now`, for example "3 days ago" or "in 2 hours". "" for None."""
    when = time_of(value)
    if when is None:
        return ""
    age = ((now or datetime.now(UTC)) - when).total_seconds()
    seconds, is_past = abs(age), age >= 0
    if seconds < 45:
        return "just now" if is_past else "in a moment"
    amount = seconds
    unit = "second"
    for factor, name in _STEPS:
        unit = name
        if amount < factor * 0.95:
            break
        amount /= factor
    count = max(1, round(amount))
    words = f"{count} {unit}{'' if count == 1 else 's'}"
    if unit == "day" and count == 1:
        return "yesterday" if is_past else "tomorrow"
    return f"{words} ago" if is_past else f"in {words}"


def time_tag(value: Any) -> Markup:
    """Return a `<time>` element. A script of the page shows the time in the reader's time zone."""
    when = time_of(value)
    if when is None:
        return Markup("")
    exact = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    title = when.strftime("%-d %b %Y, %H:%M UTC")
    return Markup(f'<time datetime="{exact}" title="{title}">{ago(when)}</time>')  # noqa: S704 - digits and our words


_HIDDEN = re.compile(HIDDEN)
_FIRST_WORDS = frozenset(("a", "an", "another", "no", "only", "the", "there", "this", "too", "you", "your"))
_JOINERS = frozenset("\u200c\u200d")


def without_hidden(text: str) -> str:
    """Return a text in which a sign replaces each hidden character, for places that cannot have boxes."""
    return _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def replaced(
    text: str,
    matches: Iterable[re.Match[str]],
    replacement: Callable[[re.Match[str]], Markup],
    shown: Callable[[str], Markup],
) -> Markup:
    """Return a text as HTML with each match replaced. `shown` returns the HTML of the text between the matches."""
    parts: list[Markup] = []
    end = 0
    for match in matches:
        parts += [shown(text[end : match.start()]), replacement(match)]
        end = match.end()
    return Markup("").join([*parts, shown(text[end:])])


def visible(text: Any, *, is_code: bool = False) -> Markup:
    """Return a text as HTML with each hidden character as a box with its code.

    Joiners between letters of scripts that need them, and variation selectors of emoji, are not boxed. With `is_code`,
    no-break spaces are boxed too.
    """
    plain = str(text)
    # A page shows hundreds of texts, and nearly all of them have no hidden character.
    hidden = (match for match in _HIDDEN.finditer(plain) if not _is_needed(match))
    shown = replaced(plain, hidden, lambda match: boxed(match[0]), escape) if _HIDDEN.search(plain) else escape(plain)
    return shown.replace("\xa0", boxed("\xa0")) if is_code and "\xa0" in plain else shown


_WORD = re.compile(r"[^\W_]+")
_LATIN = re.compile("[A-Za-z]")
# Cyrillic, Armenian, Cherokee, and the Greek letters that look like Latin ones.
_ALIKE = re.compile("[\u0400-\u058f\u13a0-\u13ff\uab70-\uabbfΑΒΕΖΗΙΚΜΝΟΡΤΥΧανορυχ]")


def marked(text: str, *, is_code: bool = False) -> Markup:
    """Return a text as HTML. Words that mix Latin letters with letters that look like them have a mark."""
    if text.isascii() or not _ALIKE.search(text):
        return visible(text, is_code=is_code)
    mixed = (word for word in _WORD.finditer(text) if _LATIN.search(word[0]) and _ALIKE.search(word[0]))
    mark = Markup('<span class="mixed" title="Letters of several alphabets">{}</span>')
    return replaced(text, mixed, lambda word: mark.format(visible(word[0])), partial(visible, is_code=is_code))


def sentence(message: str) -> Markup:
    """Return the message of an error as a sentence, with a capital letter and a full stop."""
    first, space, rest = message.partition(" ")
    # The first word may also be a name, which stays as it is.
    shown = f"{first.capitalize()}{space}{rest}" if first in _FIRST_WORDS else message
    return visible(shown if shown.endswith((".", "!", "?")) else f"{shown}.")


def boxed(char: str) -> Markup:
    """Return a box with the code of a hidden character."""
    name = unicodedata.name(char, "control character").lower()
    return Markup('<span class="hidden-char" title="{}">U+{:04X}</span>').format(name, ord(char))


def _is_needed(match: re.Match[str]) -> bool:
    """Return whether the matched character changes the letters or the emoji next to it, so it hides no text."""
    text, position = match.string, match.start()
    return (match[0] in _JOINERS and _joins(text, position)) or styles_emoji(text, position)


def _joins(text: str, position: int) -> bool:
    """Return whether the character at `position` is between letters of a script with joined letters, or in an emoji."""
    around = text[max(0, position - 1) : position] + text[position + 1 : position + 2]
    return len(around) == 2 and all(
        "\u0600" <= char <= "\u08ff"
        or "\u0900" <= char <= "\u0dff"
        or char == "\ufe0f"
        or "\u2600" <= char <= "\u27bf"
        or ord(char) >= 0x1F300
        for char in around
    )


def foreign(text: Any, longest: int = LONG_TEXT) -> Markup:
    """Return a text of another person as HTML. The direction of its script does not affect the page.

    A text over `longest` characters is cut in the middle.
    """
    plain = str(text)
    if len(plain) <= longest:
        return Markup(f'<bdi class="foreign">{visible(plain)}</bdi>')  # noqa: S704 - `visible` escapes the text
    half = longest // 2
    short = f"{plain[:half]}…{plain[-half:]}"
    return Markup('<bdi class="foreign" title="{}">{}</bdi>').format(plain[:2000], visible(short))


def short_digest(digest: str) -> str:
    """Return a digest with only the first 8 and the last 4 of its hexadecimal digits."""
    kind, colon, digits = digest.partition(":")
    return f"{kind}{colon}{digits[:8]}…{digits[-4:]}" if colon and len(digits) > 16 else digest


_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")


def address_of_contact(contact: str, subject: str) -> str:
    """Return the web address of a contact, or the address of a mail with a subject. Return "" for other words."""
    if _EMAIL.fullmatch(contact.removeprefix("mailto:")):
        return f"mailto:{quote(contact.removeprefix('mailto:'), safe='@')}?subject={quote(subject)}"
    return contact if re.fullmatch(r"https://[^\s/?#@]+(?:[/?#]\S*)?", contact) else ""


_SKILL = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)+(?:@[0-9A-Za-z.+-]+)?")
_RUN = re.compile(r"run_[0-9a-z]+")


def address_of_subject(subject: str) -> str:
    """Return the path of the page about the subject of an audit entry: a skill, a version or a run. Else return ""."""
    if _RUN.fullmatch(subject):
        return f"/runs/{subject}"
    return f"/s/{subject}" if _SKILL.fullmatch(subject) else ""


_GLYPH_COLOURS = 6


def glyph(name: str) -> Markup:
    """Return the picture of a skill: two letters of its name, in a colour of its namespace. A method gets braces."""
    first, *others = name.split(".")
    letters = f"{first[:1]}{others[-1][:1]}".upper() if others else "{ }"
    colour = zlib.crc32(first.encode()) % _GLYPH_COLOURS if others else "-code"
    return Markup(
        '<svg class="glyph g{}" viewBox="0 0 28 28" aria-hidden="true"><rect width="28" height="28" rx="7"/>'
        '<text x="14" y="18.5">{}</text></svg>'
    ).format(colour, letters)
