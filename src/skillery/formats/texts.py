"""Short texts of callers (sentences, ids, contents in base64), random ids, Unicode normal forms, and diffs of texts."""

from __future__ import annotations

import base64
import binascii
import secrets
import string
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from skillery.errors import InvalidParams


def parse_sentence(value: str, where: str) -> str:
    """Return `value` without surrounding blanks. Raise InvalidParams if `value` is blank or contains a NUL.

    `where` is the name of the parameter, for the error.
    """
    if "\0" in value or not value.strip():
        reason = "contains a NUL character" if "\0" in value else "is blank"
        raise InvalidParams(f"'{where}' {reason}", hint="Write a sentence.", param=where)
    return value.strip()


def parse_id(text: str) -> str:
    """Return the id unchanged. Raise InvalidParams if it contains a NUL."""
    if "\0" in text:
        raise InvalidParams(
            "an id cannot contain a NUL character", hint="Pass the id unchanged, as a method returned it.", param="id"
        )
    return text


def parse_identity(name: str) -> str:
    """Return the name. Raise InvalidParams if the name contains a NUL. Any other name is valid, because
    authenticators choose the names.
    """
    if "\0" in name:
        raise InvalidParams(
            "'identity' contains a NUL character", hint="Write the name of an identity.", param="identity"
        )
    return name


def decode_content(content: str, encoding: str, where: str) -> bytes:
    """Return the bytes of `content`, which is plain text or base64. Raise InvalidParams if it is not valid base64.

    `where` is the name of the parameter, for the error.
    """
    if encoding == "utf-8":
        return content.encode("utf-8")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParams(
            f"'{where}' is not valid base64", hint="Leave 'encoding' out for plain text.", param=where
        ) from None


def parse_plain(text: str, where: str) -> str:
    """Return the text unchanged. Raise InvalidParams if it contains a NUL.

    `where` is the name of the parameter, for the error.
    """
    if "\0" in text:
        raise InvalidParams(f"'{where}' contains a NUL character", hint="Leave it out.", param=where)
    return text


# -- Random identifiers: opaque, safe in URLs and file names, with at least 128 random bits ----------------------------


_ALPHABET = string.digits + string.ascii_letters
_LENGTH = 22  # 62 ** 22 > 2 ** 130


