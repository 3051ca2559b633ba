"""`/review/{name}@{version}`: a reviewer reads a version in the order of risk, and decides about one digest."""

from __future__ import annotations

from contextlib import suppress

from msgspec import UNSET

from skillery.errors import NotAllowed, NotFound, SkilleryError
from skillery.formats.check_results import CheckFinding
from skillery.identity import access
from skillery.method import or_none
from skillery.publishing.evaluation_results import ListEvaluations, list_evaluations
from skillery.publishing.evaluation_rows import Evaluation
from skillery.publishing.passing import ExplainedPolicy
from skillery.publishing.reviews import ApproveVersion, RejectVersion, approve_version, reject_version
from skillery.skills.descriptions import Skill
from skillery.skills.files import ReadSkillFile, read_skill_file
from skillery.versions.versions import ListedVersion, ListVersions, list_versions
from skillery.versions.waivers import (
    ListWaivers,
    RevokeWaiver,
    WaiveFinding,
    list_waivers,
    revoke_waiver,
    waive_finding,
)
from skillery.web.frame import Done, Form, FormRefused, Page, PageRequest, SeeOther, at_field, path_of
from skillery.web.markdown import Place, split_frontmatter
from skillery.web.review_contents import Compared, Dangers, compare, dangers_of, first_version, rights_of
from skillery.web.sending import MOST_WAITING
from skillery.web.skill_opened import (
    Opened,
    describe,
    examples_of,
    explain,
    open_version,
    page_of,
    state_of,
    why_no_approval,
    why_not,
)

MOST_MARKDOWN = 262_144
"""The maximum number of characters of a SKILL.md that are rendered."""
_MOST_LINES = 20
_SEVERITIES = {"error": 0, "warning": 1, "info": 2}


async def open_review(request: PageRequest) -> Opened:
    """Return the version in the address. Raise NotAllowed unless the user reviews the skill or is its publisher."""
    opened = await open_version(request, "full")
    is_author = opened.facts.publisher.name == request.identity.name
    if not access.reviews(request.identity, opened.name) and not is_author:
        raise NotAllowed(f"you may not review {opened.name}", hint="Reviews need the scope review for its namespace.")
    return opened


async def read(request: PageRequest, opened: Opened) -> tuple[Skill | None, Compared, Dangers]:
    """Return the version before a version, or None for a first version, and the differences from it."""
    skill = opened.skill
    stored = or_none(skill.permissions_diff)
    against = (stored and stored.against) or opened.facts.older
    earlier: Skill | None = None
    compared = first_version(skill.manifest)
    if against:
        with suppress(NotFound):
            earlier = await describe(request, opened.name, against)
            compared = await compare(request, opened.name, against, opened.version, or_none(skill.skill_md) or "")
    return earlier, compared, await dangers_of(request, skill, earlier, compared, opened.facts.publisher.name)


async def show_review(request: PageRequest) -> Page:
    opened = await open_review(request)
    earlier, compared, dangers = await read(request, opened)
    policy = await explain(request, opened)
    skill, findings = opened.skill, sorted(or_none(opened.skill.findings) or [], key=_order)
    files = or_none(skill.files) or []
    is_rendered = request.query.get("show") == "rendered"
    page = page_of(
        request,
        opened,
        "review",
        "reviews_decision.html",
        compared=compared,
        dangers=dangers,
        labels_of_earlier=earlier.labels if earlier else [],
        findings=findings,
        lines=[await _line(request, opened, finding, number) for number, finding in enumerate(findings)],
        examples=examples_of(request, opened),
        rendered=await rendered(request, opened, earlier) if is_rendered or earlier is None else [],
        is_rendered=is_rendered,
        unchanged=len(files)
        - sum(file.change.new is not None for file in compared.files)
        - (compared.instructions is not None),
        files=files,
        policy=policy,
        unclear=await _unclear_evaluation(request, opened, policy),
        why_not=why_not(request, opened, policy),
        why_no_approval=why_no_approval(request, opened, policy),
        may_waive=access.reviews(request.identity, opened.name) and skill.status == "in_review",
        has_scanner=request.site.core.rechecks.has_scanner,
    )
    return page._replace(section="review")


