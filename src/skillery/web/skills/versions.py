"""`/s/{ref}/versions`: all versions of a skill, highest first."""

from __future__ import annotations

from functools import partial

from skillery.versions.version_tables import VersionGroup, VersionTable, table_of_versions
from skillery.web.frame import Page, PageRequest
from skillery.web.skills.opened import open_version, page_of, reader_of

AT_ONCE = 50
FOLDED_AT_ONCE = 20
_GROUPS: dict[str, VersionGroup] = {
    "releases": "releases",
    "pre-releases": "prereleases",
    "withdrawn": "withdrawn",
}


async def show_versions(request: PageRequest) -> Page:
    opened = await open_version(request)
    shown = _GROUPS.get(request.query.get("show", ""))
    read = partial(_table, request, opened.name)
    if shown is None:
        tables = {
            "releases": await read("releases", AT_ONCE, request.query.get("cursor", "")),
            "prereleases": await read("prereleases", FOLDED_AT_ONCE, ""),
            "withdrawn": await read("withdrawn", FOLDED_AT_ONCE, ""),
        }
    else:
        tables = {shown: await read(shown, AT_ONCE, request.query.get("cursor", ""))}
    versions = [
        version.version for table in tables.values() for version in table.versions if version.status != "purged"
    ]
    values = {"tables": tables, "shown": shown or "", "comparable": versions if len(versions) > 1 else []}
    return page_of(request, opened, "versions", "skill_versions.html", part="Versions", **values)


async def _table(request: PageRequest, name: str, group: VersionGroup, limit: int, cursor: str) -> VersionTable:
    work = partial(
        table_of_versions,
        identity=reader_of(request),
        key=request.site.core.registry.cursor_key,
        name=name,
        group=group,
        limit=limit,
        cursor=cursor,
    )
    return await request.read(work)