_FAIR = 256 - 256 % len(_ALPHABET)
# The letter of each byte. Bytes over the highest multiple of 62 are left out: they would make some letters more likely.
_LETTERS = (_ALPHABET * (256 // len(_ALPHABET) + 1)).encode()[:256]
_UNFAIR = bytes(range(_FAIR, 256))


def _random() -> str:
    letters = ""
    while len(letters) < _LENGTH:
        letters += secrets.token_bytes(32).translate(_LETTERS, _UNFAIR).decode()
    return letters[:_LENGTH]


def new_run_id() -> str:
    return f"run_{_random()}"


def new_attestation_id() -> str:
    return f"att_{_random()}"


def new_evaluation_id() -> str:
    return f"eval_{_random()}"


def new_blob_id() -> str:
    return f"blob:{_random()}"


# -- Differences of two texts by lines, bounded in time and size -------------------------------------------------------
# Equal parts are found from anchors (patience diff): lines or words that occur equally often in both texts, in the
# order of both. The time grows linearly with the texts, unlike that of difflib, which takes cubic time for repetitive
# texts.


CONTEXT = 3
MOST_TEXT_BYTES = 128 * 1024
"""Limit on a text that is compared by lines."""
MOST_LINES = 5_000
MOST_DEPTH = 8
"""How often the parts between anchors are compared again."""
MOST_DIFF = 64 * 1024
"""Limit on one difference, in characters."""
CUT = "… (cut)"
NO_LINES = "the texts differ too much to compare their lines"


class Part(NamedTuple):
    """The lines or words `old[a:b]` and `new[c:d]`. They are equal, or `new` has others in place of those in `old`."""

    kind: Literal["equal", "replace"]
    a: int
    b: int
    c: int
    d: int


def text_of(content: bytes) -> str | None:
    """Return the text of a file, or None if it is not UTF-8, contains a NUL, or is too large to compare by lines."""
    if len(content) > MOST_TEXT_BYTES or b"\x00" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def unified_diff(old: str, new: str) -> str | None:
    """Return the hunks of a unified diff without file names, or None if more than MOST_LINES lines would be compared.

    Each line ends with a newline. A diff of more than MOST_DIFF characters is cut and ends with CUT.
    """
    old_lines, new_lines = old.splitlines(), new.splitlines()
    start, end = _common(old_lines, new_lines, 0, len(old_lines), 0, len(new_lines))
    if max(len(old_lines), len(new_lines)) - start - end > MOST_LINES:
        return None
    lines: list[str] = []
    for group in _groups(parts_of(old_lines, new_lines)):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        lines.append(f"@@ -{old_start + 1},{old_end - old_start} +{new_start + 1},{new_end - new_start} @@")
        for part in group:
            if part.kind == "equal":
                lines += [f" {line}" for line in old_lines[part.a : part.b]]
            else:
                lines += [f"-{line}" for line in old_lines[part.a : part.b]]
                lines += [f"+{line}" for line in new_lines[part.c : part.d]]
    text = "".join(f"{line}\n" for line in lines)
    return text if len(text) <= MOST_DIFF else f"{text[:MOST_DIFF]}\n{CUT}\n"


def parts_of(old: Sequence[str], new: Sequence[str]) -> list[Part]:
    """Return the equal and the different parts of two lists of lines or words, in order. Adjacent equal parts are one
    part.
    """
    parts: list[Part] = []
    a = c = 0
    for old_start, new_start, count in sorted(_runs(old, new)):
        if (a, c) != (old_start, new_start):
            parts.append(Part("replace", a, old_start, c, new_start))
        former = parts.pop() if parts and parts[-1].kind == "equal" else None
        a, c = old_start + count, new_start + count
        parts.append(Part("equal", former.a if former else old_start, a, former.c if former else new_start, c))
    if a < len(old) or c < len(new):
        parts.append(Part("replace", a, len(old), c, len(new)))
    return parts


def _runs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield (start in `old`, start in `new`, length) of each equal part, in any order."""
    pending = [(0, len(old), 0, len(new), MOST_DEPTH)]
    while pending:
        a, b, c, d, depth = pending.pop()
        start, end = _common(old, new, a, b, c, d)
        if start:
            yield a, c, start
        if end:
            yield b - end, d - end, end
        a, b, c, d = a + start, b - end, c + start, d - end
        anchors = _anchors(old[a:b], new[c:d]) if a < b and c < d and depth else []
        i = j = 0
        for p, q in [*anchors, (b - a, d - c)] if anchors else []:
            if p > i and q > j:
                pending.append((a + i, a + p, c + j, c + q, depth - 1))
            i, j = p + 1, q + 1
        yield from ((a + p, c + q, 1) for p, q in anchors)


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs (position in `old`, position in `new`) of equal items. Both positions grow from pair to pair.

    Only items that occur equally often in both lists are anchors.
    """
    counts, places = Counter(old), defaultdict[str, list[int]](list)
    for position, item in enumerate(new):
        places[item].append(position)
    positions_in_new = {item: iter(positions) for item, positions in places.items() if len(positions) == counts[item]}
    return _growing(
        [(position, next(positions_in_new[item])) for position, item in enumerate(old) if item in positions_in_new]
    )


def _growing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest selection of the pairs in which the second number grows too (patience sorting). The first
    number grows in `pairs`.
    """
    ends: list[int] = []
    """The smallest second number with which a growing part of each length can end."""
    pair_at_end: list[int] = []
    former: list[int] = []
    for number, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        former.append(pair_at_end[length - 1] if length else -1)
        ends[length : length + 1], pair_at_end[length : length + 1] = [second], [number]
    chain: list[tuple[int, int]] = []
    at = pair_at_end[-1] if pair_at_end else -1
    while at >= 0:
        chain.append(pairs[at])
        at = former[at]
    return chain[::-1]


def _common(old: Sequence[str], new: Sequence[str], a: int, b: int, c: int, d: int) -> tuple[int, int]:
    """Return the numbers of equal items at the start and at the end of `old[a:b]` and `new[c:d]`."""
    shorter = min(b - a, d - c)
    start = next((at for at in range(shorter) if old[a + at] != new[c + at]), shorter)
    shorter -= start
    return start, next((at for at in range(shorter) if old[b - 1 - at] != new[d - 1 - at]), shorter)


def _groups(parts: list[Part]) -> Iterator[list[Part]]:
    """Yield the parts of each hunk: the changes, and at most CONTEXT equal lines before and after them."""
    group: list[Part] = []
    for number, part in enumerate(parts):
        kind, a, b, c, d = part
        if kind == "replace":
            group.append(part)
            continue
        is_last = number == len(parts) - 1
        if group and (is_last or b - a > 2 * CONTEXT):
            length = min(CONTEXT, b - a)
            yield [*group, Part(kind, a, a + length, c, c + length)]
            group = []
        if not group and not is_last:
            a, c = max(a, b - CONTEXT), max(c, d - CONTEXT)
        if not is_last:
            group.append(Part(kind, a, b, c, d))
    if group:
        yield group


# -- Unicode normal forms of foreign text, in linear time (https://www.unicode.org/reports/tr15/) ----------------------


PIECE = 256
SEARCH = 64


def normalized(form: Literal["NFC", "NFKD"], text: str) -> str:
    """Return the text in a normal form.

    `unicodedata.normalize` sorts each sequence of combining characters in quadratic time and holds the interpreter
    lock: a sequence of 32,768 takes a second. Therefore a sequence longer than a piece is normalised in pieces, and its
    marks may get another order. Ordinary text has no such sequences.
    """
    if text.isascii():
        return text
    return "".join(unicodedata.normalize(form, piece) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        limit = min(end + SEARCH, len(text))
        # If the next character never combines with the previous one, a cut between the two does not change the result.
        end = next((at for at in range(end, limit) if _stands_alone(text[at])), end)
        yield text[start:end]
        start = end


def _stands_alone(character: str) -> bool:
    is_mark = unicodedata.category(character)[0] == "M"
    is_vowel_or_final_of_hangul = "\u1160" <= character <= "\u11ff"
    return not (is_mark or is_vowel_or_final_of_hangul)
