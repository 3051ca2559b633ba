"""`skillery diff`, and `skillery publish --bump`: the changes between two versions, and the next version."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from skillery.cli.files import folders_in, is_folder
from skillery.cli.options import Target, json_option, name_and_version, target_options
from skillery.cli.output import clean, print_json
from skillery.errors import InvalidVersion
from skillery.formats.semver import Version
from skillery.formats.version_diffs import PARTS, Facts, Part, Step, derived_step, step_between

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.formats.version_diffs import Compared
    from skillery.publishing import SkillFolder


HERE = "."
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@click.command(short_help="Compare two versions: permissions first, then files.")
@click.argument("old", metavar="[NAME[@VERSION]|DIR]", required=False)
@click.argument("new", metavar="[NAME[@VERSION]|DIR]", required=False)
@target_options
@json_option
def diff(old: str | None, new: str | None, target: Target, as_json: bool) -> None:
    """Show the changes from the first to the second: permissions first, then manifest, instructions and files.

    A DIR is a folder with a skill.toml: ./DIR, DIR/, `.` or an absolute path. With only a NAME, the second is the
    folder `.`. With only a DIR, the first is the published skill of the same name. Without arguments, DIR is `.`.
    """
    from skillery.cli.connection import with_client

    old, new = _sides(old, new)
    answer: Mapping[str, Any] = with_client(target, lambda client: _compare(client, old, new))
    if as_json:
        print_json(answer)
        return
    for line in _lines(answer):
        colour = _COLOURS.get(line.lstrip()[:1])
        click.echo(click.style(clean(line), fg=colour) if colour else clean(line))


def _sides(old: str | None, new: str | None) -> tuple[str, str]:
    """Return both sides. A single folder, or else the folder `.`, is compared with the published skill of its name."""
    from skillery.publishing import read_skill_folder

    if new is not None and old is not None:
        return old, new
    folder = HERE if old is None else old
    if not is_folder(folder):
        return folder, HERE
    return str(read_skill_folder(Path(folder)).manifest.get("name", "")), folder


async def _compare(client: AsyncClient, old: str, new: str) -> Mapping[str, Any]:
    import msgspec

    from skillery.formats.version_diffs import compare_versions

    (name, version), (other, other_version) = name_and_version(old, None), name_and_version(new, None)
    folders = folders_in((old, new))
    if not folders and name == other:
        return await client.diff_versions(name, from_version=version or "", to_version=other_version or "")
    sides = [_folder_side(Path(text)) if text in folders else await _side(client, text) for text in (old, new)]
    await _load(client, sides[0], sides[1])
    return dict(msgspec.to_builtins(compare_versions(sides[0].compared, sides[1].compared)))


class _Side:
    """One side of a comparison. `contents` has the files that were read, by path."""

    def __init__(self, compared: Compared, contents: dict[str, bytes]) -> None:
        self.compared = compared._replace(read=contents.__getitem__)
        self.contents = contents


async def _side(client: AsyncClient, text: str) -> _Side:
    from skillery.formats.version_diffs import Compared, DiffSide, FileFacts

    name, version = name_and_version(text, None)
    skill: Mapping[str, Any] = (await client.describe_skill(name, version=version, detail="full"))["skill"]
    files = {one["path"]: FileFacts(one["sha256"], one["size_bytes"], one["executable"]) for one in skill["files"]}
    side = DiffSide(skill["name"], skill["version"], skill["digest"], skill.get("provenance"))
    return _Side(Compared(side, skill["manifest"], files, dict[str, bytes]().__getitem__), {})


def _folder_side(folder: Path) -> _Side:
    from skillery.formats.version_diffs import Compared, DiffSide, FileFacts
    from skillery.publishing import read_skill_folder

    skill = read_skill_folder(folder)
    side = DiffSide(str(skill.manifest.get("name", "")), str(skill.manifest.get("version", "")), "")
    files = {file.path: FileFacts(file.sha256, len(file.content), file.executable) for file in skill.files}
    contents = {file.path: file.content for file in skill.files}
    return _Side(Compared(side, skill.manifest, files, contents.__getitem__), contents)


async def _load(client: AsyncClient, old: _Side, new: _Side) -> None:
    """Read the changed files of published versions, if the files are small enough to be compared by lines."""
    from skillery.formats.text_diffs import MOST_TEXT_BYTES

    def differs(path: str) -> bool:
        facts = [side.compared.files.get(path) for side in (old, new)]
        return facts[0] != facts[1] and all(fact is None or fact.size_bytes <= MOST_TEXT_BYTES for fact in facts)

    for side in (old, new):
        for path in side.compared.files:
            if side.compared.side.digest and differs(path):
                side.contents[path] = await _content(client, side.compared, path)


async def _content(client: AsyncClient, compared: Compared, path: str) -> bytes:
    answer = await client.read_skill_file(compared.side.name, path=path, version=compared.side.version)
    content: str = answer["content"]
    return base64.b64decode(content) if answer["encoding"] == "base64" else content.encode()


# -- printing ------------------------------------------------------------------------------------------------------


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    old, new = answer["old"], answer["new"]
    yield f"{old['name']} {old['version']} -> {new['name']} {new['version']}"
    for side in (old, new):
        if job := side.get("provenance"):
            built = " ".join(filter(None, (job["repository"] or job["subject"], job["ref"], job["commit"])))
            yield f"  {side['name']} {side['version']} was published by the CI job {built}"
    if answer["same"]:
        yield "no difference"
        return
    yield from _permission_lines(answer["permissions"])
    yield from _manifest_lines(answer["manifest"])
    for title, changes in (("instructions", [answer["instructions"]]), ("files", answer["files"])):
        if any(changes):
            yield f"{title}:"
        for change in filter(None, changes):
            yield from _file_lines(change)
    if answer["left_out"]:
        yield f"{answer['left_out']} more changes"


def _permission_lines(permissions: Mapping[str, Any]) -> Iterator[str]:
    changes = [
        f"  {sign} {kind} {permission}"
        for sign, key in (("+", "added"), ("-", "removed"))
        for kind in ("network", "secrets")
        for permission in permissions[key][kind]
    ]
    yield "permissions:" if changes else "permissions: no change"
    yield from changes


def _manifest_lines(changes: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "manifest:" if changes else "manifest: no change"
    for change in changes:
        if change["old"] is not None:
            yield f"  - {change['path']} = {change['old']}"
        if change["new"] is not None:
            yield f"  + {change['path']} = {change['new']}"


def _file_lines(change: Mapping[str, Any]) -> Iterator[str]:
    note = f" ({change['note']})" if change["note"] else ""
    facts = change["new"] or change["old"]
    mode = f", {'executable' if facts['executable'] else 'not executable'}" if change["change"] == "mode" else ""
    yield f"  {change['change']} {change['path']} ({facts['size_bytes']} bytes{mode}){note}"
    for line in change["diff"].splitlines():
        yield f"    {line}"


# -- `skillery publish --bump`: the next version, written into skill.toml ----------------------------------------------


SKILL_TOML, TOOLS_JSON = "skill.toml", "tools.json"
NOT_FOUND, INVALID_PARAMS = -32003, -32602


class Stepped(NamedTuple):
    """A skill with its next version, the step that its changes need (None without an earlier version), and warnings."""

    skill: SkillFolder
    step: Step | None = None
    warnings: tuple[str, ...] = ()


async def stepped(client: AsyncClient, skill: SkillFolder, bump: Part | Literal["auto"] | None) -> Stepped:
    """Return the skill with the version that `bump` makes. Without `bump`, the version stays.

    `auto` takes the step that the changes since the latest version need. Without an earlier version, `auto` keeps the
    version. If the step is smaller than the changes need, there is a warning.
    """
    latest = await _latest(client, str(skill.manifest.get("name", "")))
    step = derived_step(latest[1], _facts(skill)) if latest else None
    part = (step.part if step else None) if bump == "auto" else bump
    made = with_bump(skill, part) if part else skill
    try:
        version = Version.parse(str(made.manifest.get("version", "")))
    except InvalidVersion:
        return Stepped(made, step)  # the server reports it with all other problems
    if latest is None or step is None or not version.precedence > latest[0].precedence:
        return Stepped(made, step)
    taken = step_between(latest[0], version)
    if PARTS.index(taken) >= PARTS.index(step.part):
        return Stepped(made, step)
    text = f"{version} is a {taken} step after {latest[0]}, but the changes need {step.part}: {step.reasons[0]}"
    return Stepped(made, step, (f"{text}; publish --bump auto takes this step",))


async def _latest(client: AsyncClient, name: str) -> tuple[Version, Facts] | None:
    """Return the latest version of a skill and its facts, or None if the caller sees none."""
    from skillery.client import AnsweredError

    try:
        described: Any = (await client.describe_skill(name, detail="full"))["skill"]
        paths = frozenset(file["path"] for file in described["files"])
        tools = b""
        if TOOLS_JSON in paths:
            answer = await client.read_skill_file(name, path=TOOLS_JSON, version=described["version"])
            content = answer["content"]
            tools = base64.b64decode(content) if answer["encoding"] == "base64" else content.encode()
    except AnsweredError as error:
        if error.object.get("code") in {NOT_FOUND, INVALID_PARAMS}:
            return None
        raise
    return Version.parse(described["version"]), Facts(described["manifest"], _tools(tools, paths), paths)


async def stored_digest(client: AsyncClient, skill: SkillFolder) -> str:
    """Return the digest of the stored version with the number of the skill, or "" if the caller sees none."""
    from skillery.client import InvalidParams, NotFound

    name, version = (str(skill.manifest.get(key, "")) for key in ("name", "version"))
    try:
        return (await client.describe_skill(name, version=version, detail="manifest"))["skill"]["digest"]
    except (NotFound, InvalidParams):  # the server reports an invalid manifest with all other problems
        return ""


def _facts(skill: SkillFolder) -> Facts:
    paths = frozenset(file.path for file in skill.files)
    tools = next((file.content for file in skill.files if file.path == TOOLS_JSON), b"")
    return Facts(skill.manifest, _tools(tools, paths), paths)


def _tools(content: bytes, paths: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Return the declared parameters of each tool, by name."""
    from skillery.formats.tools import read_tools

    return {tool.name: tool.declared for tool in read_tools(content, paths).tools} if content else {}


def with_bump(skill: SkillFolder, part: Part) -> SkillFolder:
    """Return the skill with its next version in the manifest and in skill.toml. Raise InvalidManifest, InvalidVersion.

    The rest of skill.toml stays as it is, byte for byte.
    """
    from skillery.publishing.folders import with_version

    return with_version(skill, next_version(Version.parse(str(skill.manifest.get("version", ""))), part))


def write_bump(folder: Path, skill: SkillFolder) -> None:
    """Write the skill.toml of a skill that `with_bump` returned."""
    (folder / SKILL_TOML).write_bytes(next(file.content for file in skill.files if file.path == SKILL_TOML))


def next_version(version: Version, part: Part) -> Version:
    """Return the next version by the rules of npm.

    If the version is a pre-release of the wanted release, return this release: 1.3.0 after 1.3.0-rc.1 with `minor`.
    """
    has_release = bool(version.prerelease)
    release = Version(version.major, version.minor, version.patch)
    if part == "patch":
        return version.next_patch()
    if part == "minor":
        return release if has_release and not version.patch else version.next_minor()
    return release if has_release and not (version.patch or version.minor) else version.next_major()
