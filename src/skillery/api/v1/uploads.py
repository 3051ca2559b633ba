"""Upload of one skill as a form. The files of the form are imported as an archive with one skill."""

from __future__ import annotations

import asyncio
from typing import Any

from skillery.api.imports import spool
from skillery.api.v1.forms import FormFields, archive_in, boundary_of
from skillery.api.v1.requests import Asked
from skillery.errors import InvalidParams, SkilleryError
from skillery.importing import Begun, ImportOptions, SkillReport
from skillery.methods.refusals import is_refusal


async def published(asked: Asked, receive: Any, options: ImportOptions) -> tuple[SkillReport, FormFields]:
    """Publish the skill that a form contains. Return the report of the import, and the fields of the form.

    If the form or the skill is refused, raise the error of the refusal. Record a refused skill in the audit trail.
    """
    boundary = boundary_of(asked.headers.get("content-type", ""))
    importer = asked.parts.importer
    with importer.receive() as form:
        await spool(receive, asked.headers, form, importer.limits.max_bytes)
        opening = archive_in(form, boundary, importer.limits.max_bytes)
        archive, fields = await asyncio.to_thread(opening.__enter__)
        try:
            reports = importer.import_archive(asked.identity, archive, options)
            try:
                report = await _only_one(reports)
            finally:
                await reports.aclose()
        finally:
            await asyncio.to_thread(opening.__exit__, None, None, None)
    if report.error is not None:
        if isinstance(report.error, SkilleryError) and is_refusal(report.error, "manifest"):
            asked.parts.gate.note_refusal(asked.identity, "create_skill", report.name or options.into, report.error)
        raise report.error
    return report, fields


async def _only_one(reports: Any) -> SkillReport:
    """Return the report of the only skill in an import. Raise InvalidParams if there is not exactly one skill,
    before anything is published.
    """
    found: SkillReport | None = None
    async for report in reports:
        if isinstance(report, Begun) and report.skills - report.merged != 1:
            raise InvalidParams(
                f"there are {report.skills - report.merged} skills in this upload, and this endpoint takes one",
                hint="A skill is a folder with a SKILL.md; POST /import takes an archive with many skills.",
            )
        if isinstance(report, SkillReport) and report.outcome != "merged":
            found = report
    assert found is not None, "an import that has begun with one skill reports it"
    return found
