"""Checked reading of tables from foreign input. All problems of a table are collected."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skillery.formats.json_values import join, kind_of
from skillery.formats.wording import MAX_SHOWN, Problem, did_you_mean, printable, quoted

MAX_WORD = 128
"""The maximum number of characters of a tag, an input's name or a secret's name."""


class Shapes:
    """Base class of readers of foreign tables. Collects problems and warnings; `where` is the key path of a value.

    A method that finds a problem still returns a value of the right type. The caller checks `problems` before using any
    value.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.misspelt: list[Problem] = []
        """Unknown keys next to a known one. They are warnings too: the author of a folder gets them as errors."""

    def text(self, table: Mapping[str, object], key: str, where: str, *, required: bool = False) -> str | None:
        if key not in table:
            if required:
                self.problem(where, "is missing")
            return None
        value = table[key]
        if not isinstance(value, str):
            self.problem(where, f"is {kind_of(value)}, expected a string")
            return None
        return value

    def texts(self, table: Mapping[str, object], key: str, where: str, *, longest: int = MAX_WORD) -> tuple[str, ...]:
        """Return the strings of the array at `key`, or () if there is none. Problem: an entry that is blank, not
        printable or longer than `longest`.
        """
        values = table.get(key, [])
        if not isinstance(values, list):
            self.problem(where, f"is {kind_of(values)}, expected an array of strings")
            return ()
        for i, value in enumerate(values):
            if not isinstance(value, str):
                self.problem(f"{where}[{i}]", f"is {kind_of(value)}, expected a string")
            elif not value.strip() or len(value) > longest or not value.isprintable():
                self.problem(f"{where}[{i}]", f"is blank, longer than {longest} characters or not printable")
        return tuple(value for value in values if isinstance(value, str))

    def table(self, parent: Mapping[str, object], key: str, where: str) -> Mapping[str, object] | None:
        if key not in parent:
            return None
        value = parent[key]
        if not isinstance(value, Mapping):
            self.problem(where, f"is {kind_of(value)}, expected a table")
            return {}
        return value

    def flag(self, table: Mapping[str, object], key: str, where: str) -> bool:
        value = table.get(key, False)
        if not isinstance(value, bool):
            self.problem(where, f"is {kind_of(value)}, expected true or false")
        return value is True

    def unknown_keys(self, where: str, table: Mapping[str, object], known: tuple[str, ...]) -> None:
        """Add a warning for each unknown key, until there are MAX_SHOWN warnings.

        Further warnings would not be shown, and each costs a comparison with all known keys.
        """
        for key in table:
            if len(self.warnings) >= MAX_SHOWN:
                return
            if key not in known:
                path = join(where, key)
                suggestion = self.place_of(where, key) or did_you_mean(key, known)
                self.warnings.append(f"unknown key {path}{suggestion}: it is kept but has no effect")
                if suggestion:
                    self.misspelt.append(Problem(f"unknown key {path}{suggestion}", path))

    def place_of(self, where: str, key: str) -> str:
        """Return a text that names the right table for an unknown key, or "" if there is none."""
        return ""

    def problem(self, where: str, message: str, toml: str | None = None) -> None:
        """Add a problem of the key `where`. `toml` is the correct TOML, if the key alone does not determine it."""
        self.problems.append(Problem(f"{where} {message}", where, toml=toml))


def shown(value: object) -> str:
    """Return a JSON value as text for a message: scalars as JSON, other values by their type."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool | int | float):
        return printable(msgspec.json.encode(value).decode())
    return kind_of(value)
