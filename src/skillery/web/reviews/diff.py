"""`/s/{b}/diff/{a}`: what a version changes, compared with any other version of the skill."""

from __future__ import annotations

from skillery.method import or_none
from skillery.versions.versions import ListVersions, list_versions
from skillery.web.frame import Page, PageRequest, SeeOther, path_of
from skillery.web.reviews.compared import compare
from skillery.web.reviews.decision import rendered
from skillery.web.skills.opened import describe, open_version, page_of


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
