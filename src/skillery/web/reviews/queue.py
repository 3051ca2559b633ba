"""`/review`: the versions that wait for a review, oldest first. `/review/waivers`: accepted findings."""

from __future__ import annotations

from skillery.identity import access
from skillery.method import or_none
from skillery.versions.versions import ListedVersion, ListVersions, list_versions
from skillery.versions.waivers import ListWaivers, RevokeWaiver, list_waivers, revoke_waiver
from skillery.web.frame import Done, Page, PageRequest, SeeOther
from skillery.web.sending import MOST_WAITING
from skillery.web.skills.opened import describe


async def show_queue(request: PageRequest) -> Page:
    namespace = request.query.get("ns", "").strip()
    page = await request.do(list_versions, ListVersions(status="in_review", namespace=namespace, limit=MOST_WAITING))
    mine = [version for version in page.versions if access.reviews(request.identity, version.name)]
    rows: list[tuple[ListedVersion, dict[str, int] | None]] = []
    for version in sorted(mine, key=lambda version: version.created_at):
        rows.append((version, await _facts(request, version) if len(rows) < 30 else None))
    namespaces = sorted({version.name.partition(".")[0] for version in mine})
    values = {"rows": rows, "ns": namespace, "namespaces": namespaces, "is_cut": page.next_cursor is not None}
    return Page("reviews_queue.html", "Review", values, "review")


async def _facts(request: PageRequest, version: ListedVersion) -> dict[str, int]:
    skill = await describe(request, version.name, version.version, "summary")
    difference = or_none(skill.permissions_diff)
    return {
        "more": len(difference.added.network) + len(difference.added.secrets) if difference else 0,
        "findings": sum(not finding.waiver for finding in or_none(skill.findings) or ()),
        "examples": sum(len(skill.manifest.get(key) or ()) for key in ("examples", "tool_examples")),
        "passed": sum(example.status == "passed" for example in or_none(skill.examples) or ()),
    }


async def show_waivers(request: PageRequest) -> Page:
    page = await request.do(list_waivers, ListWaivers(limit=100, cursor=request.query.get("cursor", "")))
    values = {"waivers": page.waivers, "next_cursor": page.next_cursor}
    return Page("reviews_waivers.html", "Waivers", values, "review")


async def change_waivers(request: PageRequest) -> SeeOther:
    form = await request.form()
    waiver = await request.do(revoke_waiver, RevokeWaiver(id=form.get("id")))
    return SeeOther("/review/waivers", Done(f"The waiver for {waiver.rule} in {waiver.name} is revoked."))
