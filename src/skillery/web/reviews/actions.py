"""The forms of the page of a decision: approve, reject, and waive a finding."""

from __future__ import annotations

import re

from skillery.errors import NotAllowed, NotFound, SkilleryError
from skillery.publishing.methods import ApproveVersion, approve_version
from skillery.versions.lifecycle import RejectVersion, reject_version
from skillery.versions.waivers import WaiveFinding, waive_finding
from skillery.web.frame import Done, Form, Page, PageRequest, SeeOther, message_of, path_of
from skillery.web.reviews.decision import open_review, page_of_review, read, state_of, why_no_approval, why_not
from skillery.web.skills.opened import Opened, open_version

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


async def decide(request: PageRequest) -> Page | SeeOther:
    form = await request.form(most_fields=500)
    request.require("review")
    opened = await open_review(request)
    action = form.get("action")
    if action == "waive":
        return await _waive(request, opened, form)
    seen, digest = form.get("digest"), opened.digest
    if seen != digest:
        text = f"Version {opened.version} has other contents now. You have seen {_short(seen)}, it is {_short(digest)}."
        # The ticks were given for other contents.
        kept = Form((("note", form.get("note")),))
        return await page_of_review(request, opened, {"permissions": f"{text} Review the new contents."}, kept)
    if opened.skill.status != "in_review":
        return SeeOther(opened.exact, Done(state_of(opened.skill)))
    if why := why_not(request, opened) or (action == "approve" and why_no_approval(request, opened)):
        raise NotAllowed(f"you may not decide about {opened.name} {opened.version}", hint=why)
    if action == "reject":
        return await _reject(request, opened, form)
    if action != "approve":
        return await page_of_review(
            request, opened, {"": "The form has no known action. Use a button of this page."}, form
        )
    news = (await read(request, opened)).dangers.news
    missing = [right for right in news if right.tick not in form.all("tick")]
    if missing:
        names = ", ".join(right.value for right in missing)
        return await page_of_review(request, opened, {"ticks": f"Confirm each new permission: {names}."}, form)
    params = ApproveVersion(name=opened.name, version=opened.version, digest=digest, note=form.get("note").strip())
    try:
        await request.do(approve_version, params)
    except SkilleryError as error:
        return await _failed(request, opened, form, error)
    return SeeOther("/review", Done(f"{opened.name} {opened.version} is approved and published."))


async def _reject(request: PageRequest, opened: Opened, form: Form) -> Page | SeeOther:
    reason = form.get("note").strip()
    if not reason:
        return await page_of_review(
            request, opened, {"note": "Say why you reject this version. Its author reads it."}, form
        )
    try:
        await request.do(reject_version, RejectVersion(name=opened.name, version=opened.version, reason=reason))
    except SkilleryError as error:
        return await _failed(request, opened, form, error)
    return SeeOther("/review", Done(f"{opened.name} {opened.version} is rejected."))


async def _failed(request: PageRequest, opened: Opened, form: Form, error: SkilleryError) -> Page | SeeOther:
    """Return the answer to a refused decision. If another reviewer was faster, say what that reviewer decided."""
    again = await open_version(request, "full")
    if again.skill.status != "in_review":
        return SeeOther(again.exact, Done(state_of(again.skill)))
    if isinstance(error, NotFound):
        raise error
    return await page_of_review(request, opened, {"": message_of(error)}, form)


async def _waive(request: PageRequest, opened: Opened, form: Form) -> Page | SeeOther:
    reason, until = form.get("reason").strip(), form.get("until").strip()
    place = f"waive-{form.get('number')[:4]}"
    if not reason:
        return await page_of_review(request, opened, {place: "Say why this finding is acceptable."}, form)
    if until and not _DAY.fullmatch(until):
        return await page_of_review(request, opened, {place: f"{until[:40]!r} is not a day such as 2027-01-31."}, form)
    params = WaiveFinding(
        name=opened.name,
        rule=form.get("rule"),
        reason=reason,
        until=f"{until}T00:00:00Z" if until else "",
        file=form.get("file"),
        version=opened.version if form.get("only") == "version" else "",
    )
    try:
        await request.do(waive_finding, params)
    except SkilleryError as error:
        return await page_of_review(request, opened, {place: message_of(error)}, form)
    address = path_of("review", f"{opened.name}@{opened.version}")
    return SeeOther(f"{address}#findings", Done(f"The finding {form.get('rule')} is waived."))


def _short(digest: str) -> str:
    return digest.partition(":")[2][:8] or "nothing"
