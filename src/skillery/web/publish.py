"""`/publish`: users upload a folder or an archive, see the results of the checks, and publish it."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from skillery.errors import SkilleryError
from skillery.formats.names import parse_namespace
from skillery.importing import Begun, ImportOptions, SkillReport, Summary
from skillery.publishing.methods import CreateSkill, create_skill
from skillery.web import publish_check as bundles
from skillery.web.frame import Done, Page, PageRequest, SeeOther, message_of, path_of
from skillery.web.publish_check import Bundle, check, params_of, with_version
from skillery.web.uploads import is_multipart

MEGABYTES = bundles.MOST_BYTES // 1_000_000


async def show_start(request: PageRequest) -> Page:
    return _start(request)


def _start(request: PageRequest, problem: str = "", hint: str = "") -> Page:
    values = {
        "problem": problem,
        "hint": hint,
        "most_files": bundles.MOST_FILES,
        "most_mb": MEGABYTES,
        "grants": sorted(request.identity.namespaces),
    }
    return Page("publish_start.html", "Publish", values, "publish", 400 if problem else 200)


async def receive_upload(request: PageRequest) -> Page | SeeOther:
    """Store the uploaded files, and redirect to the page of the upload."""
    if not is_multipart(request.headers):
        await request.form()
        return _start(request, "Choose a folder or an archive first.")
    try:
        bundle = await bundles.receive(request)
    except SkilleryError as error:
        if error.type in {"not_allowed", "busy"}:
            raise
        return _start(request, str(error), error.hint or "")
    if not bundle.files:
        hint = f"{bundle.skipped} hidden files were left out." if bundle.skipped else ""
        return _start(request, "The upload has no files.", hint)
    return SeeOther(path_of("publish", await bundles.keep(request, bundle)))


async def show_upload(request: PageRequest) -> Page:
    return await _upload(request)


async def _upload(request: PageRequest, problem: str = "") -> Page:
    """Return the page of an upload: the check of one skill, or the form of an import."""
    upload = request.parameter("upload")
    bundle, digest = await bundles.find(request, upload)
    status = 400 if problem else 200
    address = path_of("publish", upload)
    values_of_both: dict[str, Any] = {"address": address, "digest": digest, "bundle": bundle, "problem": problem}
    if bundle.find("skill.toml") is None:
        count = sum(file.path.rpartition("/")[2] == "SKILL.md" for file in bundle.files)
        values = {**values_of_both, "skills": count, "manifests": bundle.manifests}
        return Page("publish_import.html", "Import", values, "publish", status)
    checked = await check(request, bundle)
    return Page("publish_check.html", "Check and publish", {**values_of_both, "checked": checked}, "publish", status)


async def change_upload(request: PageRequest) -> Page | SeeOther:
    """Publish the upload, save it as a draft, import it, or change its version, by the action of the form."""
    form = await request.form()
    request.require("publish")
    bundle, digest = await bundles.find(request, request.parameter("upload"))
    if form.get("digest") != digest:
        return await _upload(request, "This upload has other contents now. Nothing was published. Check it again.")
    action = form.get("action")
    if action == "version":
        try:
            changed = await asyncio.to_thread(with_version, bundle, form.get("version")[:100])
        except ValueError as error:
            return await _upload(request, f"The version cannot be changed: {error}.")
        return SeeOther(path_of("publish", await bundles.keep(request, changed)))
    if action == "import":
        return await _import(request, bundle, form.get("namespace").strip())
    if action not in {"publish", "draft"}:
        return await _upload(request, "The form has no known action. Use a button of this page.")
    params: CreateSkill = await asyncio.to_thread(params_of, bundle)
    if action == "draft":
        params = replace(params, submit=False)
    try:
        created = await request.do(create_skill, params)
    except SkilleryError as error:
        return await _upload(request, message_of(error))
    words = {"published": "is published", "in_review": "waits for a review", "draft": "is a draft"}
    text = f"{created.name} {created.version} {words.get(created.status, created.status)}."
    return SeeOther(path_of("s", f"{created.name}@{created.version}"), Done(text))


async def _import(request: PageRequest, bundle: Bundle, namespace: str) -> Page:
    """Import all skills of an upload into a namespace. Return the page with the report of each skill."""
    importer = request.site.core.importer
    begin_report: Begun | None = None
    summary: Summary | None = None
    reports: list[SkillReport] = []
    try:
        options = ImportOptions(
            namespace=parse_namespace(namespace), name="upload.zip", is_default_source=True, nested="auto"
        )
        with importer.receive() as file:
            file.write(await asyncio.to_thread(bundle.as_zip))
            file.flush()
            async for report in importer.import_archive(request.identity, file, options):
                if isinstance(report, Begun):
                    begin_report = report
                elif isinstance(report, Summary):
                    summary = report
                else:
                    reports.append(report)
    except SkilleryError as error:
        return await _upload(request, message_of(error))
    rows = [(report, _error(report.error)) for report in reports]
    order = {"refused": 0, "published": 1, "draft": 1}
    rows.sort(key=lambda row: (order.get(row[0].outcome, 2), row[0].path))
    values = {"rows": rows, "summary": summary, "begun": begin_report}
    return Page("publish_report.html", "Report of the import", values, "publish")


def _error(error: Any) -> str:
    """Return the message of an error of an import, or "" if there is none."""
    if isinstance(error, SkilleryError):
        return message_of(error)
    return "" if error is None else "An error happened on the server."
