"""`/s/{ref}/files` and `/s/{ref}/files/{path}`: the tree of a bundle, and the view of one file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

import msgspec

from skillery.errors import BlobNotFound
from skillery.formats.bundle import SKILL_MD
from skillery.method import or_none
from skillery.skills.descriptions import SkillFileEntry
from skillery.versions.version_tables import resolve_for_page
from skillery.web.frame import Direct, Page, PageRequest, path_of
from skillery.web.sending import raw_file, sent_content, start_of
from skillery.web.skill_opened import (
    Opened,
    file_path_of,
    find_in_version,
    open_version,
    page_of,
    reader_of,
    reference_of,
)
from skillery.web.views.charts import KINDS
from skillery.web.views.kinds import HEAD_BYTES, kind_of
from skillery.web.views.parts import File
from skillery.web.views.shown import Form, ToShow, View
from skillery.web.views.tables import PAGE_ROWS, Wanted

SELECTED = ("sort", "chart", "x", "y", "agg")
"""The fields of the query that choose the order of a table and its chart."""
MOST_BYTES_OF_PART = 10_000_000
"""The number of bytes that the page of one file or part reads."""


async def show_raw(request: PageRequest, *, for_frame: bool = False) -> Direct:
    """Send the file in the address, as it is or for a frame.

    Raise SkillNotFound, VersionNotFound, LabelNotFound or FileNotInSkill if the caller sees no such file.
    """
    name, _, spec = reference_of(request)
    identity = reader_of(request)
    row = await request.read_page(partial(resolve_for_page, identity=identity, name=name, spec=spec))
    path = file_path_of(request, f"{name} {row.version}")
    file = await find_in_version(request, name, row.version, path)
    opens = partial(file.open, request.site.core.registry.storage)
    return raw_file(request, path, file.sha256, file.size_bytes, opens, for_frame=for_frame)


async def show_file(request: PageRequest) -> Page | Direct:
    """Show a file or a picture of a notebook; SKILL.md without a path; the tree of files for a folder."""
    opened = await open_version(request, "full")
    has_path = "path" in request.scope["path_params"]
    path = file_path_of(request, f"{opened.name} {opened.version}") if has_path else SKILL_MD
    rows = or_none(opened.skill.files) or []
    is_folder = any(row.path.startswith(f"{path}/") for row in rows) or not has_path
    if is_folder and not any(row.path == path for row in rows):
        return _page(request, opened, rows, path if has_path else "", {"view": None})
    file = await find_in_version(request, opened.name, opened.version, path)
    opens = partial(file.open, request.site.core.registry.storage)
    content = await asyncio.to_thread(start_of, opens, path, file.size_bytes, MOST_BYTES_OF_PART)
    shown_file = File(file.sha256, path, "", file.size_bytes, content)
    to_show = ToShow(opened.exact, b"null", 0, [shown_file], part=path, folder="files")
    view = await view_of_part(request, to_show)
    if request.query.get("picture"):
        return sent_picture(view)
    raw = path_of("s", f"{opened.name}@{opened.version}", "raw", path)
    address = path_of("s", request.parameter("ref"), "files", path)
    return _page(request, opened, rows, path, values_of_view(request, view, address, raw))


def _page(request: PageRequest, opened: Opened, rows: list[SkillFileEntry], path: str, values: dict[str, Any]) -> Page:
    """Return the page with the tree of files, opened at `path`."""
    shared_values = {"tree": _tree(rows), "path": path, "total": sum(row.size_bytes for row in rows)}
    return page_of(request, opened, "files", "skill_files.html", part=path or "Files", **shared_values, **values)


def _tree(rows: list[SkillFileEntry]) -> dict[str, Any]:
    """Return the files as nested folders: SKILL.md, then folders, then files. Each folder is a dict."""
    tree: dict[str, Any] = {}
    for row in sorted(rows, key=_place_in_tree):
        *above, name = row.path.split("/")
        folder = tree
        for segment in above:
            folder = folder.setdefault(segment, {})
        folder[name] = row
    return tree


def _place_in_tree(row: SkillFileEntry) -> tuple[bool, list[tuple[bool, str, str]]]:
    *above, name = row.path.split("/")
    folders = [(False, segment.lower(), segment) for segment in above]
    return row.path != SKILL_MD, [*folders, (True, name.lower(), name)]


# -- A view with a page of its own: a file of a skill, or a part of a run ----------------------------------------------


async def view_of_part(request: PageRequest, to_show: ToShow, form: Form | None = None) -> View:
    """Return the view of one part, as the query wants it. Raise BlobNotFound if there is no such part."""
    form = form or ("source" if request.query.get("form") == "source" else "view")
    wanted = wanted_of(request.query, request, PAGE_ROWS)
    to_show = msgspec.structs.replace(to_show, form=form, wanted=wanted)
    views = (await request.site.texts.parts(to_show)).views
    if not views:
        raise BlobNotFound(f"this run has no part '{to_show.part[:80]}'", hint="Open the page of the run.")
    return views[0]


def sent_picture(view: View) -> Direct:
    """Send a picture of a notebook. Raise BlobNotFound if the notebook does not have it."""
    if not view.content:
        raise BlobNotFound("this picture does not exist", hint="Open the page of the notebook.")
    return sent_content(f"{view.name} picture", view.content, kind_of("", view.content[:HEAD_BYTES], len(view.content)))


def values_of_view(request: PageRequest, view: View, address: str, raw: str) -> dict[str, Any]:
    """Return the template values of a view with a page of its own, at `address`. `raw` is the address of its bytes."""
    query = {key: request.query[key] for key in (*SELECTED, "where") if request.query.get(key)}

    def address_with(**changes: str) -> str:
        fields = {key: value for key, value in {**query, **changes}.items() if value}
        return f"{address}?{urlencode(fields)}" if fields else address

    return {
        "view": view,
        "raw": raw,
        "address_with": address_with,
        "is_source": request.query.get("form") == "source",
        "where": query.get("where", ""),
        "selected": {key: query.get(key, "") for key in SELECTED},
        "kinds": KINDS,
        "page_rows": PAGE_ROWS,
    }


def wanted_of(query: Mapping[str, str], request: PageRequest, most: int) -> Wanted:
    """Return the wanted rows of the query. Unreadable numbers are ignored."""
    page = query.get("page", "")
    number = int(page[:6]) if page.isdecimal() and page.isascii() else 1
    group, decimal = request.language
    has_frames = "sec-fetch-dest" in request.headers
    texts = {key: query.get(key, "")[:200] for key in (*SELECTED, "where", "picture", "part")}
    return Wanted(most, page=number, group=group, decimal=decimal, has_frames=has_frames, **texts)
