"""The upload of one skill as a form. The files of the form are imported as an archive with one skill."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple, cast

from multipart import MultipartError, MultipartParser, MultipartPart, parse_options_header

from skillery.errors import InvalidParams, SkilleryError
from skillery.formats.wording import quoted
from skillery.http.requests import HttpRefusal
from skillery.importing import Begun, ImportOptions, SkillReport
from skillery.methods.errors import INVALID_REQUEST, is_refusal, plain_error
from skillery.rest.imports import spool
from skillery.rest.skill_requests import Asked

# -- Uploads of skills as forms (`multipart/form-data`). A form is converted to an archive for the importer ------------


FILES = ("files", "files[]")
IGNORED = ("display_title", "display_name")
"""Fields that clients of other registries send. This registry ignores them."""
DEFAULT = "default"
_MOST_TEXT = 8
MOST_PARTS = 2048
_IN_MEMORY = 16 * 1024
_ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b")


class FormFields(NamedTuple):
    """The fields of a form that are not files."""

    is_default: bool
    """Whether to make the new version the default version of the skill."""


def boundary_of(content_type: str) -> str:
    """Return the boundary between the parts of a form.

    Raise HttpRefusal 415 if the Content-Type is not multipart/form-data.
    """
    kind, options = parse_options_header(content_type)
    boundary: str = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        error = plain_error(
            INVALID_REQUEST,
            f"the Content-Type is {content_type[:80]!r}",
            "unsupported_media_type",
            "Send multipart/form-data with the files of a skill as 'files[]', or one zip as 'files'. In Python, give "
            "the client a list of files: earlier clients send a single file as JSON, without its content.",
        )
        raise HttpRefusal(415, error)
    return boundary


@contextmanager
def archive_in(form: BinaryIO, boundary: str, most_bytes: int) -> Iterator[tuple[BinaryIO, FormFields]]:
    """Yield the archive in the form, or an archive of the files in the form, and the other fields. Blocking.

    Large parts are in temporary files without names, so a crash leaves no files. The importer checks the names of
    entries. Raise InvalidParams if the form is invalid.
    """
    form.seek(0)
    parser = MultipartParser(
        form,
        boundary,
        part_limit=MOST_PARTS,
        spool_limit=_IN_MEMORY,
        memory_limit=MOST_PARTS * _IN_MEMORY,
        disk_limit=most_bytes,
    )
    parts: list[MultipartPart] = []
    try:
        try:
            parts.extend(parser)
        except (MultipartError, UnicodeError) as error:
            raise InvalidParams(f"the form cannot be read: {error}", hint="Send multipart/form-data.") from None
        with _packed(_files(parts)) as archive:
            yield archive, FormFields(_is_default(parts))
    finally:
        for part in parts:
            part.close()


def _files(parts: list[MultipartPart]) -> list[MultipartPart]:
    """Return the files of a form. Raise InvalidParams if there is none, or if a field is unknown."""
    for part in parts:
        if part.name not in (*FILES, *IGNORED, DEFAULT):
            raise InvalidParams(f"there is no field {quoted(part.name)}", hint="Send the files as 'files[]'.")
    files = [part for part in parts if part.name in FILES]
    if not files:
        raise InvalidParams("there is no file in the form", hint="Send the files of a skill as 'files[]', or one zip.")
    for part in files:
        if not part.filename or "\0" in part.filename:
            raise InvalidParams(
                f"a file in {part.name!r} has no name", hint="Send its path as the filename: my-skill/SKILL.md."
            )
    return files


def _is_default(parts: list[MultipartPart]) -> bool:
    """Return whether the last field `default` is true. False without this field. Raise InvalidParams for other
    values.
    """
    field = next((part for part in reversed(parts) if part.name == DEFAULT), None)
    if field is None:
        return False
    field.file.seek(0)
    text: str = field.file.read(_MOST_TEXT).decode("utf-8", "replace").lower()
    if text not in ("true", "false"):
        raise InvalidParams(f"the field 'default' is {quoted(text)}", hint="Write true or false.", param=DEFAULT)
    return text == "true"


@contextmanager
def _packed(parts: list[MultipartPart]) -> Iterator[BinaryIO]:
    """Yield the only file if it is an archive, else a temporary zip of all files."""
    first = cast(BinaryIO, parts[0].file)
    first.seek(0)
    if len(parts) == 1 and first.read(4).startswith(_ARCHIVES):
        yield first
        return
    with TemporaryFile() as zip_file:
        with zipfile.ZipFile(zip_file, "w") as writer:
            for part in parts:
                content = cast(BinaryIO, part.file)
                content.seek(0)
                with writer.open(zipfile.ZipInfo(part.filename or ""), "w") as entry:
                    copyfileobj(content, entry)
        yield cast(BinaryIO, zip_file)


async def published(request: Asked, receive: Any, options: ImportOptions) -> tuple[SkillReport, FormFields]:
    """Publish the skill that a form contains. Return the report of the import, and the fields of the form.

    If the form or the skill is refused, raise the error. Record a refused skill in the audit trail.
    """
    boundary = boundary_of(request.headers.get("content-type", ""))
    importer = request.parts.importer
    with importer.receive() as form:
        await spool(receive, request.headers, form, importer.limits.max_bytes)
        opening = archive_in(form, boundary, importer.limits.max_bytes)
        archive, fields = await asyncio.to_thread(opening.__enter__)
        try:
            reports = importer.import_archive(request.identity, archive, options)
            try:
                report = await _only_one(reports)
            finally:
                await reports.aclose()
        finally:
            await asyncio.to_thread(opening.__exit__, None, None, None)
    if report.error is not None:
        if isinstance(report.error, SkilleryError) and is_refusal(report.error, "manifest"):
            request.parts.gate.note_refusal(request.identity, "create_skill", report.name or options.into, report.error)
        raise report.error
    return report, fields


async def _only_one(reports: Any) -> SkillReport:
    """Return the report of the only skill in an import.

    Raise InvalidParams before anything is published if there is not exactly one skill.
    """
    only: SkillReport | None = None
    async for report in reports:
        if isinstance(report, Begun) and report.skills - report.merged != 1:
            raise InvalidParams(
                f"there are {report.skills - report.merged} skills in this upload, and this endpoint takes one",
                hint="A skill is a folder with a SKILL.md; POST /import takes an archive with many skills.",
            )
        if isinstance(report, SkillReport) and report.outcome != "merged":
            only = report
    assert only is not None, "an import that has begun with one skill reports it"
    return only
