"""`/review/{name}@{version}`: a reviewer reads a version in the order of danger, and decides about one digest."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from skillery.errors import NotAllowed
from skillery.identity import access
from skillery.web.display import ago
from skillery.web.frame import CallFailed, Done, Form, Page, PageRequest, SeeOther, path_of
from skillery.web.markdown import Place, split_frontmatter
from skillery.web.reviews.compared import Compared, compare, first_version
from skillery.web.skills.opened import Opened, open_version, page_of

_MOST_LINES = 20
_SEVERITIES = {"error": 0, "warning": 1, "info": 2}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


async def show_review(request: PageRequest) -> Page:
    return await _page(request, await _open(request))


async def _open(request: PageRequest) -> Opened:
    opened = await open_version(request, "full")
    is_author = opened.facts.publisher.name == request.identity.name
    if not access.reviews(request.identity, opened.name) and not is_author:
        raise NotAllowed(f"you may not review {opened.name}", hint="Reviews need the scope review for its namespace.")
    return opened


async def _page(
    request: PageRequest, opened: Opened, problems: dict[str, str] | None = None, form: Form | None = None
) -> Page:
    skill = opened.skill
    compared = await _compared(request, opened)
    examples = {one["name"]: one for one in skill.get("examples") or ()}
    why_not = ""
    if skill["status"] != "in_review":
        why_not = _state(skill)
    elif opened.facts.publisher.name == request.identity.name:
        why_not = "You published this version. Another reviewer decides about it."
    elif not access.reviews(request.identity, opened.name):
        why_not = "Only reviewers decide about this version."
    _, body = split_frontmatter(skill["skill_md"])
    shown = None
    if compared.against is None:
        rendered = await request.site.texts.markdown(opened.digest, Place(opened.exact, "SKILL.md"), body[:262_144])
        shown = Markup("\n").join(rendered.lines)
    findings = sorted(
        skill.get("findings") or (), key=lambda one: (one["waiver"] is not None, _SEVERITIES[one["severity"]])
    )
    page = page_of(
        request,
        opened,
        "review",
        "reviews_decision.html",
        compared=compared,
        earlier=compared.against,
        findings=[{**one, "text": await _line(request, opened, one, n)} for n, one in enumerate(findings)],
        examples=[
            {
                "name": str(one.get("name") or f"Example {number}"),
                "result": examples.get(str(one.get("name") or f"Example {number}")),
            }
            for number, one in enumerate(skill["manifest"].get("examples") or (), 1)
        ],
        skill_md=shown,
        files=skill["files"],
        why_not=why_not,
        may_waive=access.reviews(request.identity, opened.name) and skill["status"] == "in_review",
        problems=problems or {},
        typed=dict(form.pairs) if form else {},
        ticked=form.all("tick") if form else [],
        short=opened.digest.partition(":")[2][:8],
        is_review=True,
        versions=[],
    )
    return page._replace(section="review", status=400 if problems else 200)


async def _compared(request: PageRequest, opened: Opened) -> Compared:
    difference = opened.skill.get("permissions_diff") or {}
    against = difference.get("against") or opened.facts.older
    if against:
        try:
            return await compare(request, opened.name, against, opened.version, opened.skill["skill_md"])
        except CallFailed as failed:
            if failed.status != 404:
                raise
    return first_version(opened.skill["manifest"].get("permissions") or {})


async def _line(request: PageRequest, opened: Opened, finding: dict[str, Any], number: int) -> str:
    """Return the line of a file that a finding names, or ""."""
    if not finding["file"] or not finding["line"] or number >= _MOST_LINES:
        return ""
    asked = {"name": opened.name, "version": opened.version, "path": finding["file"]}
    try:
        file = await request.call("read_skill_file", asked)
    except CallFailed:
        return ""
    lines = file["content"].splitlines() if file["encoding"] == "utf-8" else []
    return lines[finding["line"] - 1][:400] if finding["line"] <= len(lines) else ""


def _state(skill: dict[str, Any]) -> str:
    """Return what has happened to a version that is no longer in review."""
    version = skill["version"]
    approval, rejected = skill.get("approval"), skill.get("rejected")
    if approval:
        return f"{approval['by']} approved version {version} {ago(approval['at'])}."
    if rejected:
        return f"{rejected['by']} rejected version {version} {ago(rejected['at'])}: {rejected['reason']}"
    return f"Version {version} is {skill['status'].replace('_', ' ')}, so there is nothing to decide."


async def decide(request: PageRequest) -> Page | SeeOther:
    form = await request.form(most_fields=500)
    request.require("review")
    opened = await _open(request)
    action = form.get("action")
    if action == "waive":
        return await _waive(request, opened, form)
    seen, digest = form.get("digest"), opened.digest
    if seen != digest:
        text = f"Version {opened.version} has other contents now. You have seen {_short(seen)}, it is {_short(digest)}."
        return await _page(request, opened, {"": f"{text} Nothing was done. Review the new contents below."}, form)
    if opened.skill["status"] != "in_review":
        return SeeOther(opened.exact, Done(_state(opened.skill)))
    if action == "reject":
        return await _reject(request, opened, form)
    if action != "approve":
        return await _page(request, opened, {"": "The form has no known action. Use a button of this page."}, form)
    missing = [right for right in (await _compared(request, opened)).rights if right.is_more]
    missing = [right for right in missing if right.tick not in form.all("tick")]
    if missing:
        names = ", ".join(right.value for right in missing)
        return await _page(request, opened, {"ticks": f"Confirm each new permission: {names}."}, form)
    params = {
        "name": opened.name,
        "version": opened.version,
        "digest": digest,
        "note": form.get("note").strip() or None,
    }
    try:
        await request.call("approve_version", params)
    except CallFailed as failed:
        return await _failed(request, opened, form, failed)
    return SeeOther("/review", Done(f"{opened.name} {opened.version} is approved and published."))


async def _reject(request: PageRequest, opened: Opened, form: Form) -> Page | SeeOther:
    reason = form.get("note").strip()
    if not reason:
        return await _page(request, opened, {"note": "Say why you reject this version. Its author reads it."}, form)
    try:
        await request.call("reject_version", {"name": opened.name, "version": opened.version, "reason": reason})
    except CallFailed as failed:
        return await _failed(request, opened, form, failed)
    return SeeOther("/review", Done(f"{opened.name} {opened.version} is rejected."))


async def _failed(request: PageRequest, opened: Opened, form: Form, failed: CallFailed) -> Page | SeeOther:
    """Return the answer to a refused decision. If another reviewer was faster, say what that reviewer decided."""
    again = await open_version(request, "full")
    if again.skill["status"] != "in_review":
        return SeeOther(again.exact, Done(_state(again.skill)))
    if failed.status == 404:
        raise failed
    return await _page(request, opened, {"": f"{failed.message}. {failed.hint}"}, form)


async def _waive(request: PageRequest, opened: Opened, form: Form) -> Page | SeeOther:
    reason, until = form.get("reason").strip(), form.get("until").strip()
    place = f"waive-{form.get('number')[:4]}"
    if not reason:
        return await _page(request, opened, {place: "Say why this finding is acceptable."}, form)
    if until and not _DAY.fullmatch(until):
        return await _page(request, opened, {place: f"{until[:40]!r} is not a day such as 2027-01-31."}, form)
    params = {
        "name": opened.name,
        "rule": form.get("rule"),
        "reason": reason,
        "until": f"{until}T00:00:00Z" if until else None,
        "file": form.get("file") or None,
        "version": opened.version if form.get("only") == "version" else None,
    }
    try:
        await request.call("waive_finding", params)
    except CallFailed as failed:
        return await _page(request, opened, {place: f"{failed.message}. {failed.hint}"}, form)
    address = path_of("review", f"{opened.name}@{opened.version}")
    return SeeOther(f"{address}#findings", Done(f"The finding {form.get('rule')} is waived."))


def _short(digest: str) -> str:
    return digest.partition(":")[2][:8] or "nothing"
