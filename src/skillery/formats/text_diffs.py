"""Differences of two texts by lines, bounded in time and size."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

CONTEXT = 3
MOST_TEXT_BYTES = 128 * 1024
"""Limit on a text that is compared by lines."""
MOST_LINES = 5_000
MOST_PAIRS = 20_000
"""Limit on the pairs of equal lines: difflib takes time for each of them, many times."""
MOST_DIFF = 64 * 1024
"""Limit on one difference, in characters."""
CUT = "… (cut)"
NO_LINES = "the texts differ too much to compare their lines"


def text_of(content: bytes) -> str | None:
    """Return the text of a file, or None if it is not UTF-8, contains a NUL, or is too large to compare by lines."""
    if len(content) > MOST_TEXT_BYTES or b"\x00" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def unified_diff(old: str, new: str) -> str | None:
    """Return the hunks of a unified diff, without file names; None if that would take too long.

    Each line ends with a newline, and a diff over MOST_DIFF ends with CUT.
    """
    before, after = old.splitlines(), new.splitlines()
    skip = _common_start(before, after)
    end = _common_start(before[skip:][::-1], after[skip:][::-1])
    first, last = max(0, skip - CONTEXT), max(0, end - CONTEXT)
    before_part, after_part = before[first : len(before) - last], after[first : len(after) - last]
    if max(len(before_part), len(after_part)) > MOST_LINES or _pairs(before_part, after_part) > MOST_PAIRS:
        return None
    return _hunks(before_part, after_part, first)


def _common_start(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _pairs(one: Sequence[str], other: Sequence[str]) -> int:
    counts = Counter(other)
    return sum(counts[line] for line in one)


def _hunks(before: list[str], after: list[str], offset: int) -> str:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    lines: list[str] = []
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, a, _, b, _), (_, _, a_end, _, b_end) = group[0], group[-1]
        lines.append(f"@@ -{a + offset + 1},{a_end - a} +{b + offset + 1},{b_end - b} @@")
        for kind, i, i_end, j, j_end in group:
            if kind == "equal":
                lines += [f" {line}" for line in before[i:i_end]]
            else:
                lines += [f"-{line}" for line in before[i:i_end]]
                lines += [f"+{line}" for line in after[j:j_end]]
    text = "".join(f"{line}\n" for line in lines)
    return text if len(text) <= MOST_DIFF else f"{text[:MOST_DIFF]}\n{CUT}\n"
