"""What was mended in reading what somebody else wrote: listed one by one, so that nothing is changed in silence."""

from __future__ import annotations

import msgspec

MAX_LISTED = 50
"""Of one skill; a file can be wrong in thousands of places."""
HARMLESS = frozenset({"unknown_keys", "odd_metadata", "odd_compatibility"})
"""Codes of notes: the reader kept the value as it is, so nothing was repaired."""


class Repair(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was read otherwise than it is written. `code` is a stable snake_case word; the message says what
    was found and what was made of it; `line` counts from 1. The bytes that are stored are never changed by one."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    harmless: bool = False
    """True for a note about a value that is kept as it is: such a skill does not count as repaired."""


class Repairs:
    """Collects them, each place once, and at most MAX_LISTED."""

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
