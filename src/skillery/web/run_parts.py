"""The parts of a run: their views on the page of the run, `/runs/{id}/parts/{name}`, and their downloads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from typing import NamedTuple

import msgspec

from skillery.contents.blob_rows import BlobRow, output_blobs
from skillery.errors import ArchiveTooLarge, BlobNotFound, SkilleryError, Unavailable
from skillery.formats.archives import MEDIA_TYPES, ArchiveEntry, archive
from skillery.formats.paths import portable_paths
from skillery.http.requests import CHUNK_BYTES
from skillery.method import or_none
from skillery.runs.methods import GetRun, get_run
from skillery.runs.queries import args_of
from skillery.runs.results import RunRecord
from skillery.versions.example_results import LargeOutput
from skillery.web.display import without_hidden
from skillery.web.frame import Direct, Page, PageRequest, path_of
from skillery.web.sending import raw_file, sent_content, start_of
from skillery.web.skill_files import MOST_BYTES_OF_PART, sent_picture, values_of_view, view_of_part, wanted_of
from skillery.web.views.kinds import BINARY, TEXT, with_ending
from skillery.web.views.parts import File
from skillery.web.views.shown import PARTS, Code, Form, Shown, ToShow, View

MOST_BYTES = 1024 * 1024
"""The number of bytes that the page of a run reads of a file or of the output."""
MOST_FILES = 200
MOST_ARCHIVE = 256 * 1024 * 1024
MOST_IN_ARCHIVE = 1000
"""The number of parts of an archive. The code of a run decides how many its result has."""
ZIP = BINARY._replace(media_type=MEDIA_TYPES["zip"])
PREVIEW_ROWS = 12
CHART = ("part", "chart", "x", "y", "agg")
"""The fields of the query that choose the chart of one part."""


class Result(NamedTuple):
    """The output and the files of a run or an example, as far as they have not expired."""

    base: str
    """The address of the run or the example."""
    files: list[BlobRow]
    output: BlobRow | None
    """The blob of a large output."""
    output_json: bytes
    """The output, or the start of a large output that has expired."""
    output_bytes: int


async def result_of(request: PageRequest, run: RunRecord) -> Result:
    rows = await request.read_page(lambda connection: output_blobs(connection, run.run_id))
    base = path_of("runs", run.run_id)
    output_json = bytes(run.output) if isinstance(run.output, msgspec.Raw) else msgspec.json.encode(run.output)
    try:
        large = msgspec.json.decode(output_json, type=LargeOutput)
    except msgspec.ValidationError:
        large = None
    if large is None or large.blob_id not in run.output_blobs:
        return Result(base, rows, None, output_json, len(output_json))
    output = next((row for row in rows if row.id == large.blob_id), None)
    files = [row for row in rows if row.id != large.blob_id]
    return Result(base, files, output, large.preview.encode(), large.size_bytes)


async def shown_parts(request: PageRequest, result: Result, args: str | None, code: Code | None) -> Shown:
    """Return the views for the page of a run, and its code."""
    to_show = await read_result(request, result, {row.id for row in result.files[:PARTS]})
    wanted = wanted_of({key: request.query.get(key, "") for key in CHART}, request, PREVIEW_ROWS)
    to_show = msgspec.structs.replace(to_show, args=(args or "null").encode(), wanted=wanted, code=code)
    return await request.site.texts.parts(to_show)


async def read_result(request: PageRequest, result: Result, read_ids: set[str], most: int = MOST_BYTES) -> ToShow:
    """Return a result with the output and the contents of some files, at most `most` bytes of each."""

    def start(row: BlobRow) -> bytes | None:
        try:
            return start_of(partial(request.site.core.blobs.open, row), row.path or "", row.size_bytes, most)
        except (SkilleryError, OSError):
            return None  # the page shows the other parts

    def read() -> tuple[bytes | None, list[File]]:
        files = [
            File(
                row.id, row.path or "", row.kind, row.size_bytes, start(row) if row.id in read_ids else None, row.sha256
            )
            for row in result.files[:MOST_FILES]
        ]
        return start(result.output) if result.output else None, files

    output_json, files = await asyncio.to_thread(read)
    return ToShow(result.base, output_json or result.output_json, result.output_bytes, files)


async def _find_part(request: PageRequest, run: RunRecord, form: Form | None = None) -> tuple[Result, View]:
    """Return the part in the address as a view. Raise BlobNotFound if the run has no such part."""
    result, name = await result_of(request, run), request.parameter("name")
    read_ids = {row.id for row in result.files if row.path == name and form != "raw"}
    while True:
        to_show = await read_result(request, result, read_ids, MOST_BYTES_OF_PART)
        view = await view_of_part(request, msgspec.structs.replace(to_show, part=name), form)
        if form == "raw" or not view.blob_id or view.blob_id in read_ids:
            return result, view
        # The output names this file by a key, which only the rendering process knows.
        read_ids = {view.blob_id}


async def show_part(request: PageRequest) -> Page | Direct:
    """Show one part of a run, or a picture of a notebook. A table can be sorted and filtered."""
    run, name = await request.do(get_run, GetRun(run_id=request.parameter("id"))), request.parameter("name")
    _, view = await _find_part(request, run)
    if request.query.get("picture"):
        return sent_picture(view)
    skill = or_none(run.skill)
    raw = path_of("runs", run.run_id, "raw", view.name)
    values = values_of_view(request, view, path_of("runs", run.run_id, "parts", name), raw)
    values |= {"run": run, "run_name": run.tool or (skill.name if skill else run.method)}
    return Page("runs_part.html", name, values, "runs")


# -- `/runs/{id}/compare/{other}`: a run next to an earlier one --------------------------------------------------------


ENDINGS = {"python": "py", "javascript": "mjs", "bash": "sh"}


async def show_comparison(request: PageRequest) -> Page:
    """Compare a run with another one, which is the earlier one on the page."""
    ids = request.parameter("other"), request.parameter("id")
    runs = [await request.do(get_run, GetRun(run_id=run_id)) for run_id in ids]
    results = [await result_of(request, record) for record in runs]
    contents = [{(row.path, row.sha256) for row in result.files} for result in results]
    sides = []
    for record, result, others in zip(runs, results, reversed(contents), strict=True):
        differing = [row.id for row in result.files if (row.path, row.sha256) not in others]
        to_show = await read_result(request, result, set(differing[:PARTS]))
        args = await request.read(partial(args_of, identity=request.identity, run_id=record.run_id))
        sides.append(msgspec.structs.replace(to_show, args=(args or "null").encode(), code=kept_code(record)))
    diff = await request.site.texts.results(*sides)
    return Page("runs_compare.html", "Two runs", {"runs": runs, "diff": diff}, "runs")


def kept_code(run: RunRecord) -> Code | None:
    """Return the code of `run_code`, or None if there is none or if it is not kept."""
    kept = or_none(run.code)
    return Code(f"run_code.{ENDINGS[kept.language]}", kept.code.encode(), None, is_file=False) if kept else None


# -- Downloads: the content of a part, of a blob, and of all parts -----------------------------------------------------


async def send_part(request: PageRequest) -> Direct:
    """Send the content of a part: a file as it is, or a value of the output as CSV, JSON or text."""
    run = await request.do(get_run, GetRun(run_id=request.parameter("id")))
    result, view = await _find_part(request, run, "raw")
    content = await _content_of(request, result, view)
    if content is None:
        raise Unavailable("this part is too large to be read", hint="Open the page of the run.")
    if isinstance(content, bytes):
        return sent_content(view.name, content, TEXT)
    return sent_blob(request, content, request.parameter("name"))


async def _content_of(request: PageRequest, result: Result, view: View) -> bytes | BlobRow | None:
    """Return what a download of a part has, or None if the value could not be read. `view` has the form `raw`."""
    is_whole = view.role == "whole"
    blob_id = result.output.id if is_whole and result.output else view.blob_id
    if blob_id:
        return await request.site.core.blobs.find_blob(request.identity, blob_id)
    if is_whole:
        return result.output_json if len(result.output_json) == result.output_bytes else None
    return None if view.note else view.text.encode()


async def send_blob(request: PageRequest, *, for_frame: bool = False) -> Direct:
    """Send a blob that a run has written, or its log. Raise BlobNotFound for other blobs."""
    run = await request.do(get_run, GetRun(run_id=request.parameter("id")))
    blob_id = request.parameter("blob")
    names = {file.blob_id: file.path for file in or_none(run.files) or ()}
    if blob_id not in {*run.output_blobs, *names, run.logs_blob}:
        raise BlobNotFound(f"this run has no blob '{blob_id[:80]}'", hint="Open the page of the run.")
    name = "log.txt" if blob_id == run.logs_blob else names.get(blob_id, "")
    blob = await request.site.core.blobs.find_blob(request.identity, blob_id)
    return sent_blob(request, blob, name, for_frame=for_frame)


def sent_blob(request: PageRequest, blob: BlobRow, name: str, *, for_frame: bool = False) -> Direct:
    """Send a blob of a run. Without a `name`, its name is its id with the ending of its media type."""
    if for_frame or not name:
        name = with_ending(name or blob.id.replace(":", "-"), blob.kind)
    opens = partial(request.site.core.blobs.open, blob)
    return raw_file(request, name, blob.sha256, blob.size_bytes, opens, for_frame=for_frame)


async def send_archive(request: PageRequest) -> Direct:
    """Send the files and values of a result, and its whole output, as a zip archive.

    Raise ArchiveTooLarge if they have more than MOST_ARCHIVE bytes, or are more than MOST_IN_ARCHIVE.
    """
    run = await request.do(get_run, GetRun(run_id=request.parameter("id")))
    result = await result_of(request, run)
    to_show = await read_result(request, result, set(), MOST_BYTES_OF_PART)
    views = (await request.site.texts.parts(msgspec.structs.replace(to_show, form="raw"))).views
    hint = "Download them one by one from the page of the run."
    if len(views) > MOST_IN_ARCHIVE:
        raise ArchiveTooLarge(f"this run has more than {MOST_IN_ARCHIVE} parts", hint=hint)
    contents = [await _content_of(request, result, view) for view in views]
    names = portable_paths(without_hidden(view.name) for view in views)
    by_name = {name: content for name, content in zip(names, contents, strict=True) if content}
    sizes = {name: len(part) if isinstance(part, bytes) else part.size_bytes for name, part in by_name.items()}
    if sum(sizes.values()) > MOST_ARCHIVE:
        message = f"the parts of this run have more than {MOST_ARCHIVE} bytes"
        raise ArchiveTooLarge(message, hint=hint)

    def read(entry: ArchiveEntry) -> Iterator[bytes]:
        content = by_name[entry.path]
        with BytesIO(content) if isinstance(content, bytes) else request.site.core.blobs.open(content) as stream:
            yield from iter(partial(stream.read, CHUNK_BYTES), b"")

    entries = [ArchiveEntry(name, size, executable=False) for name, size in sizes.items()]
    return sent_content(f"{run.run_id}.zip", archive("zip", entries, read), ZIP)
