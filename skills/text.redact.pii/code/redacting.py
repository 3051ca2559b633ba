"""Replacing what was found, piece by piece through a text of any length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import TextIO

from .finding import KINDS, LONGEST, Finding, find_pii

STYLES = ("label", "numbered", "stars")
PIECE = 1 << 18
MOST_NUMBERED = 1_000_000
MOST_PLACES = 50_000


class Redactor:
    """`counts` by kind and `places` (line and kind, never the value) grow while texts go through."""

    def __init__(self, kinds: Collection[str] = KINDS, style: str = "label", keep: Iterable[str] = ()) -> None:
        if style not in STYLES:
            raise ValueError(f"style is {style!r:.80}: give one of {', '.join(STYLES)}")
        find_pii("", kinds)
        self.kinds = kinds
        self.style = style
        self.counts: Counter[str] = Counter()
        self.places: list[dict[str, int | str]] = []
        self._keep = {text.strip().lower() for text in keep}
        self._numbers: dict[tuple[str, str], int] = {}
        self._seen: Counter[str] = Counter()
        self._line = 1

    def stream(self, file: TextIO) -> Iterator[str]:
        """The text of `file`, redacted. Keeps a quarter of a megabyte of it at a time."""
        text = ""
        while piece := file.read(PIECE):
            text += piece
            findings = find_pii(text, self.kinds)
            cut = _cut(text, findings)
            yield self._redacted(text[:cut], [each for each in findings if each.end <= cut])
            text = text[cut:]
        yield self._redacted(text, find_pii(text, self.kinds))

    def redact(self, text: str) -> str:
        return self._redacted(text, find_pii(text, self.kinds))

    def _redacted(self, text: str, findings: list[Finding]) -> str:
        parts: list[str] = []
        at = 0
        for finding in findings:
            original = text[finding.start : finding.end]
            if original.lower() in self._keep or finding.value.lower() in self._keep:
                continue
            between = text[at : finding.start]
            self._line += between.count("\n")
            self._note(finding.kind)
            parts += [between, self._replacement(finding, original)]
            self._line += original.count("\n")
            at = finding.end
        self._line += text.count("\n", at)
        return "".join([*parts, text[at:]])

    def _note(self, kind: str) -> None:
        self.counts[kind] += 1
        if len(self.places) < MOST_PLACES:
            self.places.append({"line": self._line, "kind": kind})

    def _replacement(self, finding: Finding, original: str) -> str:
        if self.style == "stars":
            return "".join("*" if character.isalnum() else character for character in original)
        label = finding.kind.upper()
        return f"[{label}]" if self.style == "label" else f"[{label}_{self._number(finding)}]"

    def _number(self, finding: Finding) -> int:
        key = (finding.kind, finding.value)
        if key not in self._numbers:
            if len(self._numbers) >= MOST_NUMBERED:
                raise ValueError(f"more than {MOST_NUMBERED} different values to number: use style 'label'")
            self._seen[finding.kind] += 1
            self._numbers[key] = self._seen[finding.kind]
        return self._numbers[key]


def _cut(text: str, findings: list[Finding]) -> int:
    """Up to where the text can be written: what follows may still grow into a finding."""
    cut = len(text) - LONGEST
    line_end = text.rfind("\n", 0, max(cut, 0)) + 1
    # Rather at a line end, for the finder looks at the character before.
    cut = line_end or max(cut, 0)
    return min([cut, *(each.start for each in findings if each.start < cut < each.end)])
