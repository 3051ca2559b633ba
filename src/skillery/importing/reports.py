"""Reports of an import: one for each skill, one before them and one after them."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from skillery.errors import SkilleryError
from skillery.formats.check_results import CheckedExample, CheckFinding
from skillery.formats.repairs import Repair
from skillery.formats.wording import quoted
from skillery.importing.aliases import Removed
from skillery.importing.entries import LeftOut, shown
from skillery.importing.finder import LocatedSkill
from skillery.importing.preparation import PreparedSkill
from skillery.publishing.file_findings import DEAD_REFERENCE

# -- Nested skills in reports: SKILL.md files in folders below another skill's SKILL.md --------------------------------


SPLIT = "--nested split imports each nested SKILL.md as a skill of its own"
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s")
_OTHERS = re.compile(r"\s*(?:#{1,6}(?:\s|$)|<!--|(?:-{3,}|\*{3,}|_{3,})\s*$)")
"""Matches headings, comments and rules, which may surround a list of skills."""


def nested_in(skill: LocatedSkill, body: str | None = None) -> dict[str, Any]:
    """Return the fields `nested` and `suggestion` of a skill's report. `body` is the text of its SKILL.md, or None
    if unread.
    """
    if not skill.nested:
        return {}
    nested: dict[str, Any] = {"nested": tuple(shown(path) for path in skill.nested)}
    if body is None:
        return nested | {"suggestion": SPLIT}
    return nested | {"suggestion": f"its SKILL.md only lists skills: {SPLIT}"} if is_collection(body) else nested


def is_collection(body: str) -> bool:
    """Return whether a text consists only of lists (bullets, numbers or tables).

    Headings, and lines that end with a colon, may introduce a list. Indented lines continue an item.
    """
    lines = [line for line in body.splitlines() if line.strip()]
    has_item = any(_is_item(line) for line in lines)
    return has_item and all(_is_item(line) or _may_stand_around(line) for line in lines)


def _is_item(line: str) -> bool:
    return bool(_ITEM.match(line)) or line.lstrip().startswith("|")


def _may_stand_around(line: str) -> bool:
    return bool(_OTHERS.match(line)) or line.startswith((" ", "\t")) or line.rstrip().endswith(":")


log = logging.getLogger(__name__)
Outcome = Literal["published", "draft", "unchanged", "checked", "merged", "overridden", "refused"]
"""`checked`: a dry run found that the skill would be published. `merged`: a link to a skill, or a copy of a skill,
that is imported under another path. `overridden`: another folder of the command line, given later, has a
different skill with the same name.
"""


class Begun(msgspec.Struct, frozen=True):
    """The first report, before the reports of the skills."""

    skills: int
    """The number of skill reports that follow, including `merged` links."""
    left_out: tuple[LeftOut, ...] = ()
    """Files that belong to no skill."""
    other_files: int = 0
    """The number of further files that belong to no skill and are not listed."""
    merged: int = 0
    """The number of links among `skills` that lead to skills imported under another path."""
    searched: tuple[str, ...] = ()
    """If there is no skill: the folders that were searched. "" is the root of the archive."""


class SkillReport(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The report of one skill."""

    path: str
    """The skill's folder in the archive. "" is the root of the archive."""
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
    """If this skill is merged or overridden: the path of the skill that is imported instead. Else ""."""
    nested: tuple[str, ...] = ()
    """Each SKILL.md below the skill's folder that is imported as a file of the skill."""
    suggestion: str = ""
    """A suggestion how to import the nested skills, or ""."""
    error: Any = None
    """The exception because of which the skill was refused, or None. The endpoint converts it into an error object."""


class Summary(msgspec.Struct, frozen=True):
    """The last report, after the reports of the skills."""

    counts: dict[str, int]
    """The number of skills by outcome."""
    repaired: int
    """The number of skills with repairs. Harmless notes do not count as repairs."""
    removed: tuple[Removed, ...] = ()
    unread: int = 0
    """The number of skills that could not be read, so that their names are unknown. If there are any, `removed` is
    empty.
    """
    stopped: bool = False
    """True if the import could not continue. Skills after the last report were not read."""
    source: str = ""
    """The source of the import."""
    not_taken_over: tuple[str, ...] = ()
    """Names that the import should take over, and that no skill of the tree has."""


def report_of(prepared: PreparedSkill, outcome: Outcome, **fields: Any) -> SkillReport:
    """Return the report of a skill that was read. `fields` are added to the report, or replace its values."""
    if "findings" in fields:
        fields["findings"] = _with_left_out(fields["findings"], prepared.located.left_out)
    return SkillReport(
        **{
            "path": shown(prepared.located.root),
            "outcome": outcome,
            "stated": shown(prepared.stated),
            "files": len(prepared.files),
            "size_bytes": prepared.size_bytes,
            "repairs": prepared.repairs,
            "left_out": prepared.located.left_out,
            **nested_in(prepared.located, prepared.skill_md.body),
            **fields,
        }
    )


def _with_left_out(findings: Sequence[CheckFinding], left_out: Sequence[LeftOut]) -> tuple[CheckFinding, ...]:
    """Return the findings. A dead reference to a file that the import has left out gets the reason."""

    def reason(message: str) -> str:
        for left in left_out:
            name = quoted(left.path, 120)[:-1]
            if message.startswith((f"{name}' ", f"{name}/")):
                return f"; the import left it out: {left.message}"
        return ""

    return tuple(
        msgspec.structs.replace(finding, message=finding.message + reason(finding.message))
        if finding.rule == DEAD_REFERENCE
        else finding
        for finding in findings
    )


def refusal_of(skill: LocatedSkill, prepared: PreparedSkill | None, error: Exception, name: str = "") -> SkillReport:
    """Return the report of a refused skill. `prepared` is None if the skill could not be read."""
    if not isinstance(error, SkilleryError):
        log.error("a skill could not be imported", exc_info=error)
    if prepared is not None:
        return report_of(prepared, "refused", name=name, error=error)
    return SkillReport(
        path=shown(skill.root), outcome="refused", left_out=skill.left_out, error=error, **nested_in(skill)
    )
