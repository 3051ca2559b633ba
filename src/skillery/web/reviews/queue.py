"""`/review`, `/review/waivers` and `/s/{b}/diff/{a}`: waiting versions, accepted findings, changes."""

from __future__ import annotations

from skillery.identity import access
from skillery.method import or_none
from skillery.versions.versions import ListedVersion, ListVersions, list_versions
from skillery.versions.waivers import ListWaivers, RevokeWaiver, list_waivers, revoke_waiver
from skillery.web.frame import Done, Page, PageRequest, SeeOther, path_of
from skillery.web.reviews.compared import compare
from skillery.web.reviews.decision import rendered
from skillery.web.sending import MOST_WAITING
from skillery.web.skills.opened import describe, open_version, page_of


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


# -- `/s/{b}/diff/{a}`: what a version changes, compared with any other version of the skill ---------------------------


async def show_diff(request: PageRequest) -> Page | SeeOther:
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
        rendered=await rendered(request, opened._replace(skill=earlier), opened) if is_rendered else [],
        is_review=False,
    )
