"""Reports of an import: one for each skill, and one for the whole."""

from __future__ import annotations

import logging
from typing import Any, Literal

import msgspec

from skillery.errors import SkilleryError
from skillery.formats.repairs import Repair
from skillery.importing.entries import shown
from skillery.importing.finder import FoundSkill
from skillery.importing.left_out import LeftOut
from skillery.importing.nested_skills import nested_in
from skillery.importing.preparation import PreparedSkill
from skillery.registry import CheckedExample, CheckFinding, Removed

log = logging.getLogger(__name__)
Outcome = Literal["published", "draft", "unchanged", "checked", "merged", "overridden", "refused"]
"""`checked` is a skill that a dry run would publish. `merged` is a link to a skill, or a copy of one, that is imported
under another path. `overridden` is a different skill whose name a later folder of the command line has too."""


class Begun(msgspec.Struct, frozen=True):
    """The first report, before those of the skills."""

    skills: int
    """Number of reports that follow, including `merged` links."""
    left_out: tuple[LeftOut, ...] = ()
    """Files that belong to no skill."""
    other_files: int = 0
    """Number of files of no skill that are not listed."""
    merged: int = 0
    """The part of `skills` that are links to skills imported under another path."""
    searched: tuple[str, ...] = ()
    """If there is no skill: the folders that were searched, "" for the archive itself."""


class SkillReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The report of one skill."""

    path: str
    """The skill's folder in the archive; "" is the archive itself."""
    outcome: Outcome
    stated: str = ""
    """The name that the skill states."""
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
    """The path of the skill that counts instead, if this one is merged or overridden."""
    nested: tuple[str, ...] = ()
    """Each SKILL.md below the skill's folder that stays a file of the skill."""
    suggestion: str = ""
    """Suggested handling of the nested skills."""
    error: Any = None
    """The exception that refused the skill. The endpoint converts it into an error object."""


class Summary(msgspec.Struct, frozen=True):
    """The last report, after those of the skills."""

    counts: dict[str, int]
    """Number of skills by outcome."""
    repaired: int
    """Skills in which something was read differently from how it is written. Harmless notes do not count."""
    removed: tuple[Removed, ...] = ()
    unread: int = 0
    """Skills whose name could not be read. If there are any, no skill counts as removed."""
    stopped: bool = False
    """True if the server could not continue. Skills after the last report were not read."""
    source: str = ""
    """The source that the import belongs to."""
    not_taken_over: tuple[str, ...] = ()
    """Names that the import should take over, and that no skill of the tree has."""


def report_of(prepared: PreparedSkill, outcome: Outcome, **fields: Any) -> SkillReport:
    """Return the report of a skill that was read. `fields` are added, or replace those of the skill."""
    return SkillReport(
        **{
            "path": shown(prepared.found.root),
            "outcome": outcome,
            "stated": shown(prepared.stated),
            "files": len(prepared.files),
            "size_bytes": prepared.size_bytes,
            "repairs": prepared.repairs,
            "left_out": prepared.found.left_out,
            **nested_in(prepared.found, prepared.skill_md.body),
            **fields,
        }
    )


def refusal_of(found: FoundSkill, prepared: PreparedSkill | None, error: Exception, name: str = "") -> SkillReport:
    """Return the report of a refused skill. `prepared` is None if the skill could not be read."""
    if not isinstance(error, SkilleryError):
        log.error("a skill could not be imported", exc_info=error)
    if prepared is not None:
        return report_of(prepared, "refused", name=name, error=error)
    return SkillReport(
        path=shown(found.root), outcome="refused", left_out=found.left_out, error=error, **nested_in(found)
    )