async def _unclear_evaluation(
    request: PageRequest, opened: Opened, policy: ExplainedPolicy | None
) -> Evaluation | None:
    """Return the unclear evaluation that a reviewer must accept for the policy, or None."""
    needs = policy.needs if policy is not None else ()
    ids = {each.id for need in needs if need.need == "evaluation" and not need.ok for each in need.evidence}
    params = ListEvaluations(name=opened.name, version=opened.version)
    listed = (await request.do(list_evaluations, params)).evaluations if ids else ()
    return next((each for each in listed if each.verdict == "unclear" and each.attestation in ids), None)


def _order(finding: CheckFinding) -> tuple[bool, int]:
    """Return the place of a finding: errors, then warnings, then infos. Waived findings come last."""
    return finding.waiver is not None, _SEVERITIES[finding.severity]


async def rendered(request: PageRequest, opened: Opened, earlier: Skill | None) -> list[tuple[str, str]]:
    """Return the numbers of an earlier version, if there is one, and of a version, each with its SKILL.md as HTML."""
    shown = []
    for skill in (earlier, opened.skill) if earlier else (opened.skill,):
        _, body = split_frontmatter(or_none(skill.skill_md) or "")
        place = Place(path_of("s", f"{skill.name}@{skill.version}"), "SKILL.md")
        text = await request.site.texts.markdown(skill.digest, place, body[:MOST_MARKDOWN])
        shown.append((skill.version, text.html))
    return shown


async def _line(request: PageRequest, opened: Opened, finding: CheckFinding, number: int) -> str:
    """Return the line of the file that a finding names, or "". Only the first findings have one, to limit the reads."""
    if not finding.file or not finding.line or number >= _MOST_LINES:
        return ""
    params = ReadSkillFile(name=opened.name, version=opened.version, path=finding.file)
    try:
        file = await request.do(read_skill_file, params)
    except SkilleryError:
        return ""
    lines = file.content.splitlines() if file.encoding == "utf-8" else []
    return lines[finding.line - 1][:400] if finding.line <= len(lines) else ""


# -- The forms of the page of a decision: approve, reject, and waive a finding -----------------------------------------


async def decide(request: PageRequest) -> SeeOther:
    """Approve or reject the version, or waive a finding, by the action of the form. The form has the digest that the
    reviewer has read. If the version has another digest now, nothing is decided.
    """
    form = await request.form(most_fields=500)
    access.require(request.identity, "review")
    opened = await open_review(request)
    action = form.get("action")
    if action == "waive":
        return await _waive(request, opened, form)
    digest_in_form, digest = form.get("digest"), opened.digest
    if digest_in_form != digest:
        digests = f"You have seen {_short(digest_in_form)}, it is {_short(digest)}."
        text = f"Version {opened.version} has other contents now. {digests}"
        # The ticks were given for other contents.
        request.sent = [("note", form.get("note"))]
        raise FormRefused({"permissions": f"{text} Review the new contents."})
    policy = await explain(request, opened)
    if policy is None or not policy.waiting:
        return SeeOther(opened.exact, Done(state_of(opened.skill)))
    no_approval = action == "approve" and why_no_approval(request, opened, policy)
    if refusal := why_not(request, opened, policy) or no_approval:
        raise NotAllowed(f"you may not decide about {opened.name} {opened.version}", hint=refusal)
    note = form.get("note").strip()
    if action == "reject":
        return await _reject(request, opened, note)
    if action != "approve":
        raise FormRefused({"": "The form has no known action. Use a button of this page."})
    _, _, dangers = await read(request, opened)
    missing = [right for right in dangers.news if right.tick not in form.all("tick")]
    if missing:
        names = ", ".join(right.value for right in missing)
        raise FormRefused({"ticks": f"Confirm each new permission: {names}."})
    if policy.former_signer and "signer" not in form.all("tick"):
        raise FormRefused({"ticks": "Confirm that the signer has changed."})
    unclear = await _unclear_evaluation(request, opened, policy)
    accepts = unclear.id if unclear and unclear.id in form.all("tick") else ""
    if unclear and not accepts:
        raise FormRefused({"ticks": "Confirm that you accept the unclear evaluation."})
    params = ApproveVersion(name=opened.name, version=opened.version, digest=digest, note=note, accepts=accepts)
    try:
        approved = await request.do(approve_version, params)
    except SkilleryError as error:
        return await _failed(request, error)
    waits = "" if approved.missing is UNSET else ", ".join(approved.missing)
    result = f"; still missing: {waits}" if waits else " and published"
    return SeeOther("/review", Done(f"{opened.name} {opened.version} is approved{result}.", page=opened.exact))


