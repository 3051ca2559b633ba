"""An upload as a skill: its problems at their lines, its checks, and its differences from the preceding version."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import tomllib
from typing import Any, NamedTuple

from skillery.context.threads import COMPARISONS
from skillery.errors import SkilleryError
from skillery.formats.manifest import toml_manifest
from skillery.formats.text_diffs import unified_diff
from skillery.formats.toml_lines import ancestors, line_of, lines_of
from skillery.web.differences import FileDiff, WordBudget, file_diff
from skillery.web.frame import CallFailed, PageRequest
from skillery.web.publish.bundles import Bundle, Entry
from skillery.web.reviews.compared import Right, rights_of

MOST_TEXT = 512 * 1024
MOST_DIFFS = 20
_VERSION = re.compile(r'^version\s*=\s*(["\']).*?\1', re.MULTILINE)


class Problem(NamedTuple):
    """A problem of an upload, with the line of the file."""

    message: str
    file: str
    line: int | None
    text: str
    advice: str


class Checked(NamedTuple):
    """What the server says about an upload."""

    name: str
    version: str
    problems: list[Problem]
    result: dict[str, Any]
    """The result of check_skill, or {} if it has failed."""
    failure: dict[str, Any]
    """`data` of the error of check_skill, with findings and examples."""
    rights: list[Right]
    against: str | None
    files: list[FileDiff]
    more_files: int
    next_versions: list[str]
    """Free versions, if the version is taken."""


def params_of(bundle: Bundle) -> dict[str, Any]:
    """Return the params of create_skill. Raise InvalidManifest if skill.toml is not valid TOML."""
    manifest = toml_manifest(bundle.find("skill.toml") or b"")
    skill_md = (bundle.find("SKILL.md") or b"").decode("utf-8", "replace")
    files = []
    for file in bundle.files:
        try:
            files.append({"path": file.path, "content": file.content.decode("utf-8")})
        except UnicodeDecodeError:
            content = base64.b64encode(file.content).decode()
            files.append({"path": file.path, "content": content, "encoding": "base64"})
    return {"manifest": manifest, "skill_md": skill_md, "files": files}


def with_version(bundle: Bundle, version: str) -> Bundle:
    """Return the bundle with another version in skill.toml. Raise ValueError if skill.toml has no such line."""
    text = (bundle.find("skill.toml") or b"").decode("utf-8")
    changed = _VERSION.sub(f'version = "{version}"', text, count=1)
    if tomllib.loads(changed).get("version") != version:
        raise ValueError("skill.toml has no line with the version")
    files = [Entry(file.path, changed.encode()) if file.path == "skill.toml" else file for file in bundle.files]
    return Bundle(files, bundle.skipped)


async def check(request: PageRequest, bundle: Bundle) -> Checked:
    nothing = Checked("", "", [], {}, {}, [], None, [], 0, [])
    try:
        params = await asyncio.to_thread(params_of, bundle)
    except SkilleryError as error:
        line = getattr(error, "data", {}).get("line")
        return nothing._replace(
            problems=[_problem(bundle, {"message": str(error), "file": "skill.toml", "line": line})]
        )
    name, version = str(params["manifest"].get("name", "")), str(params["manifest"].get("version", ""))
    found = nothing._replace(name=name, version=version)
    try:
        result = await request.call("check_skill", params)
        found = found._replace(result=result)
        difference = result["permissions_diff"]
        found = found._replace(rights=rights_of(difference), against=difference["against"])
    except CallFailed as failed:
        if failed.status >= 500:
            raise
        listed = failed.data.get("problems") or ()
        problems = [_problem(bundle, one) for one in listed]
        if not problems and not failed.data.get("findings"):
            problems = [_problem(bundle, {"message": f"{failed.message}. {failed.hint}", **failed.data})]
        found = found._replace(problems=problems, failure=dict(failed.data))
        if failed.type == "version_exists":
            found = found._replace(next_versions=_next_versions(str(failed.data.get("next_version", version))))
    return await _with_differences(request, bundle, found)


def _problem(bundle: Bundle, problem: dict[str, Any]) -> Problem:
    file = str(problem.get("file") or "skill.toml")
    line = problem.get("line")
    path = problem.get("path")
    if line is None and path and not problem.get("file"):
        source = (bundle.find("skill.toml") or b"").decode("utf-8", "replace")
        line = line_of(lines_of(source, ancestors({path})), path)
    text = ""
    if isinstance(line, int):
        lines = (bundle.find(file) or b"").decode("utf-8", "replace").splitlines()
        text = lines[line - 1][:400] if 0 < line <= len(lines) else ""
    return Problem(str(problem["message"]), file, line, text, str(problem.get("toml") or ""))


def _next_versions(patch: str) -> list[str]:
    """Return the next patch, minor and major version."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", patch)
    if match is None:
        return [patch]
    major, minor = int(match[1]), int(match[2])
    return [patch, f"{major}.{minor + 1}.0", f"{major + 1}.0.0"]


async def _with_differences(request: PageRequest, bundle: Bundle, found: Checked) -> Checked:
    """Add the differences from the latest version, or from the version that `permissions_diff` names."""
    try:
        asked = {"name": found.name, "version": found.against, "detail": "full"}
        skill = (await request.call("describe_skill", asked))["skill"]
    except CallFailed:
        return found
    old = {one["path"]: one for one in skill["files"]}
    new = {file.path: file.content for file in bundle.files}
    changed = [
        path for path in new if path not in old or _digest(new[path]) != old[path]["sha256"].removeprefix("sha256:")
    ]
    removed = [path for path in old if path not in new]
    order = sorted([*changed, *removed], key=lambda path: (path != "SKILL.md", path != "skill.toml", path))
    diffs, budget = [], WordBudget()
    for path in order[:MOST_DIFFS]:
        before = None
        if path in old and old[path]["size_bytes"] <= MOST_TEXT:
            file = await request.call(
                "read_skill_file", {"name": found.name, "version": skill["version"], "path": path}
            )
            before = file["content"] if file["encoding"] == "utf-8" else None
        diffs.append(await COMPARISONS.run(_diff, path, old.get(path), before, new.get(path), budget))
    return found._replace(against=skill["version"], files=diffs, more_files=max(0, len(order) - MOST_DIFFS))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _diff(
    path: str, old: dict[str, Any] | None, before: str | None, content: bytes | None, budget: WordBudget
) -> FileDiff:
    change = "added" if old is None else "removed" if content is None else "changed"
    note = diff = text = ""
    try:
        text = content.decode("utf-8") if content is not None else ""
        is_text = old is None or before is not None
    except UnicodeDecodeError:
        is_text = False
    if not is_text or "\0" in text:
        note = "This is not text."
    elif change == "changed":
        compared = unified_diff(before or "", text) if max(len(before or ""), len(text)) <= MOST_TEXT else None
        diff, note = (
            (compared, "") if compared is not None else ("", "The file has too many lines for a comparison here.")
        )
    sizes = {"old": {"size_bytes": old["size_bytes"]} if old else None, "new": {"size_bytes": len(content or b"")}}
    return file_diff(
        {"path": path, "change": change, "note": note, "diff": diff, **sizes},
        text,
        is_code=path != "SKILL.md",
        budget=budget,
    )
