"""`/review/{name}@{version}`: a reviewer reads a version in the order of danger, and decides about one digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from markupsafe import Markup

from skillery.errors import NotAllowed, NotFound, SkilleryError
from skillery.formats.check_results import CheckFinding
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.method import or_none
from skillery.skills.descriptions import Skill
from skillery.skills.files import ReadSkillFile, read_skill_file
from skillery.web.display import ago
from skillery.web.frame import Form, Page, PageRequest
from skillery.web.markdown import Place, split_frontmatter
from skillery.web.reviews.compared import Compared, compare, first_version
from skillery.web.reviews.dangers import Dangers, dangers_of
from skillery.web.skills.examples import examples_of
from skillery.web.skills.opened import Opened, describe, open_version, page_of

MOST_MARKDOWN = 262_144
"""Bytes of a SKILL.md that are rendered."""
_MOST_LINES = 20
_SEVERITIES = {"error": 0, "warning": 1, "info": 2}


class Read(NamedTuple):
    """What a reviewer reads about a version."""

    opened: Opened
    earlier: Opened | None
    """The version to compare with, or None for a first version."""
    compared: Compared
    dangers: Dangers


async def show_review(request: PageRequest) -> Page:
    return await page_of_review(request, await open_review(request))


async def open_review(request: PageRequest) -> Opened:
    """Return the version of the address. Raise NotAllowed for users who neither review nor have published it."""
    opened = await open_version(request, "full")
    is_author = opened.facts.publisher.name == request.identity.name
    if not access.reviews(request.identity, opened.name) and not is_author:
        raise NotAllowed(f"you may not review {opened.name}", hint="Reviews need the scope review for its namespace.")
    return opened


async def read(request: PageRequest, opened: Opened) -> Read:
    """Return a version with its differences from the version before it."""
    skill = opened.skill
    stored = or_none(skill.permissions_diff)
    against = (stored and stored.against) or opened.facts.older
    earlier: Skill | None = None
    compared = first_version(skill.manifest)
    if against:
        try:
            compared = await compare(request, opened.name, against, opened.version, or_none(skill.skill_md) or "")
            earlier = await describe(request, opened.name, against)
        except NotFound:
            compared = first_version(skill.manifest)
    dangers = await dangers_of(request, skill, earlier, compared)
    return Read(opened, opened._replace(skill=earlier) if earlier else None, compared, dangers)


async def page_of_review(
    request: PageRequest, opened: Opened, problems: Mapping[str, str] | None = None, form: Form | None = None
) -> Page:
    """Return the page of a decision. `problems` has the problems of a sent form by the id of the field."""
    found = await read(request, opened)
    skill, findings = opened.skill, _sorted(or_none(opened.skill.findings) or [])
    files = or_none(skill.files) or []
    is_rendered = request.query.get("show") == "rendered"
    page = page_of(
        request,
        opened,
        "review",
        "reviews_decision.html",
        compared=found.compared,
        dangers=found.dangers,
        earlier=found.compared.against,
        labels_of_earlier=found.earlier.skill.labels if found.earlier else [],
        findings=findings,
        lines=[await _line(request, opened, finding, number) for number, finding in enumerate(findings)],
        examples=examples_of(request, opened),
        rendered=await rendered(request, found.earlier, opened) if is_rendered or found.earlier is None else [],
        is_rendered=is_rendered,
        unchanged=len(files)
        - sum(file.new_size is not None for file in found.compared.files)
        - (found.compared.instructions is not None),
        files=files,
        why_not=why_not(request, opened),
        why_no_approval=why_no_approval(request, opened),
        may_waive=access.reviews(request.identity, opened.name) and skill.status == "in_review",
        problems=problems or {},
        typed=dict(form.pairs) if form else {},
        ticked=form.all("tick") if form else [],
        short=opened.digest.partition(":")[2][:8],
        is_review=True,
        versions=[],
    )
    return page._replace(section="review", status=400 if problems else 200)


def why_not(request: PageRequest, opened: Opened) -> str:
    """Return why the caller does not decide about this version, or ""."""
    if opened.skill.status != "in_review":
        return state_of(opened.skill)
    if access.reviews(request.identity, opened.name):
        return ""
    if opened.facts.publisher.name == request.identity.name:
        return "You published this version. Another reviewer decides about it."
    return "Only reviewers decide about this version."


def why_no_approval(request: PageRequest, opened: Opened) -> str:
    """Return why the rules of this server refuse an approval by the caller, or ""."""
    refusal = request.site.core.publisher.approval.refusal(request.identity, opened.facts.publisher.name)
    return f"You cannot approve this version: {quoted(request.identity.name)} {refusal}." if refusal else ""


def state_of(skill: Skill) -> str:
    """Return what has happened to a version that is no longer in review."""
    approval, rejected = or_none(skill.approval), or_none(skill.rejected)
    if approval:
        return f"{approval.by} approved version {skill.version} {ago(approval.at)}."
    if rejected:
        return f"{rejected.by} rejected version {skill.version} {ago(rejected.at)}: {rejected.reason}"
    return f"Version {skill.version} is {skill.status.replace('_', ' ')}, so there is nothing to decide."


def _sorted(findings: list[CheckFinding]) -> list[CheckFinding]:
    """Return errors first, then warnings. Waived findings come last."""
    return sorted(findings, key=lambda finding: (finding.waiver is not None, _SEVERITIES[finding.severity]))


async def rendered(request: PageRequest, *versions: Opened | None) -> list[tuple[str, Markup]]:
    """Return the SKILL.md of each version as HTML, with the number of the version."""
    shown = []
    for version in versions:
        if version is None:
            continue
        _, body = split_frontmatter(or_none(version.skill.skill_md) or "")
        text = await request.site.texts.markdown(version.digest, Place(version.exact, "SKILL.md"), body[:MOST_MARKDOWN])
        shown.append((version.version, Markup("\n").join(text.lines)))
    return shown


async def _line(request: PageRequest, opened: Opened, finding: CheckFinding, number: int) -> str:
    """Return the line of a file that a finding names, or ""."""
    if not finding.file or not finding.line or number >= _MOST_LINES:
        return ""
    params = ReadSkillFile(name=opened.name, version=opened.version, path=finding.file)
    try:
        file = await request.do(read_skill_file, params)
    except SkilleryError:
        return ""
    lines = file.content.splitlines() if file.encoding == "utf-8" else []
    return lines[finding.line - 1][:400] if finding.line <= len(lines) else ""
