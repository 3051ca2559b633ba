"""Where personal data stands in a text. What has a check digit is only found if that is right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

IBAN_LENGTHS: dict[str, int] = json.loads(
    (Path(__file__).parents[1] / "resources" / "iban_lengths.json").read_text(encoding="utf-8")
)

LONGEST = 640
"""No finding is longer than this many characters."""


class Finding(NamedTuple):
    start: int
    end: int
    kind: str
    value: str
    """As compared with others: two spellings of one card have one value."""


_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%'-]{1,64}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]){11,30}", re.IGNORECASE)
_DIGITS = re.compile(r"(?<![\w.])[0-9](?:[ -]?[0-9]){12,60}(?![\w])")
_IP = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\.?\w)")
_PHONES = (
    # +49 30 1234567, 0033 1 23 45 67 89, +1 (555) 010-0199
    re.compile(r"(?<![\w+.])(?:\+|00)[1-9](?:[ ().\u00a0/-]{0,3}[0-9]){6,14}(?![\w])"),
    # (555) 010-0199, 555-010-0199, 555.010.0199
    re.compile(r"(?<![\w.-])(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[-. ])[0-9]{3}[-. ][0-9]{4}(?![\w-])"),
    # 030 1234567, (030) 123 45 67, 0170/1234567
    re.compile(
        r"(?<![\w.-])(?:\(0[1-9][0-9]{1,4}\)|0[1-9][0-9]{1,4})[ /-]{1,2}[0-9]{2,8}(?:[ -][0-9]{2,6}){0,3}(?![\w-])"
    ),
)


def _emails(text: str) -> Iterator[Finding]:
    for match in _EMAIL.finditer(text):
        yield Finding(match.start(), match.end(), "email", match[0].lower())


def _ibans(text: str) -> Iterator[Finding]:
    at = 0
    while match := _IBAN.search(text, at):
        end = _iban_end(text, match)
        if end:
            value = _compact(text[match.start() : end])
            yield Finding(match.start(), end, "iban", value)
        at = end or match.start() + 4


def _iban_end(text: str, match: re.Match[str]) -> int:
    """Past the last character of the IBAN that starts here; 0 if none does. A word may follow it after a space."""
    length = IBAN_LENGTHS.get(match[0][:2].upper(), 0)
    places = [place for place in range(match.start(), match.end()) if text[place].isalnum()][:length]
    if not length or len(places) < length:
        return 0
    end = places[-1] + 1
    if text[end : end + 1].isalnum():
        return 0
    return end if _mod_97(_compact(text[match.start() : end])) == 1 else 0


def _mod_97(iban: str) -> int:
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97


def _cards(text: str) -> Iterator[Finding]:
    """In a run of digit groups, each stretch of whole groups that is a card number: a year may follow it."""
    for match in _DIGITS.finditer(text):
        groups = [(group.start(), group.end()) for group in re.finditer(r"[0-9]+", match[0])]
        first = 0
        while first < len(groups):
            last = _card_end(match[0], groups, first)
            if last is not None:
                start, end = groups[first][0], groups[last][1]
                yield Finding(match.start() + start, match.start() + end, "card", _compact(match[0][start:end]))
            first = first + 1 if last is None else last + 1


def _card_end(text: str, groups: list[tuple[int, int]], first: int) -> int | None:
    for last in range(len(groups) - 1, first - 1, -1):
        digits = _compact(text[groups[first][0] : groups[last][1]])
        if 13 <= len(digits) <= 19 and digits[0] in "23456" and _luhn(digits):
            return last
    return None


def _luhn(digits: str) -> bool:
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _ips(text: str) -> Iterator[Finding]:
    for match in _IP.finditer(text):
        if all(int(part) < 256 for part in match[0].split(".")):
            yield Finding(match.start(), match.end(), "ip", match[0])


def _phones(text: str) -> Iterator[Finding]:
    for pattern in _PHONES:
        found = [
            Finding(match.start(), match.end(), "phone", re.sub(r"[^0-9+]", "", match[0]))
            for match in pattern.finditer(text)
        ]
        text = _blanked(text, found)
        yield from found


def _compact(text: str) -> str:
    return text.replace(" ", "").replace("-", "").upper()


# In this order: where two overlap, the earlier kind has it.
FINDERS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "email": _emails,
    "iban": _ibans,
    "card": _cards,
    "ip": _ips,
    "phone": _phones,
}
KINDS = tuple(FINDERS)


def find_pii(text: str, kinds: Collection[str] = KINDS) -> list[Finding]:
    """All findings of these kinds by place, none overlapping another. Raises ValueError for an unknown kind."""
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in FINDERS]
    if unknown:
        raise ValueError(f"no kind {unknown[0]!r:.80}: kinds are {', '.join(KINDS)}")
    taken: list[Finding] = []
    for kind, finder in FINDERS.items():
        if kind in kinds:
            found = sorted(finder(text))
            taken += found
            text = _blanked(text, found)
    return sorted(taken)


def _blanked(text: str, found: list[Finding]) -> str:
    """The text with a character that no finder takes in place of what was found: nothing is found twice."""
    parts: list[str] = []
    at = 0
    for finding in found:
        parts += [text[at : finding.start], "\0" * (finding.end - finding.start)]
        at = finding.end
    return "".join([*parts, text[at:]])