async def _reject(request: PageRequest, opened: Opened, reason: str) -> SeeOther:
    """Reject the version, and redirect to the queue."""
    if not reason:
        raise FormRefused({"note": "Say why you reject this version. Its author reads it."})
    try:
        await request.do(reject_version, RejectVersion(name=opened.name, version=opened.version, reason=reason))
    except SkilleryError as error:
        return await _failed(request, error)
    return SeeOther("/review", Done(f"{opened.name} {opened.version} is rejected."))


async def _failed(request: PageRequest, error: SkilleryError) -> SeeOther:
    """Return a redirect if another reviewer has decided first, else raise the error of the decision."""
    again = await open_version(request, "full")
    if again.skill.status == "in_review":
        raise error
    return SeeOther(again.exact, Done(state_of(again.skill)))


async def _waive(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    """Create a waiver, and redirect to the findings."""
    params = WaiveFinding(
        name=opened.name,
        rule=form.get("rule"),
        reason=form.get("reason"),
        until=form.get("until").strip(),
        file=form.get("file"),
        version=opened.version if form.get("only") == "version" else "",
    )
    with at_field(f"waive-{form.get('number')[:4]}"):
        await request.do(waive_finding, params)
    address = path_of("review", f"{opened.name}@{opened.version}")
    return SeeOther(f"{address}#findings", Done(f"The finding {form.get('rule')} is waived."))


def _short(digest: str) -> str:
    """Return the first digits of a digest, for a message."""
    return digest.partition(":")[2][:8] or "nothing"


# -- `/review`, `/review/waivers` and `/s/{b}/diff/{a}`: waiting versions, accepted findings, changes ------------------


async def show_queue(request: PageRequest) -> Page:
    """Show the versions in review that the caller may review: those with new permissions first, then the oldest."""
    namespace = request.query.get("ns", "").strip()
    page = await request.do(list_versions, ListVersions(waiting=True, namespace=namespace, limit=MOST_WAITING))
    reviewable = [version for version in page.versions if access.reviews(request.identity, version.name)]
    rows: list[tuple[ListedVersion, Skill | None, int]] = []
    for version in sorted(reviewable, key=lambda version: version.created_at):
        skill = await describe(request, version.name, version.version, "summary") if len(rows) < 30 else None
        difference = or_none(skill.permissions_diff) if skill else None
        rows.append((version, skill, len(rights_of(difference.added)) if difference else 0))
    rows.sort(key=lambda row: -row[2])
    namespaces = sorted({version.name.partition(".")[0] for version in reviewable})
    values = {"rows": rows, "ns": namespace, "namespaces": namespaces, "is_cut": page.next_cursor is not None}
    return Page("reviews_queue.html", "Review", values, "review")


async def show_waivers(request: PageRequest) -> Page:
    page = await request.do(list_waivers, ListWaivers(limit=100, cursor=request.query.get("cursor", "")))
    values = {"waivers": page.waivers, "next_cursor": page.next_cursor}
    return Page("reviews_waivers.html", "Waivers", values, "review")


async def change_waivers(request: PageRequest) -> SeeOther:
    form = await request.form()
    waiver = await request.do(revoke_waiver, RevokeWaiver(id=form.get("id")))
    return SeeOther("/review/waivers", Done(f"The waiver for {waiver.rule} in {waiver.name} is revoked."))


# -- `/s/{b}/diff/{a}`: what a version changes, compared with any other version of the skill ---------------------------


async def show_diff(request: PageRequest) -> Page | SeeOther:
    """Show the changes of a version since any other version. A form with `with` and `of` redirects to these two."""
    opened = await open_version(request, "full")
    older = request.query.get("with", "").strip() or request.parameter("older")
    if "with" in request.query:
        newer = request.query.get("of", "").strip() or opened.version
        return SeeOther(path_of("s", f"{opened.name}@{newer}", "diff", older))
    earlier = await describe(request, opened.name, older)
    is_rendered = request.query.get("show") == "rendered"
    skill_md = or_none(opened.skill.skill_md) or ""
    compared = await compare(request, opened.name, earlier.version, opened.version, skill_md)
    page = await request.do(list_versions, ListVersions(name=opened.name))
    versions = [version.version for version in page.versions if version.version != opened.version]
    return page_of(
        request,
        opened,
        "diff",
        "reviews_diff.html",
        part=f"Changes since {earlier.version}",
        compared=compared,
        earlier=earlier.version,
        versions=versions,
        is_rendered=is_rendered,
        rendered=await rendered(request, opened, earlier) if is_rendered else [],
    )
