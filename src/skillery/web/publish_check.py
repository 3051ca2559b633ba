"""An upload as a skill: its problems with their lines, its checks, and its differences from the earlier version."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import re
import tomllib
import zipfile
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from skillery.context.budget import body_room
from skillery.context.threads import COMPARISONS, IMPORTS
from skillery.errors import BlobNotFound, Busy, InvalidArchive, SkilleryError, Unavailable, VersionExists
from skillery.formats.manifest import toml_manifest
from skillery.formats.texts import unified_diff
from skillery.formats.toml_lines import ancestors, line_of, lines_of
from skillery.formats.version_diffs import Change, FileChange, FileFacts
from skillery.formats.wording import problems_of
from skillery.importing.entries import Archive, ImportLimits
from skillery.method import or_none
from skillery.publishing.methods import CheckSkill, SkillFile, check_skill
from skillery.publishing.publisher import CheckedSkill
from skillery.skills.descriptions import SkillFileEntry
from skillery.skills.files import ReadSkillFile, read_skill_file
from skillery.web.differences import FileDiff, ToCompare
from skillery.web.frame import PageRequest, message_of
from skillery.web.review_contents import Right, rights_of
from skillery.web.skill_opened import describe
from skillery.web.uploads import UploadedFile, read_multipart

# -- Uploads for publishing: the files of a folder or an archive, stored for an hour as a blob of the user -------------


MOST_BYTES = 64_000_000
"""The maximum number of bytes of an upload, and of all unpacked files in it."""
MOST_FILES = 10_000
KEPT = timedelta(hours=1)
_KIND = "application/x-skillery-upload"
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".skill")
_LIMITS = ImportLimits(max_bytes=MOST_BYTES, max_unpacked_bytes=MOST_BYTES, max_entries=MOST_FILES)
_LEFT_OUT = frozenset({"__pycache__", "__MACOSX", "node_modules"})


class Entry(msgspec.Struct):
    """A file of an upload."""

    path: str
    content: bytes


class Bundle(msgspec.Struct):
    """The files of an upload. Paths are relative to the folder of the skill."""

    files: list[Entry]
    skipped: int = 0
    """The number of hidden files and caches that were left out."""

    def find(self, path: str) -> bytes | None:
        """Return the content of a file, or None."""
        return next((file.content for file in self.files if file.path == path), None)

    @property
    def manifests(self) -> int:
        """The number of files named skill.toml."""
        return sum(file.path.rpartition("/")[2] == "skill.toml" for file in self.files)

    def as_zip(self) -> bytes:
        """Return the files as a zip archive, for an import."""
        archive_bytes = io.BytesIO()
        with zipfile.ZipFile(archive_bytes, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in self.files:
                archive.writestr(zipfile.ZipInfo(file.path), file.content)
        return archive_bytes.getvalue()


async def receive(request: PageRequest) -> Bundle:
    """Return the files of a sent form: those of a folder, or those in a single archive.

    Raise the errors of `read_multipart`. Raise InvalidArchive or ArchiveTooLarge if the archive cannot be read.
    """
    entries: list[Entry] = []
    room = body_room.get()

    async def keep(file: UploadedFile, content: AsyncIterator[bytes]) -> str:
        if len(entries) >= MOST_FILES:
            raise InvalidArchive(f"the folder has more than {MOST_FILES} files", hint="Leave some out.")
        gathered = bytearray()
        async for chunk in content:
            room.take(len(chunk))
            gathered += chunk
        entries.append(Entry(file.name.replace("\\", "/"), bytes(gathered)))
        return file.name

    await read_multipart(request, keep, MOST_BYTES)
    if len(entries) == 1 and entries[0].path.lower().endswith(_ARCHIVES):
        importer = request.site.core.importer
        with importer.temporary_file() as file:
            await IMPORTS.run(file.write, entries[0].content)
            async with importer.opened(file, _LIMITS) as archive:
                room.take(sum(entry.size for entry in archive.entries))
                entries = await IMPORTS.run(_unpacked, archive)
    return await asyncio.to_thread(_bundle_of, entries)


def _bundle_of(entries: list[Entry]) -> Bundle:
    """Return the files without hidden ones and caches. A common top folder is removed from the paths."""
    published = [entry for entry in entries if _is_kept(entry.path)]
    paths = [entry.path for entry in published]
    root = paths[0].partition("/")[0] if paths else ""
    if root and all(path.startswith(f"{root}/") for path in paths):
        published = [Entry(entry.path[len(root) + 1 :], entry.content) for entry in published]
    return Bundle(published, len(entries) - len(published))


def _is_kept(path: str) -> bool:
    parts = path.split("/")
    return not any(part.startswith(".") or part in _LEFT_OUT or not part for part in parts)


def _unpacked(archive: Archive) -> list[Entry]:
    """Return the files in an archive. Links are left out. Raise InvalidArchive if a file cannot be read."""
    return [Entry(entry.path, archive.read(entry)) for entry in archive.entries if not entry.target]


async def keep(request: PageRequest, bundle: Bundle) -> str:
    """Store an upload for an hour. Return its blob id, which only its user can use."""
    content = await asyncio.to_thread(msgspec.msgpack.encode, bundle)
    blob = await request.site.core.blobs.create_blob(request.identity, content, _KIND, KEPT)
    return blob.blob_id


async def find(request: PageRequest, upload: str) -> tuple[Bundle, str]:
    """Return an upload of the user and its digest. Raise BlobNotFound if the user has no such upload."""
    blob = await request.site.core.blobs.find_blob(request.identity, upload)
    if blob.kind != _KIND or blob.owner != request.identity.name:
        raise BlobNotFound(
            f"there is no upload '{upload[:80]}'", hint="Uploads expire after an hour. Upload the files again."
        )
    content: Any = await asyncio.to_thread(request.site.core.blobs.read_range, blob, 0, blob.size_bytes)
    return await asyncio.to_thread(msgspec.msgpack.decode, content, type=Bundle), blob.sha256


MOST_TEXT = 512 * 1024
MOST_DIFFS = 20
_VERSION = re.compile(r'^version\s*=\s*(["\']).*?\1', re.MULTILINE)


class Problem(NamedTuple):
    """A problem of an upload. `text` is the line in the file, and `advice` is TOML to write instead."""

    message: str
    file: str
    line: int | None
    text: str
    advice: str


class Checked(NamedTuple):
    """The results of checking an upload."""

    name: str
    version: str
    problems: list[Problem]
    result: CheckedSkill | None
    """The result of check_skill, or None if check_skill raised an error."""
    failure: dict[str, Any]
    """The `data` of the error of check_skill, with findings and examples."""
    rights: list[Right]
    against: str | None
    """The version that the upload is compared with."""
    files: list[FileDiff]
    more_files: int
    """The number of changed files that are not in `files`."""
    next_versions: list[str]
    """Free versions, if the version of the upload exists already."""


def params_of(bundle: Bundle) -> CheckSkill:
    """Return the params of check_skill and create_skill for an upload.

    Raise InvalidManifest if skill.toml is not valid TOML.
    """
    manifest = toml_manifest(bundle.find("skill.toml") or b"")
    skill_md = (bundle.find("SKILL.md") or b"").decode("utf-8", "replace")
    files = []
    for file in bundle.files:
        try:
            files.append(SkillFile(file.path, file.content.decode("utf-8")))
        except UnicodeDecodeError:
            files.append(SkillFile(file.path, base64.b64encode(file.content).decode(), "base64"))
    return CheckSkill(manifest=manifest, skill_md=skill_md, files=files)


def with_version(bundle: Bundle, version: str) -> Bundle:
    """Return the upload with another version in skill.toml. Raise ValueError if skill.toml has no line to change."""
    text = (bundle.find("skill.toml") or b"").decode("utf-8")
    changed = _VERSION.sub(f'version = "{version}"', text, count=1)
    if tomllib.loads(changed).get("version") != version:
        raise ValueError("skill.toml has no line with the version")
    files = [Entry(file.path, changed.encode()) if file.path == "skill.toml" else file for file in bundle.files]
    return Bundle(files, bundle.skipped)


async def check(request: PageRequest, bundle: Bundle) -> Checked:
    """Return the results of check_skill and the differences. Raise Busy or Unavailable; other errors are results."""
    checked = Checked("", "", [], None, {}, [], None, [], 0, [])
    try:
        params = await asyncio.to_thread(params_of, bundle)
    except SkilleryError as error:
        line = getattr(error, "data", {}).get("line")
        return checked._replace(problems=[_problem(bundle, str(error), {"file": "skill.toml", "line": line})])
    name, version = str(params.manifest.get("name", "")), str(params.manifest.get("version", ""))
    checked = checked._replace(name=name, version=version)
    try:
        result = await request.do(check_skill, params)
        change = result.permissions_diff
        checked = checked._replace(
            result=result, rights=rights_of(change.added, change.removed), against=change.against
        )
    except (Busy, Unavailable):
        raise
    except SkilleryError as error:
        failure = msgspec.to_builtins(error.data)
        problems = []
        if failure.get("problems"):
            problems = [_problem(bundle, problem.message, problem.as_data()) for problem in problems_of(error)]
        elif not failure.get("findings"):
            problems = [_problem(bundle, message_of(error), failure)]
        checked = checked._replace(problems=problems, failure=failure)
        if isinstance(error, VersionExists):
            checked = checked._replace(next_versions=_next_versions(str(failure.get("next_version", version))))
    return await _with_differences(request, bundle, checked)


def _problem(bundle: Bundle, message: str, data: Mapping[str, Any]) -> Problem:
    """Return a problem with the line of its file. If only a path in skill.toml is known, find its line.

    `data` may have file, line, path and toml, as the data of an error.
    """
    file = str(data.get("file") or "skill.toml")
    line = data.get("line")
    path = data.get("path")
    if line is None and path and not data.get("file"):
        source = (bundle.find("skill.toml") or b"").decode("utf-8", "replace")
        line = line_of(lines_of(source, ancestors({path})), path)
    text = ""
    if isinstance(line, int):
        lines = (bundle.find(file) or b"").decode("utf-8", "replace").splitlines()
        text = lines[line - 1][:400] if 0 < line <= len(lines) else ""
    return Problem(message, file, line, text, str(data.get("toml") or ""))


def _next_versions(patch: str) -> list[str]:
    """Return the next patch, minor and major version. `patch` is the next patch version."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", patch)
    if match is None:
        return [patch]
    major, minor = int(match[1]), int(match[2])
    return [patch, f"{major}.{minor + 1}.0", f"{major + 1}.0.0"]


