"""Repairs that a lenient reader made to foreign files. Each repair is listed, so that no change is silent."""

from __future__ import annotations

import msgspec

MAX_LISTED = 50
"""Limit on the listed repairs of one skill. A file can need thousands."""
HARMLESS = frozenset({"unknown_keys", "odd_metadata", "odd_compatibility"})
"""Codes of notes: the reader kept the value unchanged, so nothing was repaired."""


class Repair(msgspec.Struct, frozen=True, omit_defaults=True):
    """A mistake in a foreign file, and how it was read. A repair never changes the stored bytes.

    `code` is a stable snake_case word. The message states the found value and how it was read. `line` counts from 1.
    """

    code: str
    message: str
    file: str | None = None
    line: int | None = None
    harmless: bool = False
    """True for a note about a value that is kept unchanged. Such a skill does not count as repaired."""


class Repairs:
    """Collector of repairs: each repair once, at most MAX_LISTED in all."""

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
