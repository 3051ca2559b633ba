"""`skillery diff`: compare two versions of a skill, two skills, or folders.

The method diff_versions compares two versions of one skill. This process makes all other comparisons.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.files import folders_in, is_folder
from skillery.cli.options import Target, json_option, name_and_version, target_options
from skillery.cli.output import clean, print_json

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.formats.version_diffs import Compared, DiffSide, FileFacts

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
    from skillery.publishing.folders import read_skill_folder

    if new is not None and old is not None:
        return old, new
    folder = HERE if old is None else old
    if not is_folder(folder):
        return folder, HERE
    return str(read_skill_folder(Path(folder)).manifest.get("name", "")), folder


async def _compare(client: AsyncClient, old: str, new: str) -> Mapping[str, Any]:
    """Compare with the method diff_versions if both are versions of one skill, else in this process."""
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
    """One of the two compared versions or folders. `contents` has the files that were read, by path."""

    def __init__(
        self, side: DiffSide, manifest: Mapping[str, Any], files: Mapping[str, FileFacts], contents: dict[str, bytes]
    ) -> None:
        from skillery.formats.version_diffs import Compared

        self.compared = Compared(side, manifest, files, contents.__getitem__)
        self.contents = contents


async def _side(client: AsyncClient, text: str) -> _Side:
    from skillery.formats.version_diffs import DiffSide, FileFacts

    name, version = name_and_version(text, None)
    skill: Mapping[str, Any] = (await client.describe_skill(name, version=version, detail="full"))["skill"]
    files = {file["path"]: FileFacts(file["sha256"], file["size_bytes"], file["executable"]) for file in skill["files"]}
    side = DiffSide(skill["name"], skill["version"], skill["digest"], skill.get("provenance"))
    return _Side(side, skill["manifest"], files, {})


def _folder_side(folder: Path) -> _Side:
    from skillery.formats.version_diffs import DiffSide, FileFacts
    from skillery.publishing.folders import read_skill_folder

    skill = read_skill_folder(folder)
    side = DiffSide(str(skill.manifest.get("name", "")), str(skill.manifest.get("version", "")), "")
    files = {file.path: FileFacts(file.sha256, len(file.content), file.executable) for file in skill.files}
    contents = {file.path: file.content for file in skill.files}
    return _Side(side, skill.manifest, files, contents)


async def _load(client: AsyncClient, old: _Side, new: _Side) -> None:
    """Read the changed files of published versions that are small enough to be compared by lines."""
    from skillery.formats.texts import MOST_TEXT_BYTES

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
    """Yield the comparison as lines of text."""
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
    # A server of an earlier release does not send the required skills.
    required = answer.get("requires") or []
    if required:
        yield "required skills:"
    for sign, key in (("-", "old"), ("+", "new")):
        yield from (f"  {sign} {change['name']} {change[key]}" for change in required if change[key] is not None)
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
        for kind in ("network", "secrets", "calls")
        for permission in permissions[key].get(kind, ())
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