async def _with_differences(request: PageRequest, bundle: Bundle, checked: Checked) -> Checked:
    """Return the results with the differences from the version `against`, or else from the latest version."""
    try:
        skill = await describe(request, checked.name, checked.against)
    except SkilleryError:
        return checked
    old_files = {file.path: file for file in or_none(skill.files) or ()}
    new_contents = {file.path: file.content for file in bundle.files}
    changed = [
        path
        for path in new_contents
        if path not in old_files or _digest(new_contents[path]) != old_files[path].sha256.removeprefix("sha256:")
    ]
    removed = [path for path in old_files if path not in new_contents]
    order = sorted([*changed, *removed], key=lambda path: (path != "SKILL.md", path != "skill.toml", path))
    changes = []
    for path in order[:MOST_DIFFS]:
        old_text = None
        if path in old_files and old_files[path].size_bytes <= MOST_TEXT:
            params = ReadSkillFile(name=checked.name, version=skill.version, path=path)
            file = await request.do(read_skill_file, params)
            old_text = file.content if file.encoding == "utf-8" else None
        changes.append(await COMPARISONS.run(_change, path, old_files.get(path), old_text, new_contents.get(path)))
    diffs = await request.site.texts.differences(changes)
    return checked._replace(against=skill.version, files=diffs, more_files=max(0, len(order) - MOST_DIFFS))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _change(path: str, old: SkillFileEntry | None, before: str | None, content: bytes | None) -> ToCompare:
    """Return the change of one file. `before` is its old text, or None if it is not text or too large."""
    change: Change = "added" if old is None else "removed" if content is None else "changed"
    note = diff = text = ""
    try:
        text = content.decode("utf-8") if content is not None else ""
        is_text = old is None or before is not None
    except UnicodeDecodeError:
        is_text = False
    if not is_text or "\0" in text:
        note = "This is not text."
    elif change == "changed":
        old_text = before or ""
        compared = unified_diff(old_text, text) if max(len(old_text), len(text)) <= MOST_TEXT else None
        if compared is None:
            note = "The file has too many lines for a comparison here."
        else:
            diff = compared
    sides = FileFacts("", old.size_bytes, False) if old else None, FileFacts("", len(content or b""), False)
    return ToCompare(FileChange(path, change, *sides, diff, note), text, is_code=path != "SKILL.md")
