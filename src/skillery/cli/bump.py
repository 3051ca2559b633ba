"""`skillery publish --bump`: the next version, written into skill.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from skillery.formats.semver import Version

if TYPE_CHECKING:
    from skillery.publishing import SkillFolder

Part = Literal["patch", "minor", "major"]
SKILL_TOML = "skill.toml"


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
