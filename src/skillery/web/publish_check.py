"""`/publish`: users upload a folder or an archive, see the problems, checks and differences, and publish it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from skillery.context.threads import COMPARISONS
from skillery.errors import Busy, SkilleryError, Unavailable, VersionExists
from skillery.formats.bundle import SKILL_MD
from skillery.formats.manifest import toml_manifest
from skillery.formats.names import parse_namespace
from skillery.formats.semver import Version
from skillery.formats.texts import MOST_TEXT_BYTES
from skillery.formats.toml_lines import ancestors, line_of, lines_of
from skillery.formats.version_diffs import MOST_LINED, DiffSide, FileFacts, compare_versions
from skillery.formats.version_diffs import Compared as Side
from skillery.formats.wording import Problem, problems_of
from skillery.identity import access
from skillery.importing import ImportOptions, SkillReport, Summary
from skillery.method import or_none
from skillery.publishing.methods import CheckSkill, CreateSkill, SkillFile, check_skill, create_skill
from skillery.publishing.publisher import CheckedSkill
from skillery.skills.files import ReadSkillFile, read_skill_file
from skillery.web.frame import Done, FormRefused, Page, PageRequest, SeeOther, at_field, message_of, path_of
from skillery.web.review_contents import Compared, compared_of, differences_of, first_version, rights_of
from skillery.web.skill_opened import describe
from skillery.web.uploads import MOST_BYTES, MOST_FILES, Bundle, find_bundle, is_multipart, keep_bundle, receive_bundle

# -- An upload as a skill: its problems with their lines, its checks, and its differences from the earlier version -----


_VERSION = re.compile(r'^version\s*=\s*(["\']).*?\1', re.MULTILINE)


class Checked(NamedTuple):
    """The results of checking an upload."""

    name: str = ""
    version: str = ""
    problems: Sequence[Problem] = ()
    result: CheckedSkill | None = None
    """The result of check_skill, or None if check_skill raised an error."""
    failure: Mapping[str, Any] = {}
    """The `data` of the error of check_skill, with findings and examples."""
    compared: Compared | None = None
    """The changes since an earlier version, or None if the upload has no valid manifest."""
    next_versions: Sequence[Version] = ()
    """Free versions, if the version of the upload exists already."""


def params_of(bundle: Bundle) -> CheckSkill:
    """Return the params of check_skill and create_skill. Raise InvalidManifest if skill.toml is not valid TOML."""
    files = []
    for path, content in bundle.files.items():
        try:
            files.append(SkillFile(path, content.decode("utf-8")))
        except UnicodeDecodeError:
            files.append(SkillFile(path, base64.b64encode(content).decode(), "base64"))
    manifest = toml_manifest(bundle.files.get("skill.toml", b""))
    return CheckSkill(manifest=manifest, skill_md=bundle.text(SKILL_MD), files=files)


def with_version(bundle: Bundle, version: str) -> Bundle:
    """Return the upload with another version in skill.toml. Raise ValueError if skill.toml has no line to change."""
    changed = _VERSION.sub(f'version = "{version}"', bundle.text("skill.toml"), count=1)
    if tomllib.loads(changed).get("version") != version:
        raise ValueError("skill.toml has no line with the version")
    return Bundle({**bundle.files, "skill.toml": changed.encode()}, bundle.skipped)


async def check(request: PageRequest, bundle: Bundle) -> Checked:
    """Return the results of check_skill and the differences. Raise Busy or Unavailable; other errors are results."""
    try:
        params = await asyncio.to_thread(params_of, bundle)
    except SkilleryError as error:
        return Checked(problems=[Problem(str(error), file="skill.toml", line=error.data.get("line"))])
    name, version = str(params.manifest.get("name", "")), str(params.manifest.get("version", ""))
    try:
        result = await request.do(check_skill, params)
        change = result.permissions_diff
        compared = await _compared(request, bundle, params.manifest, change.against)
        compared = compared._replace(rights=rights_of(change.added, change.removed))
        return Checked(name, version, result=result, compared=compared)
    except (Busy, Unavailable):
        raise
    except SkilleryError as error:
        failure = msgspec.to_builtins(error.data)
        problems = []
        if failure.get("problems"):
            problems = problems_of(error)
        elif not failure.get("findings"):
            problems = [Problem(message_of(error), *map(failure.get, ("path", "file", "line", "toml")))]
        problems = [_located(bundle, problem) for problem in problems]
        free: list[Version] = []
        if isinstance(error, VersionExists):
            patch = Version.parse(failure["next_version"])
            free = [patch, patch.next_minor(), patch.next_major()]
        compared = await _compared(request, bundle, params.manifest, None)
        return Checked(name, version, problems, None, failure, compared, free)


def _located(bundle: Bundle, problem: Problem) -> Problem:
    """Return a problem with its file. If only its path in skill.toml is known, find the line."""
    line = problem.line
    if line is None and problem.path and not problem.file:
        line = line_of(lines_of(bundle.text("skill.toml"), ancestors({problem.path})), problem.path)
    return replace(problem, file=problem.file or "skill.toml", line=line)


async def _compared(request: PageRequest, bundle: Bundle, manifest: dict[str, Any], against: str | None) -> Compared:
    """Return the differences from the version `against`, or else from the latest version, if there is one."""
    try:
        skill = await describe(request, str(manifest.get("name", "")), against)
    except SkilleryError:
        return first_version(manifest)
    old = {file.path: FileFacts(file.sha256, file.size_bytes, file.executable) for file in or_none(skill.files) or ()}
    new = await asyncio.to_thread(_facts_of, bundle, old)
    differing = [path for path, facts in old.items() if new.get(path) != facts and facts.size_bytes <= MOST_TEXT_BYTES]
    contents: dict[str, bytes] = {}
    for path in sorted(differing, key=lambda path: (path != SKILL_MD, path))[:MOST_LINED]:
        params = ReadSkillFile(name=skill.name, version=skill.version, path=path)
        file = await request.do(read_skill_file, params)
        contents[path] = file.content.encode() if file.encoding == "utf-8" else base64.b64decode(file.content)
    side = DiffSide(skill.name, skill.version, skill.digest)
    before = Side(side, skill.manifest, old, lambda path: contents.get(path, b""))
    now = Side(DiffSide(skill.name, "", ""), manifest, new, lambda path: bundle.files.get(path, b""))
    diff = await COMPARISONS.run(compare_versions, before, now)
    return compared_of(diff, await differences_of(request, diff, bundle.text(SKILL_MD)))


def _facts_of(bundle: Bundle, old: Mapping[str, FileFacts]) -> dict[str, FileFacts]:
    """Return the facts of the uploaded files. Browsers do not say which files are executable."""
    return {
        path: FileFacts(hashlib.sha256(content).hexdigest(), len(content), path in old and old[path].executable)
        for path, content in bundle.files.items()
    }


# -- The pages and their forms -----------------------------------------------------------------------------------------


async def show_start(request: PageRequest) -> Page:
    limits = request.site.core.importer.bundles
    values = {"most_files": MOST_FILES, "most_mb": MOST_BYTES // 1_000_000, "limits": limits}
    return Page("publish_start.html", "Publish", values, "publish")


async def receive_upload(request: PageRequest) -> SeeOther:
    """Store the uploaded files, and redirect to the page of the upload."""
    if not is_multipart(request.headers):
        await request.form()
        raise FormRefused({"": "Choose a folder or an archive first."})
    bundle = await receive_bundle(request)
    if not bundle.files:
        hint = f" {bundle.skipped} hidden files were left out." if bundle.skipped else ""
        raise FormRefused({"": f"The upload has no files.{hint}"})
    return SeeOther(path_of("publish", await keep_bundle(request, bundle)))


async def show_upload(request: PageRequest) -> Page:
    """Return the page of an upload: the check of one skill, or the form of an import."""
    upload = request.parameter("upload")
    bundle, digest = await find_bundle(request, upload)
    values_of_both: dict[str, Any] = {"address": path_of("publish", upload), "digest": digest, "bundle": bundle}
    if "skill.toml" not in bundle.files:
        values = {**values_of_both, "skills": sum(path.rpartition("/")[2] == SKILL_MD for path in bundle.files)}
        return Page("publish_import.html", "Import", values, "publish")
    checked = await check(request, bundle)
    return Page("publish_check.html", "Check and publish", {**values_of_both, "checked": checked}, "publish")


async def change_upload(request: PageRequest) -> Page | SeeOther:
    """Publish the upload, save it as a draft, import it, or change its version, by the action of the form."""
    form = await request.form()
    access.require(request.identity, "publish")
    bundle, digest = await find_bundle(request, request.parameter("upload"))
    if form.get("digest") != digest:
        raise FormRefused({"": "This upload has other contents now. Nothing was published. Check it again."})
    action = form.get("action")
    if action == "version":
        try:
            changed = await asyncio.to_thread(with_version, bundle, form.get("version")[:100])
        except ValueError as error:
            raise FormRefused({"": f"The version cannot be changed: {error}."}) from None
        return SeeOther(path_of("publish", await keep_bundle(request, changed)))
    if action == "import":
        return await _import(request, bundle, form.get("namespace").strip())
    if action not in {"publish", "draft"}:
        raise FormRefused({"": "The form has no known action. Use a button of this page."})
    params: CreateSkill = await asyncio.to_thread(params_of, bundle)
    if action == "draft":
        params = replace(params, submit=False)
    created = await request.do(create_skill, params)
    words = {"published": "is published", "in_review": "waits for a review", "draft": "is a draft"}
    text = f"{created.name} {created.version} {words.get(created.status, created.status)}."
    return SeeOther(path_of("s", f"{created.name}@{created.version}"), Done(text))


async def _import(request: PageRequest, bundle: Bundle, namespace: str) -> Page:
    """Import all skills of an upload into a namespace. Return the page with the report of each skill."""
    importer = request.site.core.importer
    summary: Summary | None = None
    reports: list[SkillReport] = []
    with at_field("namespace"):
        parse_namespace(namespace)
    options = ImportOptions(namespace=namespace, name="upload.zip", is_default_source=True, nested="auto")
    with importer.receive() as file:
        file.write(await asyncio.to_thread(bundle.as_zip))
        file.flush()
        async for report in importer.import_archive(request.identity, file, options):
            if isinstance(report, Summary):
                summary = report
            elif isinstance(report, SkillReport):
                reports.append(report)
    order = {"refused": 0, "published": 1, "draft": 1}
    reports.sort(key=lambda report: (order.get(report.outcome, 2), report.path))
    return Page("publish_report.html", "Report of the import", {"reports": reports, "summary": summary}, "publish")
