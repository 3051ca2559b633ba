"""Repairs: deviations of foreign files that a lenient reader accepted. Each repair is listed for the user."""

from __future__ import annotations

import msgspec

MAX_LISTED = 50
"""The maximum number of listed repairs of one skill. A file can need thousands."""
HARMLESS = frozenset({"unknown_keys", "odd_metadata", "odd_compatibility"})
"""Codes of notes that are not real repairs: the reader kept the value unchanged."""


class Repair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A mistake in a foreign file, and the way in which the reader understood it. The stored bytes are not changed.

    `code` is a stable snake_case word. The message has the found value and its interpretation. `line` counts from 1.
    """

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    harmless: bool = False
    """True for a note about a value that is kept unchanged. A skill that has only such notes does not count as
    repaired.
    """


class Repairs:
    """Collects repairs without duplicates. Further repairs after the first MAX_LISTED are only counted."""

    def __init__(self) -> None:
        self.listed: list[Repair] = []
        self.more = 0

    def note(self, code: str, message: str, line: int | None = None, file: str | None = None) -> None:
        repair = Repair(code, message, file, line, code in HARMLESS)
        if repair in self.listed:
            return
        if len(self.listed) == MAX_LISTED:
            self.more += 1
            return
        self.listed.append(repair)

    def has(self, code: str) -> bool:
        return any(repair.code == code for repair in self.listed)

    def all(self) -> tuple[Repair, ...]:
        if not self.more:
            return tuple(self.listed)
        return (*self.listed, Repair("more", f"{self.more} more repairs are not listed"))
