"""`skillery publish --bump`: the next version, written into skill.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from skillery.errors import InvalidManifest
from skillery.formats.bundle import BundleFile
from skillery.formats.semver import Version
from skillery.formats.toml_lines import span_of

if TYPE_CHECKING:
    from skillery.publishing import SkillFolder

Part = Literal["patch", "minor", "major"]
SKILL_TOML = "skill.toml"


def with_bump(skill: SkillFolder, part: Part) -> SkillFolder:
    """Return the skill with its next version in the manifest and in skill.toml. Raise InvalidManifest, InvalidVersion.

    The rest of skill.toml stays as it is, byte for byte.
    """
    version = str(next_version(Version.parse(str(skill.manifest.get("version", ""))), part))
    files = [
        BundleFile(file.path, _rewritten(file.content, version), file.executable) if file.path == SKILL_TOML else file
        for file in skill.files
    ]
    return skill._replace(manifest={**skill.manifest, "version": version}, files=files)


def write_bump(folder: Path, skill: SkillFolder) -> None:
    """Write the skill.toml of a skill that `with_bump` returned."""
    (folder / SKILL_TOML).write_bytes(next(file.content for file in skill.files if file.path == SKILL_TOML))


def next_version(version: Version, part: Part) -> Version:
    """Return the next version as npm counts: the release of a pre-release comes before a further version."""
    has_release = bool(version.prerelease)
    release = Version(version.major, version.minor, version.patch)
    if part == "patch":
        return version.next_patch()
    if part == "minor":
        return release if has_release and not version.patch else version.next_minor()
    return release if has_release and not (version.patch or version.minor) else version.next_major()


def _rewritten(content: bytes, version: str) -> bytes:
    text = content.decode("utf-8")
    span = span_of(text, "version")
    if span is None:
        raise InvalidManifest(
            "the version in skill.toml could not be found",
            hint=f'Write version = "{version}" in a line of its own, and publish without --bump.',
            file=SKILL_TOML,
        )
    begin, end = span
    quote = text[begin] if text[begin : begin + 3] != text[begin] * 3 else text[begin] * 3
    return f"{text[:begin]}{quote}{version}{quote}{text[end:]}".encode()
