"""What an import says: a line for each skill, and one for all of it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from skillery.formats.repairs import Repair
from skillery.importing.left_out import LeftOut
from skillery.registry import CheckedExample, CheckFinding, Removed

Outcome = Literal["published", "draft", "unchanged", "checked", "merged", "overridden", "refused"]
"""`checked` is what a dry run would publish. `merged` is a link to a skill, or a copy of one, that is imported by
another path. `overridden` is a different skill whose name a later folder of the command line has too."""


class Begun(msgspec.Struct, frozen=True):
    """Before the first skill."""

    skills: int
    """Reports that follow, `merged` links among them."""
    left_out: tuple[LeftOut, ...] = ()
    """What belongs to no skill."""
    other_files: int = 0
    """How many more of these there are than are listed."""
    merged: int = 0
    """How many of `skills` are links to skills that are imported by another path."""
    searched: tuple[str, ...] = ()
    """If there is no skill: the folders that were searched, "" for the archive itself."""


class SkillReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One skill."""

    path: str
    """Its folder in the archive; "" is the archive itself."""
    outcome: Outcome
    stated: str = ""
    """What it calls itself."""
    name: str = ""
    version: str = ""
    digest: str = ""
    status: str = ""
    files: int = 0
    size_bytes: int = 0
    repairs: tuple[Repair, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()
    findings: tuple[CheckFinding, ...] = ()
    examples: tuple[CheckedExample, ...] = ()
    by: str = ""
    """Of one that is merged or overridden: the path of the skill that counts."""
    nested: tuple[str, ...] = ()
    """Each SKILL.md below the skill's folder that stays a file of the skill."""
    suggestion: str = ""
    """What to do about the nested skills."""
    error: Any = None
    """Of one that is refused, as an exception; a door makes an error object of it."""


class Summary(msgspec.Struct, frozen=True):
    """After the last skill."""

    counts: dict[str, int]
    """By outcome."""
    repaired: int
    """Skills of which anything was read otherwise than it is written. Harmless notes do not count."""
    removed: tuple[Removed, ...] = ()
    unread: int = 0
    """Skills of which it is not even known what they are called: with any, nothing is taken for removed."""
    stopped: bool = False
    """The server could not go on; what follows the last skill has not been looked at."""
    source: str = ""
    """The source that the import belongs to."""
    not_taken_over: tuple[str, ...] = ()
    """Names that the import was to take over, and that no skill of the tree asks for."""
